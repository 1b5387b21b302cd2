"""When to come again: in the header, as a whole number, and less as time passes."""

import asyncio

import pytest

from headway.core.base.errors import (
    CapacityError,
    DeadlineUnmeetable,
    QueueFull,
    ReplicaNotReady,
    ShuttingDown,
)
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Usage
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, say_hello, site
from tests.upstreams import FakeUpstream, Pen, Seen, front, hello, upstream


class Cooling(FakeReplica):
    """An engine that takes nothing until its time has come; the test says how long that is."""

    def __init__(self) -> None:
        super().__init__()
        self.left_s = 0.0
        self.script = say_hello

    async def hold(self, request_id: str, budget_s: float | None) -> float:
        """Ready when nothing is left of its time."""
        if self.left_s > 0:
            raise ReplicaNotReady("the engine restarts", Seconds(self.left_s))
        return await super().hold(request_id, budget_s)


@pytest.mark.spec("C3")
def test_overload_03_who_must_wait_is_told_how_long_by_the_header_and_nothing_is_sent() -> None:
    async def scenario() -> None:
        first, other = Cooling(), Cooling()
        first.left_s, other.left_s = 7.0, 3.0
        async with site(replica=first, others={("other",): other}) as here:

            async def ask(model: str) -> tuple[int, str | None]:
                answer = await here.client.post(CHAT, json=HI | {"model": model})
                return answer.status_code, answer.headers.get("retry-after")

            assert [await ask("m"), await ask("other")] == [(503, "7"), (503, "3")]
            told = []
            for left in (2.2, 1.9, 0.4):
                other.left_s = left
                told.append(await ask("other"))
            assert told == [(503, "3"), (503, "2"), (503, "1")], "rounded up, and decreasing"
            assert not first.requests
            assert not other.requests, "neither was asked"
            other.left_s = 0.0
            assert await ask("other") == (200, None)
            assert (len(first.requests), len(other.requests)) == (0, 1)

    run(scenario())


@pytest.mark.parametrize("kind", [QueueFull, DeadlineUnmeetable, ShuttingDown])
@pytest.mark.parametrize("stream", [False, True])
def test_overload_03_what_the_engine_refuses_has_its_time_in_the_header(
    kind: type[CapacityError], stream: bool
) -> None:
    def refuse(replica: FakeReplica, request: EngineRequest) -> None:
        replica.put(
            Finished(
                request_id=request.id,
                reason=FinishReason.ERROR,
                usage=Usage(prompt_tokens=1, completion_tokens=0),
                error="full",
                error_code=kind.code,
                retry_after_s=2.1,
            )
        )

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = refuse
        async with site(replica=replica) as here:
            answer = await here.client.post(CHAT, json=HI | {"stream": stream})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
            assert answer.json()["error"]["code"] == kind.code

    run(scenario())


def test_overload_03_an_engine_that_is_away_tells_its_own_time() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.state = ReplicaState.STARTING
        async with site(replica=replica) as here:
            answers = await asyncio.gather(
                *(here.client.post(CHAT, json=HI) for _ in range(3)), here.client.get("/ready")
            )
            assert [a.status_code for a in answers] == [503] * 4
            assert {a.headers["retry-after"] for a in answers[:3]} == {"7"}
            assert not replica.requests

    run(scenario())


class Limited:
    """A script of a server that is asked too often, until the test says otherwise."""

    def __init__(self, retry_after: str) -> None:
        self.retry_after = retry_after

    async def __call__(self, seen: Seen, pen: Pen) -> None:
        """429 with its time."""
        if not self.retry_after:
            return await hello(seen, pen)
        error = {"error": {"message": "too many requests"}}
        await pen.answer(429, error, f"retry-after: {self.retry_after}")


@pytest.mark.spec("C3")
def test_overload_03_servers_that_cool_down_are_left_alone_until_the_first_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = [0.0]
    now = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda self: Seconds(now(self) + ahead[0]))

    async def scenario() -> None:
        slow, quick = Limited("7"), Limited("3")
        async with (
            upstream(slow) as one,
            upstream(quick) as two,
            front([one, two], probe_interval=60.0) as here,
        ):
            both: tuple[FakeUpstream, ...] = (one, two)
            first = await here.chat()
            assert first.status_code == 503
            assert [len(each.seen) for each in both] == [1, 1]
            for passed, wait in ((0.0, "3"), (0.0, "3"), (1.5, "2"), (2.5, "1")):
                ahead[0] = passed
                for streamed in (True, False):
                    refused = await here.chat(stream=streamed)
                    assert refused.status_code == 503
                    assert refused.json()["error"]["code"] == "upstream_busy"
                    assert refused.headers["retry-after"] == wait
            assert [len(each.seen) for each in both] == [1, 1], "neither was asked"
            quick.retry_after = ""
            ahead[0] = 3.2
            assert (await here.chat()).status_code == 200
            assert [len(each.seen) for each in both] == [1, 2]
            slow.retry_after = ""
            ahead[0] = 7.2
            answers = await asyncio.gather(*(here.chat() for _ in range(20)))
            assert {each.status_code for each in answers} == {200}
            assert len(one.seen) > 1

    run(scenario())


def test_overload_03_a_server_that_names_a_very_long_time_is_asked_again_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = [0.0]
    now = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda self: Seconds(now(self) + ahead[0]))

    async def scenario() -> None:
        script = Limited("86400")
        async with upstream(script) as theirs, front([theirs], probe_interval=60.0) as here:
            assert (await here.chat()).status_code == 503
            script.retry_after = ""
            assert (await here.chat()).headers["retry-after"] == "60"
            ahead[0] = 60.1
            assert (await here.chat()).status_code == 200

    run(scenario())
