"""`headway models`: what is here, and what a file holds."""

import json
from pathlib import Path

import pytest

from headway.app.cli import main
from headway.service.loaders.builtin import BUILTIN
from headway.service.loaders.model_files import open_model
from tests.parity.tiny_llama import TinyLlama, write_gguf
from tests.unit.service.loaders.folder_samples import write_folder
from tests.unit.service.loaders.samples import tiny_model


def test_the_built_in_model_is_listed_before_it_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "list", "--cache-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert BUILTIN.file_name in shown
    assert "headway models pull" in shown


def test_files_are_listed_with_what_they_are_or_why_they_cannot_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert main(["models", "list", "--cache-dir", str(tmp_path), "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["tiny.gguf"]["architecture"] == "llama"
    assert found["tiny.gguf"]["parameters"] > 0
    assert found["tiny.gguf"]["problem"] is None
    assert found["broken.gguf"]["problem"]
    assert not found[BUILTIN.file_name]["is_here"]
    main(["models", "list", "--cache-dir", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "broken.gguf  cannot be served: " in shown


def test_a_files_facts_are_those_of_its_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(tmp_path)
    assert main(["models", "show", model.path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    card = model.card
    assert shown["context_length"] == card.context_length
    assert shown["vocabulary"] == card.vocab_size
    values = 2 * card.num_layers * card.num_kv_heads * card.head_dim
    assert shown["kv_bytes_a_token"]["bfloat16"] == 2 * values
    heads = 2 * card.num_layers * card.num_kv_heads
    assert shown["kv_bytes_a_token"]["int8"] == values + 4 * heads
    assert sum(shown["types"].values()) == len(model.tensors)
    assert shown["file_bytes"] == Path(model.path).stat().st_size
    assert shown["kv_tokens_that_fit"]["int8"] >= shown["kv_tokens_that_fit"]["bfloat16"] > 0


@pytest.mark.parametrize(
    ("readme", "said"),
    [
        (None, None),
        ("# A model\n", None),
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n", "apache-2.0"),
    ],
)
def test_a_folders_facts_are_those_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], readme: str | None, said: str | None
) -> None:
    folder = write_folder(tmp_path / "Tiny-0.5B")
    if readme is not None:
        (folder / "README.md").write_text(readme)
    assert main(["models", "show", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["licence"] == said
    assert shown["path"] == str(folder)
    assert sum(shown["types"].values()) == len(open_model(str(folder)).tensors)


def test_a_model_of_the_list_is_found_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model(tmp_path)
    assert main(["models", "show", "tiny.gguf", "--cache-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "KV bytes a token" in shown
    assert "this machine" in shown


@pytest.mark.parametrize(
    ("named", "said"), [("nothing.gguf", "nothing.gguf"), ("builtin", "headway models pull")]
)
def test_a_model_that_is_not_here_is_one_line(
    named: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "show", named, "--cache-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_a_file_without_a_template_says_that_it_takes_no_chats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "bare.gguf", TinyLlama())
    code = main(["models", "show", str(path)])
    shown = capsys.readouterr()
    assert code == 2, "it has no tokenizer either, which a server needs"
    assert "tokenizer" in shown.err
