"""`headway models`: what is here, and what a file holds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from headway.app.cli import main
from headway.service.loaders.builtin import BUILTIN
from headway.service.loaders.hub import Hub
from headway.service.loaders.model_files import open_model
from tests.hub import COMMIT, StandIn, serving
from tests.parity.tiny_llama import TinyLlama, write_gguf
from tests.unit.service.loaders.folder_samples import write_folder
from tests.unit.service.loaders.samples import tiny_model


@pytest.fixture(autouse=True)
def cache_of_hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one: what the user's own has is not looked at."""
    folder = tmp_path / "of-hubs"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub with a folder, with GGUF files, and with something that is no model."""
    folder = write_folder(tmp_path / "folder")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    gguf = Path(tiny_model(tmp_path).path).read_bytes()
    (tmp_path / "tiny.gguf").unlink()
    repos = {
        "org/folder": {file.name: file.read_bytes() for file in folder.iterdir()},
        "org/ggufs": {"a.gguf": gguf, "b.gguf": gguf},
        "org/words": {"config.json": b"{}"},
    }
    with serving(StandIn(repos)) as found:
        where = Hub(found.url, tmp_path / "of-hubs")
        monkeypatch.setattr(Hub, "usual", lambda: where)
        yield found


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """The list's entries by name."""
    capsys.readouterr()
    assert main(["models", "list", "--cache-dir", str(folder), "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_models_of_a_hub_are_pulled_listed_and_shown_by_their_ids(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("org/folder", "org/ggufs:a.gguf"):
        assert main(["models", "pull", model, "--cache-dir", str(tmp_path)]) == 0
        assert Path(capsys.readouterr().out.strip()).exists()
    found = listed(tmp_path, capsys)
    assert {name for name, each in found.items() if each["is_of_hub"]} == {
        "org/folder",
        "org/ggufs:a.gguf",
    }
    folder = found["org/folder"]
    assert (folder["licence"], folder["has_template"], folder["fits"]) == ("mit", True, True)
    assert folder["kv_bytes_a_token"] == 2 * 2 * 2 * 2 * 4
    assert folder["problem"] is None
    asked = len(hub.asked)
    for model in ("org/folder", "org/ggufs:a.gguf"):
        assert main(["models", "show", model, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["path"] == found[model]["path"]
        assert shown["parameters"] == found[model]["parameters"]
    assert len(hub.asked) == asked, "nobody is asked about what is here"
    assert main(["models", "list", "--cache-dir", str(tmp_path)]) == 0
    assert "  org/folder  llama, 0 M parameters, " in capsys.readouterr().out


def test_a_model_of_a_hub_that_is_not_here_is_not_fetched_by_showing_it(
    hub: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "show", "org/folder"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "it is not in the cache" in error
    assert error.endswith("get it: headway models pull org/folder\n")
    assert hub.asked == []


def test_what_is_not_whole_is_listed_with_what_it_lacks(
    hub: StandIn, cache_of_hubs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["models", "pull", "org/folder", "--cache-dir", str(tmp_path)])
    snapshot = cache_of_hubs / "models--org--folder" / "snapshots" / COMMIT
    shard = snapshot / "model-00002-of-00002.safetensors"
    shard.resolve().unlink()
    problem = str(listed(tmp_path, capsys)["org/folder"]["problem"])
    assert "it is not whole in the cache" in problem
    assert shard.name in problem
    other = cache_of_hubs / "models--org--words" / "refs"
    other.mkdir(parents=True)
    (other / "main").write_text(COMMIT)
    assert "org/words" not in listed(tmp_path, capsys)


def test_a_commit_without_a_branch_is_listed_by_its_number(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["models", "pull", f"org/folder@{COMMIT}", "--cache-dir", str(tmp_path)])
    assert f"org/folder@{COMMIT}" in listed(tmp_path, capsys)


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
