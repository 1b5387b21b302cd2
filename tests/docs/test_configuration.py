"""The configuration of docs/gateway.md is whole, true, and one to start with."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from headway.app.cli import main
from headway.app.document import Document, read_document
from headway.app.sections import TenantEntry
from headway.core.route.table import RoutesSettings
from headway.core.tenancy.price import PriceSettings
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.upstream.settings import UpstreamSettings
from tests.docs.documents import ROOT

Struct = type[msgspec.Struct]
SECTIONS: Mapping[str, Struct] = {
    "models": UpstreamSettings,
    "routes": RoutesSettings,
    "tenants": TenantEntry,
    "rate_limits": RateLimitSettings,
    "prices": PriceSettings,
    "jwt": JwtSettings,
}
SHOWN = re.search(
    r"## Every field\n.*?```yaml\n(.*?)^```",
    (ROOT / "docs" / "gateway.md").read_text(),
    re.S | re.M,
)
assert SHOWN is not None, "docs/gateway.md has lost its configuration"
TEXT = SHOWN[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration as a file."""
    path = tmp_path / "headway.yaml"
    path.write_text(TEXT)
    return path


def structs_in(kind: object) -> Iterator[Struct]:
    """Structs that a type is, or is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from structs_in(part)


def fields_of(struct: Struct) -> Iterator[str]:
    """Every field, as files write it, also of the structs inside."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
        if struct is RateLimitSettings:
            continue  # what it has inside is what tenants have
        for inner in structs_in(get_type_hints(struct)[field.name]):
            yield from fields_of(inner)


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """What stands when the field is left out; NODEFAULT if it may not be."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def others(document: Document, struct: Struct, place: tuple[str | int, ...]) -> Iterator[str]:
    """Fields of a part of the file whose value is not the default, and whose comment hides that."""
    raw: object = document.content
    for step in place:
        assert isinstance(raw, dict | list)
        raw = raw[step]  # type: ignore[index]  # a key of the one, or an index of the other
    assert isinstance(raw, dict)
    for field in msgspec.structs.fields(struct):
        if field.encode_name not in raw:
            continue
        below = (*place, field.encode_name)
        line = int(document.where(*below).split(":")[-2])
        comment = TEXT.splitlines()[line - 1].partition("#")[2]
        default = default_of(field)
        if default is msgspec.NODEFAULT or re.search(r"\b(none|needed)\b", comment):
            continue
        value, inner = raw[field.encode_name], next(structs_in(field.type), None)
        if inner is not None and isinstance(value, dict):
            yield from others(document, inner, below)
        elif msgspec.convert(value, field.type) != default and str(default) not in comment:
            yield document.where(*below)


def test_it_is_one_that_headway_would_start_with(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_KEY", "k1")
    monkeypatch.setenv("ACME_KEY", "k2")
    assert main(["config", "check", str(file)]) == 0, capsys.readouterr().err
    assert "tenants: 2 in the file" in capsys.readouterr().out


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_stands_in_its_section(section: str) -> None:
    found = re.search(rf"^{section}:\n(.*?)(?=^\S|\Z)", TEXT, re.S | re.M)
    assert found is not None
    missing = [name for name in fields_of(SECTIONS[section]) if f"{name}:" not in found[1]]
    assert missing == []


def test_a_value_that_is_no_default_says_what_the_default_is(file: Path) -> None:
    document = read_document(file)
    parts: list[tuple[Struct, tuple[str | int, ...]]] = [
        (UpstreamSettings, ("models", 1, "upstream")),
        (TenantEntry, ("tenants", 0)),
        (TenantEntry, ("tenants", 1)),
        *((kind, (name,)) for name, kind in SECTIONS.items() if name not in {"models", "tenants"}),
    ]
    unsaid = [place for kind, at in parts for place in others(document, kind, at)]
    assert unsaid == []
