"""Weights that change under a running server: no text is made of both."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from tests.e2e.server import Server, until

SCALED = "blk.12.attn_norm.weight"
PROMPT = "The river was wide and slow, and nobody in the village knew where it came from. " * 12
ASK: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "temperature": 0}


def config(file: Path, name: str, path: str) -> None:
    """A configuration with this model alone, found as `chat`."""
    file.write_text(
        f"models:\n  - {{model: {path}, served_model_name: [{name}], max_model_len: 1024}}\n"
        f"routes: {{names: [{{name: chat, pool: {name}}}]}}\n"
    )


def scaled(path: str, folder: Path) -> str:
    """The same model with one layer of it changed."""
    copy = folder / "scaled.gguf"
    shutil.copy(path, copy)
    reader = GGUFReader(copy, "r+")
    (tensor,) = (each for each in reader.tensors if each.name == SCALED)
    tensor.data[:] *= 3.0
    reader.data.flush()
    return str(copy)


def answer(server: Server) -> tuple[str, int, str]:
    """The text, how much of the prompt was cached, and which model says it."""
    got = server.post("/v1/completions", {"model": "chat", **ASK})
    assert got.status_code == 200, got.text
    found = got.json()
    cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found["choices"][0]["text"], cached, got.headers["x-headway-model"]


def reload(server: Server) -> None:
    """Return once the file is in force."""
    known = server.log.read_text().count(" reloaded ")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: server.log.read_text().count(" reloaded ") > known, 60, "it is reloaded")


def test_reload_canary_01_nothing_of_the_old_weights_is_left_in_an_answer_of_the_new(
    tmp_path: Path, smollm2_path: str, start_model: Callable[..., Server]
) -> None:
    other = scaled(smollm2_path, tmp_path)
    fresh = start_model(other, "--max-model-len", "1024").complete(**ASK)["choices"][0]["text"]
    file = tmp_path / "headway.yaml"
    config(file, "old", smollm2_path)
    server = Server(tmp_path, None, "--config", str(file)).wait_ready()
    try:
        old, cached, by = answer(server)
        assert (cached, by) == (0, "old")
        assert old != fresh
        text, cached, _ = answer(server)
        assert text == old
        assert cached >= 160

        long = {**ASK, "max_tokens": 160, "model": "chat"}
        whole = server.complete(**long)["choices"][0]["text"]
        pieces = []
        events = server.iterate("/v1/completions", **long)
        pieces.append(next(events)["choices"][0]["text"])
        config(file, "new", other)
        reload(server)
        assert answer(server) == (fresh, 0, "new")
        assert answer(server)[0] == fresh
        pieces += [each["choices"][0]["text"] for each in events if each["choices"]]
        assert "".join(pieces) == whole, "it ends with the weights that it began with"

        config(file, "old", smollm2_path)
        reload(server)
        assert answer(server) == (old, 0, "old"), "an engine of its own, with an empty cache"
    finally:
        assert server.stop() == 0


def test_reload_canary_01_weights_that_change_under_one_path_are_taken_and_not_mixed(
    tmp_path: Path, smollm2_path: str
) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to(smollm2_path)
    file = tmp_path / "headway.yaml"
    config(file, "same", str(path))
    server = Server(tmp_path, None, "--config", str(file)).wait_ready()
    try:
        old, _, _ = answer(server)
        reload(server)
        assert answer(server)[1] >= 160, "it is as it was, with its cache"
        Path(scaled(smollm2_path, tmp_path)).replace(path)
        reload(server)
        new, cached, by = answer(server)
        assert (cached, by) == (0, "same")
        assert new != old
        assert answer(server)[0] == new
    finally:
        assert server.stop() == 0
