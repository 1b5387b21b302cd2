from pathlib import Path

import msgspec
import pytest

from headway.app.document import read_document
from headway.core.base.errors import InvalidSetting


class Part(msgspec.Struct, forbid_unknown_fields=True):
    weights: dict[str, int]
    name: str = ""


def written(folder: Path, text: str, name: str = "h.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_every_place_has_its_line(tmp_path: Path) -> None:
    text = "a: 1\nlist:\n  - x: 1\n    y: 2\n  - x: 3\n"
    document = read_document(written(tmp_path, text))
    path = document.path
    assert document.where("a") == f"{path}:1: a"
    assert document.where("list", 0, "y") == f"{path}:4: list[0].y"
    assert document.where("list", 1) == f"{path}:5: list[1]"
    assert document.where("list", 1, "missing") == f"{path}:5: list[1].missing"
    assert document.where("nowhere") == f"{path}: nowhere"


def test_a_part_becomes_a_struct_and_is_taken_out(tmp_path: Path) -> None:
    document = read_document(written(tmp_path, "routes:\n  - weights: {a: 1}\nother: 1\n"))
    assert document.convert("routes", list[Part]) == [Part({"a": 1})]
    assert document.content == {"other": 1}
    assert document.convert("absent", dict[str, int]) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "routes:\n  - weights: {a: 1}\n  - weights:\n      a: much\n",
            "4: routes[1].weights.a: must be a whole number; got 'much'",
        ),
        (
            "routes:\n  - weights: {a: 1}\n    nam: x\n",
            "3: routes[0].nam: is not a setting; did you mean name?",
        ),
        ("\nroutes: 5\n", "2: routes: must be a list; got 5"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    document = read_document(written(tmp_path, text))
    with pytest.raises(InvalidSetting) as caught:
        document.convert("routes", list[Part])
    assert caught.value.message.startswith(f"{document.path}:{said}")


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    with pytest.raises(InvalidSetting, match="is given twice; first in line 2") as caught:
        read_document(file)
    assert caught.value.message.startswith(f"{file}:4: a.b:")


def test_toml_has_places_without_lines(tmp_path: Path) -> None:
    document = read_document(written(tmp_path, "[[models]]\nload = 'start'\n", "h.toml"))
    assert document.where("models", 0, "load") == f"{document.path}: models[0].load"


def test_a_place_is_found_also_where_keys_have_dots_and_brackets(tmp_path: Path) -> None:
    text = "prices:\n  Qwen2.5-7B[x]: 1\n  Qwen2:\n    - 5-7B: {a.b: 1}\n"
    document = read_document(written(tmp_path, text))
    for field, line, place in (
        ("prices.Qwen2.5-7B[x]", 2, ("prices", "Qwen2.5-7B[x]")),
        ("prices.Qwen2.5-7B[x].more", 2, ("prices", "Qwen2.5-7B[x]", "more")),
        ("prices.Qwen2[0].5-7B.a.b", 4, ("prices", "Qwen2", 0, "5-7B", "a.b")),
        ("prices.other.thing[3]", 1, ("prices", "other", "thing", 3)),
        ("nowhere", None, ("nowhere",)),
    ):
        assert document.place_of(field) == place
        shown = f"{document.path}:{line}" if line else document.path
        assert document.where(*place) == f"{shown}: {field}"
