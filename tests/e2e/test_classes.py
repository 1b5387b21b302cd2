"""Classes in front of a user: a VIP among best effort, and overload that is said in time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, strict_json, text_of, until
from tests.no_tls import NO_TLS

COMPLETIONS = "/v1/completions"
TENANTS = ("--tenant", "acme:vip:sk-vip", "web:standard:sk-web", "batch:internal:sk-batch")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
Start = Callable[..., Server]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Stream:
    """A streamed completion read in a thread of its own."""

    def __init__(self, server: Server, key: str, prompt: str, max_tokens: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.begun, self.ended = threading.Event(), threading.Event()
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self._thread = threading.Thread(target=self._read, args=(server, key, body))
        self._thread.start()

    def _read(self, server: Server, key: str, body: dict[str, Any]) -> None:
        with (
            httpx.Client(timeout=240.0, verify=NO_TLS) as client,
            client.stream(
                "POST", server.url + COMPLETIONS, json=body, headers=bearer(key)
            ) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(strict_json(line[6:]))
                    self.begun.set()
                elif line == "data: [DONE]":
                    self.ended.set()

    def result(self) -> str:
        """The whole text, once it has ended."""
        self._thread.join(240.0)
        assert self.ended.is_set(), "no end"
        return text_of(self.events)


@pytest.mark.spec("C7")
@pytest.mark.spec("C1")
def test_a_vip_gets_its_first_token_while_best_effort_holds_all_slots_and_none_is_lost(
    start: Start,
) -> None:
    server = start("--max-num-seqs", "2", *TENANTS)
    prompts = ["Once upon a time", "The history of the bridge"]
    alone = [Stream(server, "sk-batch", prompt, 300).result() for prompt in prompts]
    batch = [Stream(server, "sk-batch", prompt, 300) for prompt in prompts]
    assert all(stream.begun.wait(60.0) for stream in batch)
    vip = Stream(server, "sk-vip", "The capital of France is", 8)
    assert vip.begun.wait(60.0)
    assert not any(stream.ended.is_set() for stream in batch), "it did not wait for a slot"
    vip.result()
    assert [stream.result() for stream in batch] == alone, "as if undisturbed"
    assert server.metrics()["headway_class_preemptions_total"] == 1
    until(server.is_idle_and_clean, 5.0, "idle and clean")


@pytest.mark.spec("C6")
def test_overload_is_a_503_with_retry_after_and_answers_and_refusals_are_all_that_was_sent(
    start: Start,
) -> None:
    server = start("--max-num-seqs", "4", "--slo-ttft", "vip=0.05", "standard=0.4", *TENANTS)

    def ask(number: int, key: str = "sk-web") -> httpx.Response:
        words = " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(500))
        body = {"prompt": f"{number} {words}", "max_tokens": 16, "ignore_eos": True}
        url = server.url + COMPLETIONS
        return httpx.post(url, json=body, headers=bearer(key), timeout=240, verify=NO_TLS)

    for number in range(4):  # rates are measured before anybody is refused
        assert ask(number).status_code == 200
    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(ask, number) for number in range(100, 140)]
        answers = [each.result() for each in asked]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 1 <= len(refused) < len(answers)
    for answer in refused:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] in {"deadline_unmeetable", "queue_full"}
    times = {
        is_ok: [a.elapsed.total_seconds() for a in answers if (a.status_code == 200) == is_ok]
        for is_ok in (False, True)
    }
    assert max(times[False]) < max(times[True]) / 2, "before the time is spent"
    codes = {answer.json()["error"]["code"] for answer in refused}
    assert "deadline_unmeetable" in codes
    for answer in answers:
        if answer.status_code == 200:
            assert answer.json()["usage"]["completion_tokens"] == 16
    until(server.is_idle_and_clean, 5.0, "idle and clean")
    ready = server.client.get("/ready").json()
    assert ready["rung"] == "normal"
