"""A model's id on a hub, from nothing to an answer, with a stand-in for the hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server
from tests.folder_models import served_folder
from tests.hub import StandIn, serving

SMALL = ("--kv-cache-memory-bytes", "16M", "--threads", "1")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """What servers that start meanwhile ask, and keep what they fetch in a folder of the test."""
    folder = Path(served_folder(tmp_path / "made", temperature=0.5, top_k=3))
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(StandIn({"org/Random-1M": files})) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        yield found


def answer(server: Server, model: str) -> str:
    """What the real client gets of it."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as api:
        done = api.completions.create(
            model=model, prompt=list(range(20, 40)), max_tokens=8, temperature=0
        )
    return done.choices[0].text


@pytest.mark.spec("A6")
def test_a_folder_of_a_hub_is_fetched_served_and_found_again_without_the_hub(
    hub: StandIn, start_model: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_model("org/Random-1M", *SMALL)
    told = server.client.get("/v1/models").json()["data"]
    assert [each["id"] for each in told] == ["org/Random-1M", "Random-1M"]
    assert told[0]["sampling_defaults"] == {"temperature": 0.5, "top_k": 3}
    first = answer(server, "org/Random-1M")
    assert answer(server, "Random-1M") == first
    assert hub.fetched()["model.safetensors.index.json"] == 1
    assert server.stop() == 0
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = start_model("org/Random-1M", *SMALL)
    assert answer(again, "org/Random-1M") == first
    assert hub.asked == []


def test_a_model_that_the_hub_has_not_ends_the_start_with_one_line(
    hub: StandIn, start_model: Callable[..., Server]
) -> None:
    server = start_model("org/nothing", *SMALL, wait=False)
    assert server.process.wait(60) == 2
    told = server.log.read_text().strip().splitlines()
    assert len(told) == 1
    assert "org/nothing: no such repository, or a private one" in told[0]
