"""docs/api.md has every call, header and error that clients meet."""

import re
from collections.abc import Iterator

import pytest

from headway.core.base.errors import BadFrame, CorruptBlock, HeadwayError, StartError
from headway.service.gateway.generate import GENERATORS
from headway.service.gateway.http_limits import REASONS
from tests.docs.documents import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()
GATEWAY = ROOT / "headway" / "service" / "gateway"
SOURCES = [
    path.read_text() for path in [*GATEWAY.glob("*.py"), *GATEWAY.parent.glob("openai/*.py")]
]
INSIDE = (BadFrame, CorruptBlock, StartError)  # never sent to a client


def errors(root: type[HeadwayError] = HeadwayError) -> Iterator[type[HeadwayError]]:
    """Every kind of error that a client may get."""
    for kind in root.__subclasses__():
        if not issubclass(kind, INSIDE) and kind.__module__.startswith("headway."):
            yield kind
            yield from errors(kind)


def in_code(pattern: str) -> set[str]:
    """What the gateway's source has of that form."""
    return {found for text in SOURCES for found in re.findall(pattern, text)}


def test_every_error_stands_beside_its_status_and_type() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    missing = [
        kind.__name__
        for kind in errors()
        if not any(
            str(kind.http_status) in row
            and f"`{kind.error_type}`" in row
            and (f"`{kind.code}`" in row or kind.code is None)
            for row in rows
        )
    ]
    assert missing == []
    assert [code for _, code in REASONS.values() if f"`{code}`" not in PAGE] == []


def test_every_header_of_ours_stands_there() -> None:
    names = in_code(r"\"(x-headway-[a-z-]+)\"") | in_code(
        r"\"(x-should-retry|retry-after(?:-ms)?)\""
    )
    assert len(names) >= 8
    assert [name for name in names if f"`{name}" not in PAGE.lower()] == []


@pytest.mark.parametrize(
    "path", sorted(in_code(r"AdminRoute\(\"[A-Z]+\", \"([^\"]+)\"") | set(GENERATORS))
)
def test_every_call_stands_there(path: str) -> None:
    assert f"{path}`" in PAGE
