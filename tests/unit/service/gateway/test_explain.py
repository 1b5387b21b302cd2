from collections.abc import Mapping
from typing import Any

import pytest

from headway.core.base.metrics import Outcome
from headway.core.messages.path import CacheMiss
from headway.core.messages.record import RequestRecord, Route
from headway.service.gateway.explain import MISSES, OUTCOMES, explain
from tests.unit.service.gateway.fakes import run
from tests.unit.service.gateway.test_records import Kept
from tests.unit.service.gateway.test_upstream_records import GATEWAY, KEY, books
from tests.unit.service.store.records import NOON, record
from tests.upstreams import CHAT, HI, front, hello, upstream


@pytest.mark.spec("M6")
def test_a_request_is_explained_in_order_and_in_plain_words() -> None:
    text = explain(record()).text
    assert text == (
        "This request to chat_completions came from tenant 'acme' of class standard with key k1, "
        "to be answered streamed. It asked for 'm' and went to m (stable) by name. It waited "
        "125.0 ms in the engine's queue. Of its 10 prompt tokens 4 came from the prefix cache: "
        "nothing that was computed lately goes on like it. The rest of its prompt was computed in "
        "one step and 125.0 ms. It generated 7 tokens, the first after 250.0 ms, until stop, in "
        "1.00 s, with 500.0 ms of device time; all of them were sent. It was answered completely, "
        "after 1.50 s. It costs 0.000030."
    )


@pytest.mark.spec("M6")
def test_whatever_went_otherwise_is_said_and_why() -> None:
    route = Route(
        asked="auto", model="small", version="preview", arm="b", reason="size:small",
        degraded="model",
    )  # fmt: skip
    why = explain(
        record(
            route=route,
            replica="r-2",
            num_chunks=7,
            cached_host_tokens=2,
            preemptions=3,
            preemptions_swapped=1,
            recomputed_tokens=64,
            failovers=2,
            outcome="lost",
            error_code="",
            sent_tokens=5,
            unsure_tokens=1,
        )
    ).why
    assert why["route"] == (
        "It asked for 'auto' and went to small (preview, arm b, replica r-2) by size:small. "
        "To spare it a refusal, a smaller model took it."
    )
    assert "in 7 steps" in why["prompt"]
    assert "2 of them brought back from host memory" in why["cache"]
    assert why["preemption"] == (
        "It was stopped 3 times to make room for others, 1 of those keeping its blocks in host "
        "memory; 64 tokens were computed again."
    )
    assert why["failover"].endswith("at another one, 2 times.")
    assert "5 of them (and perhaps 1 more) were sent" in why["answer"]
    assert why["outcome"].startswith("Its gateway died under it")
    assert why["cost"] == "It costs 0.000030, for the tokens that were surely sent."


@pytest.mark.spec("M6")
@pytest.mark.parametrize(
    ("degraded", "said"),
    [
        ("", "by name."),
        ("max_tokens", "To spare it a refusal, its answer was bounded to 8 tokens."),
        ("answer", "No token of that came in time, so it got the operator's text."),
    ],
)
def test_a_lesser_answer_is_told_by_its_kind(degraded: str, said: str) -> None:
    route = Route(model="m", degraded=degraded, max_tokens=8)
    assert explain(record(route=route)).why["route"].endswith(said)


def test_an_answer_of_one_token_has_one() -> None:
    assert "It generated 1 token," in explain(record(completion_tokens=1)).text


def test_a_refusal_says_what_refused() -> None:
    bare = RequestRecord(id="a", began=NOON, outcome="invalid", endpoint="chat_completions")
    assert explain(bare).text == (
        "This request to chat_completions came from a client without a tenant, to be answered in "
        "one piece. It ended before it was known where it should go. No engine began to work on "
        "it. It was refused because the client must change it. It costs nothing."
    )
    limited = record(outcome="invalid", limit="tokens", prompt_tokens=0, completion_tokens=0)
    assert explain(limited).why["queue"] == "Its tenant's limit of tokens let it go no further."
    waited = record(outcome="rejected_deadline", prompt_tokens=0, queue_s=2.5)
    assert (
        explain(waited).why["queue"] == "It waited 2.50 s in the engine's queue and was not begun."
    )


def elsewhere(**fields: Any) -> Mapping[str, str]:
    """Of a request that another server had."""
    of_engines: dict[str, Any] = {"num_chunks": 0, "miss_reason": "", "device_s": 0.0}
    return explain(record(**of_engines | {"replica": "10.0.0.5:8000"} | fields)).why


@pytest.mark.spec("M6")
def test_of_another_server_it_is_said_what_is_seen_from_here() -> None:
    why = elsewhere()
    assert why["queue"] == (
        "It waited 125.0 ms in this gateway's own line and was then sent on to another server."
    )
    assert why["cache"] == (
        "Of its 10 prompt tokens 4 came from a cache of that server, as it says."
    )
    assert "prompt" not in why
    assert "cache" not in elsewhere(cached_tokens=0)
    assert "own line, tries at other servers included, and" in elsewhere(failovers=2)["queue"]
    assert elsewhere(failovers=2)["failover"] == (
        "A server failed or had no room, and it was sent on to another one, 2 times."
    )
    left = elsewhere(outcome="cancelled", finish="", queue_s=0.0)
    assert left["queue"] == ("It was sent on to another server; how long it waited is not known.")
    refused = elsewhere(outcome="error", finish="", queue_s=0.0, prompt_tokens=0)
    assert "which did not begin to answer" in refused["queue"]
    assert "limit of tokens" in elsewhere(limit="tokens")["queue"]
    both = elsewhere(num_chunks=1, miss_reason="differs")
    assert "by an engine and by another server, and waited 125.0 ms" in both["queue"]
    assert "from the prefix cache" in both["cache"]


def test_of_a_request_that_went_to_a_real_server_the_line_of_the_gateway_is_told() -> None:
    async def scenario() -> None:
        kept = Kept()
        async with (
            upstream(hello) as theirs,
            front([theirs], gateway=GATEWAY, books=books(kept)) as here,
        ):
            assert (await here.client.post(CHAT, json=HI, headers=KEY)).status_code == 200
            why = explain(await kept.one()).why
            assert "in this gateway's own line" in why["queue"]
            assert f"replica {theirs.url.removeprefix('http://')})" in why["route"]

    run(scenario())


def test_what_a_gateway_that_died_did_not_tell_is_not_made_up() -> None:
    why = explain(record(outcome="lost", queue_s=0.0, num_chunks=0)).why
    assert why["queue"] == "How long it waited is not known."


def test_every_outcome_and_every_reason_of_a_miss_has_its_words() -> None:
    assert set(OUTCOMES) == {each.value for each in Outcome} - {Outcome.UNAUTHORIZED.value}
    assert set(MISSES) == {each.value for each in CacheMiss}
    assert "as of_tomorrow" in explain(record(outcome="of_tomorrow")).text
