"""`headway config check` on files with a mistake: a line, a field, never a traceback."""

import copy
import datetime
import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.app.cli import main
from headway.app.options import BY_KEY

HIDDEN = "sk-hidden-key"
KEYS = {"ACME_KEY": "k-1", "BATCH_KEY": "k-2", "VLLM_KEY": "k-3"}
FULL = Path(__file__).parents[2] / "deploy" / "headway.yaml"
MORE = {
    "redis_url": f"redis://user:{HIDDEN}@redis:6379/0",
    "database_url": f"postgresql://headway:{HIDDEN}@db/headway",
    "api_key": [HIDDEN],
    "admin_key": ["an-admin-key-of-the-operator"],
    "jwt": {
        "jwks": "https://id.example.com/keys.json",
        "issuer": "https://id.example.com/",
        "audience": "headway",
        "tenant_claim": "team",
        "tenants": {"blue": "acme"},
    },
}
TREE: dict[str, Any] = yaml.safe_load(FULL.read_text()) | MORE
TREE["rate_limits"] |= {"tenants": {"acme": {"tokens_per_minute": 5, "monthly_budget": 100}}}
TREE["tenants"].append({"name": "lab", "keys": [HIDDEN + "-2"]})
TREE["routes"]["names"].append({"name": "careful", "cascade": {"first": "small", "then": "large"}})
TOML = f"""
port = 8000
api_key = ["{HIDDEN}"]
[[models]]
served_model_name = "small"
max_num_seqs = 16
[[models]]
upstream = {{url = "http://127.0.0.1:9/v1", name = "cloud", timeouts = {{first_token = 60.0}}}}
[[tenants]]
name = "acme"
class = "vip"
limits = {{requests_per_minute = 60}}
[routes]
default = "chat"
[[routes.names]]
name = "chat"
versions = {{stable = "small", preview = "cloud"}}
split = {{stable = 9, preview = 1}}
[prices.models.small]
prompt = 0.1
completion = 0.4
"""
ODD: list[Any] = [
    *(None, True, False, 0, -1, 10**30, 1.5, float("nan"), float("inf")),
    *("", " ", "x", "\0", "a\nb", "é🙂", "x" * 5000, "http://[", "http://u:p@h", "https://h:99999"),
    *([], [None], [[]], {}, {"a": 1}, {7: 1}, {None: 1}, ["a", "a"], [{}], b"\xff"),
    *(datetime.date(2020, 1, 1), {"a": {"b": {"c": []}}}, [1, 1, 1]),
]
Place = tuple[str | int, ...]


def places(node: object, above: Place = ()) -> Iterator[Place]:
    """Of everything below a node."""
    pairs: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(node, dict):
        pairs = iter(node.items())
    elif isinstance(node, list):
        pairs = iter(enumerate(node))
    for key, child in pairs:
        yield (*above, key)
        yield from places(child, (*above, key))


PLACES = list(places(TREE))


def holder(tree: Any, place: Place) -> Any:
    """What the place is in."""
    for key in place[:-1]:
        tree = tree[key]
    return tree


@st.composite
def mistakes(draw: st.DrawFn) -> Any:
    """The full file with one field dropped, altered, renamed or there twice, or one too many."""
    tree = copy.deepcopy(TREE)
    place = draw(st.sampled_from(PLACES))
    inside: Any = holder(tree, place)
    key: Any = place[-1]
    kind: str = draw(st.sampled_from(["drop", "alter", "alter", "again", "one more"]))
    if kind == "drop":
        del inside[key]
    elif kind == "alter":
        inside[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    elif isinstance(inside, list):
        inside.append(copy.deepcopy(inside[key]))
    elif kind == "again":
        other = draw(st.sampled_from(["x", "a.b[0]", str(key) + "x", str(key).upper(), 7, None]))
        inside[other] = inside.pop(key)
    else:
        option = draw(st.sampled_from(sorted(BY_KEY)))
        inside[option] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return tree


@st.composite
def misprints(draw: st.DrawFn, text: str) -> str:
    """A text with a few letters or lines taken out, put in or doubled."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.sampled_from([0, 1, 3, 20]))
        put = draw(
            st.sampled_from(["", ":", "{", "[", "]", "'", '"', "\n", "\t", "&a ", "*a", "!!"])
        )
        text = text[:at] + put + text[at + length :]
        if draw(st.booleans()):
            lines = text.splitlines(keepends=True)
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
            text = "".join(lines)
    return text


def checked(file: Path) -> tuple[int, str]:
    """Exit status, and what was written to standard error."""
    out, err = io.StringIO(), io.StringIO()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")} | KEYS
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = main(["config", "check", str(file)])
    return status, err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples."""
    return tmp_path_factory.mktemp("config")


def test_the_full_file_itself_is_fine(folder: Path) -> None:
    file = folder / "h.yaml"
    file.write_text(yaml.safe_dump(TREE, sort_keys=False))
    assert checked(file) == (0, "")
    toml = folder / "h.toml"
    toml.write_text(TOML)
    assert checked(toml) == (0, "")


@settings(max_examples=300)
@given(mistakes())
def test_a_mistake_in_a_field_is_one_line_with_file_and_line(folder: Path, tree: Any) -> None:
    file = folder / "h.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    status, said = checked(file)
    assert status in {0, 2}
    if status == 2:
        assert re.fullmatch(rf"headway config: {re.escape(str(file))}:\d+: \S.*\n", said), said
    assert HIDDEN not in said


@settings(max_examples=200)
@given(misprints(FULL.read_text()))
@example("? [a]\n: b\n")
@example("port: !!int x\n")
@example("port: !!timestamp x\n")
@example("port: !!bool x\n")
@example("host: 2020-13-45\n")
@example("port: 1\n---\nport: 2\n")
@example("yes: 1\n")
@example("- 1\n")
@example("port: 8000\n\thost: x\n")
def test_a_misprint_in_yaml_is_one_line_with_file_and_line(folder: Path, text: str) -> None:
    file = folder / "h.yaml"
    file.write_text(text)
    status, said = checked(file)
    assert status in {0, 2}
    if status == 2:
        assert re.fullmatch(rf"headway config: {re.escape(str(file))}:\d+: \S.*\n", said), said


@settings(max_examples=200)
@given(misprints(TOML))
def test_a_misprint_in_toml_is_one_line_with_the_file(folder: Path, text: str) -> None:
    file = folder / "h.toml"
    file.write_text(text)
    status, said = checked(file)
    assert status in {0, 2}
    if status == 2:
        assert re.fullmatch(rf"headway config: {re.escape(str(file))}[:\d]*: \S.*\n", said), said


@pytest.mark.parametrize("bomb", ["[" * 3000, "a: &a [*a]"])
def test_what_nests_without_end_is_refused(folder: Path, bomb: str) -> None:
    file = folder / "h.yaml"
    file.write_text(bomb)
    status, said = checked(file)
    assert (status, said.count("\n")) == (2, 1)
    assert "nested too deeply" in said


def test_aliases_that_grow_without_end_are_refused_soon(folder: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    file = folder / "h.yaml"
    file.write_text("\n".join(lines))
    status, said = checked(file)
    assert status == 2
    assert re.search(r"h\.yaml:\d+: has more than \d+ entries", said), said
