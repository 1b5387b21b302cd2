"""Two replicas behind one address: their deaths are nobody's business but the log's."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.server import Server, finish_reasons, text_of, until

COMPLETIONS = "/v1/completions"
ASK: dict[str, Any] = {
    "prompt": "Once upon a time there was a fox who",
    "max_tokens": 400,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}


def states(server: Server) -> list[str]:
    """Of its replicas."""
    told = server.client.get("/ready").json()
    return [each["state"] for each in told["replicas"]]


@pytest.mark.spec("M2")
def test_a_stream_over_http_survives_the_death_of_both_replicas(
    start: Callable[..., Server],
) -> None:
    server = start("--replicas", "2", "--max-model-len", "1024")
    assert states(server) == ["ready", "ready"]
    want = server.stream(COMPLETIONS, **ASK)
    engines = [child.pid for child in server.children()]
    assert len(engines) == 2
    events = []
    for event in server.iterate(COMPLETIONS, **ASK):
        events.append(event)
        if len(events) == 5:
            os.kill(engines[0], signal.SIGKILL)
            until(lambda: states(server).count("ready") == 1, 10.0, "one is out")
            assert server.status_of("/ready") == 200
            assert server.complete("Hi", max_tokens=2)["usage"]["completion_tokens"] == 2
            until(lambda: states(server) == ["ready", "ready"], 60.0, "it is back")
            os.kill(engines[1], signal.SIGKILL)
    assert text_of(events) == text_of(want)
    assert finish_reasons(events) == finish_reasons(want) == {0: ["length"]}
    usages = [each["usage"] for each in (*events, *want) if each.get("usage")]
    assert len(usages) == 2, "one each"
    assert [each["completion_tokens"] for each in usages] == [400, 400]
    until(lambda: states(server) == ["ready", "ready"], 60.0, "both are back")
    seen = server.metrics()
    assert seen["headway_requests_continued_total"] >= 1
    assert seen["headway_requests_broken_total"] == 0
    assert seen["headway_engine_restarts_total"] == 2
    assert seen["model_load_balance_skew"] >= 0.0
    until(server.is_idle_and_clean, 5.0, "nothing runs any more")
    said = server.log.read_text()
    assert "request_continued" in said
    assert "replica=0" in said
