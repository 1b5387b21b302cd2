from headway.core.base.units import Seconds
from headway.core.messages.health import StepReport
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Sampling,
    Started,
    Tokens,
    Usage,
)
from headway.core.route.policy import Choice, LeastWork, PrefixAffinity
from headway.core.route.router import Router
from tests.unit.core.route.test_load import STATUS

NOW = Seconds(5.0)
USAGE = Usage(prompt_tokens=1, completion_tokens=4)


def asked(request_id: str = "r", prompt_tokens: int = 100) -> EngineRequest:
    return EngineRequest(
        id=request_id, prompt=(1,) * prompt_tokens, sampling=Sampling(max_tokens=4, seed=0)
    )


def send(router: Router, up: set[str], request_id: str) -> Choice | None:
    choice = router.choose(up, asked(request_id), NOW)
    if choice is not None:
        router.sent(choice, request_id, asked(request_id))
    return choice


def tell(router: Router, replica: str, *events: Event, now: Seconds = NOW) -> None:
    router.told(replica, StepReport(events=events, status=STATUS), now)


def failed(request_id: str, code: str | None) -> Finished:
    return Finished(request_id=request_id, reason=FinishReason.ERROR, usage=USAGE, error_code=code)


def test_only_those_that_are_up_are_chosen() -> None:
    router = Router(["0", "1"], LeastWork())
    choice = send(router, {"1"}, "r")
    assert choice is not None
    assert choice.id == "1"
    assert send(router, set(), "s") is None


def test_requests_go_to_each_in_turn_while_nothing_is_known() -> None:
    router = Router(["0", "1"], LeastWork())
    sent = [send(router, {"0", "1"}, f"r{number}") for number in range(4)]
    assert [each.id for each in sent if each is not None] == ["0", "1", "0", "1"]


def test_one_that_fails_requests_is_ejected_and_one_that_refuses_them_is_not() -> None:
    router = Router(["0"], LeastWork())
    for code in ("queue_full", "deadline_unmeetable", "context_length_exceeded"):
        tell(router, "0", failed("r", code), failed("s", code), failed("t", code))
    assert not router.is_ejected("0", NOW)
    tell(router, "0", failed("r", None), failed("s", None), failed("t", None))
    assert router.is_ejected("0", NOW)
    assert send(router, {"0"}, "r") is None


def test_one_that_is_back_gets_more_with_each_first_token() -> None:
    router = Router(["0", "1"], LeastWork())
    router.back("0", NOW)
    up = {"0", "1"}
    first = [send(router, up, f"a{number}") for number in range(6)]
    mine = [f"a{n}" for n, each in enumerate(first) if each is not None and each.id == "0"]
    assert len(mine) == 1
    tell(router, "0", Started(request_id=mine[0], at=NOW, cached_tokens=0))
    token = Tokens(request_id=mine[0], choice=0, token_ids=(1,), text="a", at=NOW)
    tell(router, "0", token, token)
    second = [send(router, up, f"b{number}") for number in range(6)]
    assert [each.id for each in second if each is not None].count("0") == 1, "two at a time now"


def test_one_that_is_back_takes_all_where_there_is_no_other() -> None:
    router = Router(["0", "1"], LeastWork())
    router.back("0", NOW)
    sent = [send(router, {"0"}, f"r{number}") for number in range(5)]
    assert [each.id for each in sent if each is not None] == ["0"] * 5


def test_what_is_cached_and_what_was_emitted_count_as_little_and_as_more_work() -> None:
    router = Router(["0"], PrefixAffinity("m", 100))
    send(router, {"0"}, "r")
    before = router.book.work("0")
    tell(router, "0", Finished(request_id="r", reason=FinishReason.LENGTH, usage=USAGE))
    assert router.book.in_flight("0") == 0
    send(router, {"0"}, "s")
    assert router.book.work("0") < before, "its prompt is known there"


def test_a_lost_replica_is_left_with_nothing() -> None:
    router = Router(["0"], LeastWork())
    send(router, {"0"}, "r")
    tell(router, "0", Started(request_id="r", at=NOW, cached_tokens=0))
    router.lost("0")
    assert router.book.in_flight("0") == 0
    assert router.book.work("0") == 0.0
