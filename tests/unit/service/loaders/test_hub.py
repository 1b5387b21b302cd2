"""Models of a hub, against a stand-in on loopback: what is fetched, resumed, checked, refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.base.errors import StartError
from headway.service.loaders.hub import Hub, fetch_from_hub
from headway.service.loaders.hub_blob import BadChecksum, Blob, fetch_blob
from headway.service.loaders.hub_choice import HubReference, read_reference
from headway.service.loaders.progress import silent
from tests.hub import COMMIT, TOKEN, StandIn, git_sha1, serving, sha256

SHARD = os.urandom(3 << 20)
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{ }",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# words",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    ).encode(),
    "model-1-of-2.safetensors": SHARD,
    "model-2-of-2.safetensors": SHARD[::-1],
    "consolidated.safetensors": b"the same again",
    "pytorch_model.bin": b"a pickle",
    "original/model.safetensors": b"another form",
}
GGUFS = {"small.Q4_1.gguf": SHARD[: 1 << 20], "large.Q8_0.gguf": SHARD, "config.json": b"{}"}
WANTED = {
    name
    for name in FOLDER
    if name.startswith(("config", "gen", "token", "chat", "model", "README"))
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    repos = {
        "org/folder": FOLDER,
        "org/ggufs": GGUFS,
        "org/one": {"only.gguf": SHARD[:999]},
        "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b"a pickle"},
        "org/words": {"README.md": b"# words"},
    }
    with serving(StandIn(repos)) as found:
        yield found


def fetch(hub: StandIn, cache: Path, model: str, **more: bool) -> Path:
    reference = read_reference(model)
    assert reference is not None
    offline, verify = more.get("offline", False), more.get("verify", False)
    where = Hub(hub.url, cache, offline)
    return Path(fetch_from_hub(reference, silent, where, verify=verify))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubReference("org/name", "main", None)),
        ("org/name@v1.0", HubReference("org/name", "v1.0", None)),
        ("org/name:a-Q4_K.gguf", HubReference("org/name", "main", "a-Q4_K.gguf")),
        ("org/name:Q4/a.gguf", HubReference("org/name", "main", "Q4/a.gguf")),
        ("models/a.gguf", None),
        ("./org/name", None),
        ("/abs/olute", None),
        ("name", None),
        ("a/b/c", None),
        ("../up", None),
    ],
)
def test_only_what_can_be_no_path_is_a_hubs_model(text: str, expected: HubReference | None) -> None:
    assert read_reference(text) == expected


@pytest.mark.spec("A6")
def test_a_folder_is_fetched_without_pickles_and_without_anything_twice(
    hub: StandIn, tmp_path: Path
) -> None:
    folder = fetch(hub, tmp_path, "org/folder")
    assert {path.name for path in folder.iterdir()} == WANTED
    for name in WANTED:
        assert (folder / name).read_bytes() == FOLDER[name]
    assert hub.fetched() == dict.fromkeys(WANTED, 1)
    before = hub.fetched()
    assert fetch(hub, tmp_path, "org/folder") == folder
    assert hub.fetched() == before


def test_one_named_gguf_file_is_fetched_alone(hub: StandIn, tmp_path: Path) -> None:
    path = fetch(hub, tmp_path, "org/ggufs:large.Q8_0.gguf")
    assert path.name == "large.Q8_0.gguf"
    assert path.read_bytes() == SHARD
    assert set(hub.fetched()) == {"large.Q8_0.gguf"}


def test_the_only_gguf_file_needs_no_name(hub: StandIn, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path, "org/one").name == "only.gguf"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("org/ggufs", "name one file, as in org/ggufs:large.Q8_0.gguf"),
        ("org/ggufs:none.gguf", "no such file; it has its GGUF files: large.Q8_0.gguf, small"),
        ("org/pickles", r"pickles only \(pytorch_model.bin\)"),
        ("org/words", "has no weights"),
        ("org/none", "no such repository, or a private one"),
        ("org/folder@v9", "has no revision 'v9'"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    hub: StandIn, tmp_path: Path, model: str, said: str
) -> None:
    with pytest.raises(StartError, match=said) as caught:
        fetch(hub, tmp_path, model)
    assert "\n" not in caught.value.message
    assert model.partition("@")[0] in caught.value.message


def test_a_gated_model_says_what_to_do(hub: StandIn, tmp_path: Path) -> None:
    hub.gated.add("org/folder")
    with pytest.raises(StartError, match=r"is gated at .*accept its terms.*HF_TOKEN") as caught:
        fetch(hub, tmp_path, "org/folder")
    assert "\n" not in caught.value.message


def test_the_token_opens_a_private_model_and_is_not_shown_to_the_host_of_the_files(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private.add("org/one")
    with pytest.raises(StartError, match="HF_TOKEN"):
        fetch(hub, tmp_path, "org/one")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch(hub, tmp_path, "org/one").read_bytes() == SHARD[:999]
    assert TOKEN in hub.tokens["hub"]
    assert hub.tokens["cdn"] == {""}


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: StandIn, tmp_path: Path) -> None:
    content = FOLDER["model-1-of-2.safetensors"]
    target = tmp_path / "blob"
    pauses: list[float] = []
    hub.cuts["model-1-of-2.safetensors"] = [1 << 20, 1 << 20]
    url = f"{hub.url}/cdn/org/folder/model-1-of-2.safetensors"
    blob = Blob("it", url, len(content), sha256(content))
    fetch_blob(blob, target, {}, lambda have: None, pauses.append)
    assert target.read_bytes() == content
    assert len(hub.ranges("model-1-of-2.safetensors")) == 2
    assert len(pauses) == 2


def test_a_try_that_was_given_up_is_continued_by_the_next_one(hub: StandIn, tmp_path: Path) -> None:
    content = FOLDER["model-1-of-2.safetensors"]
    target = tmp_path / "blob"
    url = f"{hub.url}/cdn/org/folder/model-1-of-2.safetensors"
    blob = Blob("it", url, len(content), sha256(content))
    hub.cuts["model-1-of-2.safetensors"] = [2 << 20, 0, 0, 0, 0, 0]
    with pytest.raises(StartError, match=r"failed 5 times in a row.*goes on from there"):
        fetch_blob(blob, target, {}, lambda have: None, lambda seconds: None)
    assert not target.exists()
    kept = (tmp_path / "blob.headway.incomplete").stat().st_size
    assert 0 < kept <= 2 << 20
    hub.asked.clear()
    told: list[int] = []
    fetch_blob(blob, target, {}, told.append, lambda seconds: None)
    assert target.read_bytes() == content
    assert hub.ranges("model-1-of-2.safetensors") == [f"bytes={kept}-"]
    assert told[0] > kept
    assert told[-1] == len(content)
    assert list(tmp_path.iterdir()) == [target]


def test_a_partial_file_that_went_bad_is_fetched_anew(hub: StandIn, tmp_path: Path) -> None:
    content = FOLDER["model-1-of-2.safetensors"]
    target = tmp_path / "blob"
    (tmp_path / "blob.headway.incomplete").write_bytes(bytes(1000))
    url = f"{hub.url}/cdn/org/folder/model-1-of-2.safetensors"
    fetch_blob(Blob("it", url, len(content), sha256(content)), target, {}, lambda have: None)
    assert target.read_bytes() == content


@pytest.mark.parametrize("name", ["model-2-of-2.safetensors", "tokenizer.json"])
def test_a_file_with_the_wrong_checksum_is_never_taken(
    hub: StandIn, tmp_path: Path, name: str
) -> None:
    hub.lies[name] = FOLDER[name][:-1] + b"?"
    with pytest.raises(BadChecksum, match=f"{name}.*has not the checksum"):
        fetch(hub, tmp_path, "org/folder")
    assert not list(tmp_path.rglob("*.incomplete"))
    assert all(path.name != name for path in tmp_path.rglob("*"))
    hub.lies.clear()
    assert (fetch(hub, tmp_path, "org/folder") / name).read_bytes() == FOLDER[name]


def test_verifying_finds_a_file_that_went_bad_in_the_cache(hub: StandIn, tmp_path: Path) -> None:
    path = fetch(hub, tmp_path, "org/one")
    path.resolve().write_bytes(b"?" * 999)
    assert fetch(hub, tmp_path, "org/one").read_bytes() == b"?" * 999, "only its name is looked at"
    assert fetch(hub, tmp_path, "org/one", verify=True).read_bytes() == SHARD[:999]


def test_offline_serves_what_is_here_and_asks_nobody(hub: StandIn, tmp_path: Path) -> None:
    folder, file = fetch(hub, tmp_path, "org/folder"), fetch(hub, tmp_path, "org/one")
    hub.asked.clear()
    assert fetch(hub, tmp_path, "org/folder", offline=True) == folder
    assert fetch(hub, tmp_path, "org/one", offline=True) == file
    assert hub.asked == []


def test_offline_without_the_model_says_so(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"not in the cache.*HF_HUB_OFFLINE is set"):
        fetch(hub, tmp_path, "org/folder", offline=True)
    folder = fetch(hub, tmp_path, "org/folder")
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(StartError, match=r"not whole in the cache.*model-2-of-2"):
        fetch(hub, tmp_path, "org/folder", offline=True)
    assert set(hub.fetched()) == WANTED


def test_a_hub_that_is_down_leaves_what_is_here(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(hub, tmp_path, "org/one")
    hub.status = 501
    assert fetch(hub, tmp_path, "org/one") == path
    with pytest.raises(StartError, match=r"cannot reach .*status 501.*not in the cache"):
        fetch(hub, tmp_path, "org/folder")


def test_a_commit_that_is_here_is_not_asked_for(hub: StandIn, tmp_path: Path) -> None:
    path = fetch(hub, tmp_path, f"org/one@{COMMIT}")
    hub.asked.clear()
    assert fetch(hub, tmp_path, f"org/one@{COMMIT}") == path
    assert hub.asked == []


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(free=1 << 20))
    with pytest.raises(StartError, match=r"takes 0.0 GB more .* 0.0 GB are free.*HF_HOME"):
        fetch(hub, tmp_path, "org/ggufs:large.Q8_0.gguf")
    assert not hub.fetched()


def test_a_cache_that_cannot_be_written_is_one_line(hub: StandIn, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file, not a folder")
    with pytest.raises(StartError, match=r"cannot write to the cache .*HF_HOME"):
        fetch(hub, tmp_path / "cache", "org/one")


def test_the_progress_grows_to_the_whole_and_ends_once(hub: StandIn, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    reference = HubReference("org/ggufs", "main", "large.Q8_0.gguf")
    where = Hub(hub.url, tmp_path)
    fetch_from_hub(reference, lambda *each: told.append(each), where)
    assert {job for job, _, _ in told} == {"fetching org/ggufs:large.Q8_0.gguf"}
    done = [here for _, here, _ in told]
    assert done == sorted(done)
    assert [here == total for _, here, total in told].count(True) == 1
    told.clear()
    fetch_from_hub(reference, lambda *each: told.append(each), where)
    assert told == []


def test_the_environment_names_hub_token_and_cache(hub: StandIn, tmp_path: Path) -> None:
    hub.private.add("org/one")
    command = [sys.executable, "-m", "headway.app.cli", "models", "pull", "org/one"]
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
    }
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / "home")
    assert path.read_bytes() == SHARD[:999]
    assert "fetching org/one: 100%" in done.stderr
    environment |= {"HF_HUB_OFFLINE": "1"}
    command[-1] = "org/folder"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "HF_HUB_OFFLINE" in done.stderr


def test_small_files_are_known_by_gits_hash(hub: StandIn, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path, "org/folder")
    assert (folder / "config.json").resolve().name == git_sha1(FOLDER["config.json"])


def test_a_repository_cannot_write_outside_the_cache(hub: StandIn, tmp_path: Path) -> None:
    hub.repos["org/evil"] = {"../../evil.gguf": b"?", "a/../../evil.gguf": b"?"}
    with pytest.raises(StartError, match="has no weights"):
        fetch(hub, tmp_path / "cache", "org/evil")
    hub.etags["only.gguf"] = "../../../evil"
    with pytest.raises(StartError, match=r"states no checksum or ETag of only\.gguf"):
        fetch(hub, tmp_path / "cache", "org/one")
    assert not list(tmp_path.rglob("*evil*"))


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free
