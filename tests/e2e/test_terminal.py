"""`headway chat` and `headway complete` as programs, with the real model."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.server import SLOWNESS, Server, until

HEADWAY = [sys.executable, "-m", "headway.app.cli"]


def test_chat_needs_no_server(server: Server, smollm2_path: str) -> None:
    asked = "What is the capital of France?"
    found = subprocess.run(
        [*HEADWAY, "chat", asked, "--model", smollm2_path,
         "--temperature", "0", "--max-tokens", "12"],
        capture_output=True, text=True, timeout=120 * SLOWNESS, check=True,
    )  # fmt: skip
    answer = server.chat(asked, max_tokens=12)["choices"][0]["message"]["content"]
    assert found.stdout == answer + "\n"


def test_a_model_that_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    found = subprocess.run(
        [*HEADWAY, "chat", "Hi", "--model", str(tmp_path / "none.gguf")],
        capture_output=True, text=True, timeout=120 * SLOWNESS, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stdout == ""
    assert "none.gguf" in found.stderr.splitlines()[-1]


def test_complete_continues_piped_prompts(server: Server) -> None:
    found = subprocess.run(
        [*HEADWAY, "complete", "--url", server.url, "--max-tokens", "6", "--temperature", "0"],
        input="The capital of France is\nOne, two, three,\n",
        capture_output=True, text=True, timeout=60 * SLOWNESS, check=True,
    )  # fmt: skip
    first, second = found.stdout.split("\n", 1)
    assert "Paris" in first
    assert "four" in second


@pytest.mark.spec("A8")
def test_ctrl_c_stops_the_answer_and_not_the_chat(server: Server) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*HEADWAY, "chat", "--url", server.url, "--max-tokens", "6000", "--temperature", "0"],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    shown = Screen(leader)
    try:
        shown.wait_for("/help")
        os.write(leader, b"Count to ten thousand, one number a line.\n")
        until(lambda: not server.is_idle_and_clean(), 30.0, "the answer has begun")
        process.send_signal(signal.SIGINT)
        until(server.is_idle_and_clean, 10.0, "the engine has stopped working on it")
        os.write(leader, b"/help\n")
        shown.wait_for("/reset")
        os.write(leader, b"/exit\n")
        assert process.wait(20 * SLOWNESS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


class Screen:
    """What a program has written to its terminal."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._text = ""
        os.set_blocking(leader, False)

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Returns once the text has appeared since the last call; fails after `seconds`."""
        deadline = time.monotonic() + seconds * SLOWNESS
        while text not in self._text:
            assert time.monotonic() < deadline, f"{text!r} is not in {self._text!r}"
            try:
                self._text += os.read(self._leader, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        self._text = self._text.partition(text)[2]
