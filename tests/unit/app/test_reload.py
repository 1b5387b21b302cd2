"""Which settings a reload can take, and which models it leaves alone."""

from pathlib import Path

import msgspec
import pytest

from headway.app.reload import differing
from headway.app.settings import Settings, merge_models

FILE = """\
port: 1
models:
  - {upstream: {name: one, url: http://a:1}}
"""


def settings(folder: Path, text: str = FILE) -> Settings:
    """Of a file."""
    file = folder / "headway.yaml"
    file.write_text(text)
    return merge_models({}, {}, str(file))[0]


def test_settings_that_differ_are_named_as_the_file_has_them(tmp_path: Path) -> None:
    old = settings(tmp_path)
    more = "database_url: postgresql://a/b\nredis_url: redis://a\nmax_body_bytes: 9\n"
    new = settings(tmp_path, FILE.replace("port: 1", "port: 2") + more)
    assert sorted(differing(old, new)) == ["database_url", "max_body_bytes", "port", "redis_url"]
    assert differing(old, old) == []


@pytest.mark.parametrize("field", ["jwt", "routes"])
def test_a_section_that_comes_or_goes_is_named(tmp_path: Path, field: str) -> None:
    old = settings(tmp_path)
    assert differing(old, msgspec.structs.replace(old, **{field: object()})) == [field]
