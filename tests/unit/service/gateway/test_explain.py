import pytest

from headway.core.base.metrics import Outcome
from headway.core.messages.path import CacheMiss
from headway.core.messages.record import RequestRecord, Route
from headway.service.gateway.explain import MISSES, OUTCOMES, explain
from tests.unit.service.store.records import NOON, record


@pytest.mark.spec("M6")
def test_a_request_is_explained_in_order_and_in_plain_words() -> None:
    text = explain(record()).text
    assert text == (
        "This request to chat_completions came from tenant 'acme' of class standard with key k1, "
        "to be answered streamed. It asked for 'm' and went to m (stable) by name. It waited "
        "125.0 ms for its turn. Of its 10 prompt tokens 4 came from the prefix cache: "
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
    assert explain(waited).why["queue"] == "It waited 2.50 s for its turn and was not begun."


def test_every_outcome_and_every_reason_of_a_miss_has_its_words() -> None:
    assert set(OUTCOMES) == {each.value for each in Outcome} - {Outcome.UNAUTHORIZED.value}
    assert set(MISSES) == {each.value for each in CacheMiss}
    assert "as of_tomorrow" in explain(record(outcome="of_tomorrow")).text
