"""One complete record a request, for every way that it can end."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from operator import contains
from typing import Any

import msgspec
import pytest

from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import (
    CacheMiss,
    EngineRequest,
    Finished,
    FinishReason,
    Started,
    Usage,
)
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits
from headway.service.gateway import journey
from headway.service.gateway.books import NoLedger, NoLimits
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    DEADLINE_S,
    HI,
    NATIVE,
    FakeReplica,
    Site,
    close,
    run,
    say_hello,
    site,
    until,
)

KEY = {"authorization": "Bearer secret-of-acme"}
TENANTED = GatewaySettings(tenant=("acme:vip:secret-of-acme",))
STREAMED = HI | {"stream": True}


class Kept:
    """A ledger that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[RequestRecord] = []
        self.begun: list[RequestRecord] = []
        self.given: list[int] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def opened(self, record: RequestRecord) -> None:
        self.begun.append(record)

    def giving(self, request_id: str, num_tokens: int) -> None:
        self.given.append(num_tokens)

    def gave(self, request_id: str, num_tokens: int, num_unsent: Callable[[], int]) -> None:
        assert self.given[-1] == num_tokens
        assert num_unsent() >= 0

    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        self.told.append(record)

    def closes(self, rest: Callable[[], Coroutine[Any, Any, RequestRecord]]) -> None:
        async def keep() -> None:
            self.told.append(await rest())

        task = asyncio.get_running_loop().create_task(keep())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def one(self) -> RequestRecord:
        """The only record so far, once it is there."""
        await until(lambda: bool(self.told))
        (record,) = self.told
        return record


class Prices:
    """A prompt token costs 100, a cached one 10, another one 1."""

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        assert model == "m"
        return 100 * (prompt - cached) + 10 * cached + completion


class Settled(NoLimits):
    """Grants everything, and keeps what was used."""

    def __init__(self) -> None:
        self.used: list[tuple[int, int]] = []

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Keep it."""
        self.used.append((tokens, cost))


class NoMore(NoLimits):
    """Denies."""

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """There is nothing left."""
        return Denied(kind=LimitKind.TOKENS, retry_after_s=3.0, limit=100)


def books(kept: Kept, limits: NoLimits | None = None) -> Books:
    return Books(limits or NoLimits(), kept, Prices(), time.time, "gateway-1")


def told(replica: FakeReplica, request: EngineRequest) -> None:
    """A script: two of the prompt's tokens are cached, and the engine tells all of it."""
    miss = CacheMiss.EVICTED
    replica.put(
        Started(
            request_id=request.id,
            at=Seconds(0.0),
            cached_tokens=2,
            cached_host_tokens=1,
            miss_reason=miss,
        )
    )
    for _ in range(3):
        replica.say(request.id, "x")
    replica.end_choice(request.id)
    replica.put(
        Finished(
            request_id=request.id,
            reason=FinishReason.STOP,
            usage=Usage(
                prompt_tokens=len(request.prompt),
                completion_tokens=4,  # the end token has no text
                cached_tokens=2,
                cached_host_tokens=1,
                queue_s=1.0,
                prefill_s=2.0,
                decode_s=3.0,
                device_s=4.0,
                num_chunks=5,
                preemptions=6,
                preemptions_swapped=3,
                recomputed_tokens=7,
            ),
        )
    )


def has_told(kept: Kept, count: int) -> bool:
    return len(kept.told) == count


async def asked(here: Site, body: dict[str, Any], path: str = CHAT) -> Any:
    return await here.client.post(path, json=body, headers=KEY | {"x-request-id": "mine"})


@pytest.mark.spec("A9")
def test_a_complete_answer_is_recorded_with_all_that_is_known_of_it() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        replica.script = told
        async with site(replica=replica, settings=TENANTED, books=books(kept)) as here:
            began = time.time()
            answer = await asked(here, HI | {"model": "m-alias", "user": "Ann", "max_tokens": 9})
            record = await kept.one()
            assert answer.status_code == 200
            assert began - 1 < record.began < time.time() + 1
            assert 0 < record.took_s < DEADLINE_S
            assert record.first_token_s is not None
            assert 0 < record.first_token_s <= record.took_s + 0.1
            assert record.user
            assert "Ann" not in str(record)
            assert record.route is not None
            assert (record.route.asked, record.route.model) == ("m-alias", "m")
            (request,) = replica.requests.values()
            variable: dict[str, Any] = dict.fromkeys(("began", "took_s", "first_token_s"), 0)
            variable |= {"id": request.id, "user": ""}
            assert record.id in request.id
            assert msgspec.structs.replace(record, **variable) == RequestRecord(
                **variable,
                shown_id="mine",
                gateway="gateway-1",
                tenant="acme",
                endpoint="chat_completions",
                slo_class="vip",
                route=record.route,
                outcome="ok",
                finish="stop",
                num_choices=1,
                max_tokens=9,
                prompt_tokens=2,
                cached_tokens=2,
                cached_host_tokens=1,
                completion_tokens=4,
                sent_tokens=4,
                recomputed_tokens=7,
                queue_s=1.0,
                prefill_s=2.0,
                decode_s=3.0,
                device_s=4.0,
                num_chunks=5,
                preemptions=6,
                preemptions_swapped=3,
                miss_reason="evicted",
                cost=24,
            )

    run(scenario())


@pytest.mark.spec("M5")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, NATIVE])
def test_a_streamed_answer_is_recorded_to_the_token_as_one_in_one_piece(path: str) -> None:
    async def scenario() -> None:
        found = []
        for is_stream in (True,) if path == NATIVE else (False, True):
            kept, replica = Kept(), FakeReplica()
            replica.script = say_hello
            async with site(replica=replica, books=books(kept)) as here:
                body: dict[str, Any] = {"prompt": "Hi"} if path == COMPLETIONS else HI
                answer = await asked(here, body | {"stream": is_stream}, path)
                assert answer.status_code == 200, answer.text
                record = await kept.one()
                assert (record.is_stream, record.outcome) == (is_stream, "ok")
                found.append((record.prompt_tokens, record.completion_tokens, record.sent_tokens))
                opened = [(each.id, each.outcome, each.prompt_tokens) for each in kept.begun]
                assert opened == [(record.id, "lost", 0), (record.id, "lost", 2)]
                assert [each.route for each in kept.begun] == [record.route, record.route]
        assert set(found) == {(2, 3, 3)}

    run(scenario())


def test_choices_and_prompts_of_one_request_are_one_record_with_their_sum() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        replica.script = say_hello
        async with site(replica=replica, books=books(kept)) as here:
            body = {"prompt": ["ab", "abc"], "n": 2, "max_tokens": 5}
            usage = (await asked(here, body, COMPLETIONS)).json()["usage"]
            record = await kept.one()
            assert (record.prompt_tokens, record.completion_tokens) == (5, 12)
            assert usage["completion_tokens"] == record.sent_tokens == 12
            assert (record.num_choices, record.max_tokens) == (4, 20)

    run(scenario())


def test_a_prompt_that_was_only_scored_has_no_completion_as_in_its_usage() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        replica.script = say_hello
        async with site(replica=replica, books=books(kept)) as here:
            body = {"prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 1}
            usage = (await asked(here, body, COMPLETIONS)).json()["usage"]
            record = await kept.one()
            assert usage["completion_tokens"] == record.completion_tokens == record.sent_tokens == 0
            assert record.prompt_tokens == 2

    run(scenario())


@pytest.mark.parametrize(
    ("body", "outcome", "code"),
    [
        ({"messages": 5}, "invalid", None),
        (HI | {"model": "no-such-model"}, "invalid", "model_not_found"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "invalid", None),
    ],
)
def test_a_request_that_its_client_must_change_is_recorded_and_costs_nothing(
    body: dict[str, Any], outcome: str, code: str | None
) -> None:
    async def scenario() -> None:
        kept = Kept()
        async with site(settings=TENANTED, books=books(kept)) as here:
            error = (await asked(here, body)).json()["error"]
            record = await kept.one()
            assert (record.outcome, record.tenant) == (outcome, "acme")
            assert record.error_code == (code or error["code"] or "")
            assert (record.prompt_tokens, record.completion_tokens, record.cost) == (0, 0, 0)
            assert {each.prompt_tokens for each in kept.begun} <= {0}

    run(scenario())


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_what_a_request_took_does_not_depend_on_a_clock_that_is_set_meanwhile(by_s: float) -> None:
    async def scenario() -> None:
        kept, set_by = Kept(), 0.0
        set_clock = books(kept)._replace(wall_clock=lambda: time.time() + set_by)

        def script(replica: FakeReplica, request: EngineRequest) -> None:
            nonlocal set_by
            set_by = by_s
            say_hello(replica, request)

        replica = FakeReplica()
        replica.script = script
        async with site(replica=replica, books=set_clock, settings=TENANTED) as here:
            assert (await here.client.post(CHAT, json=HI, headers=KEY)).status_code == 200
            record = await kept.one()
            assert record.first_token_s is not None
            assert record.first_token_s <= record.took_s < DEADLINE_S
            assert abs(record.began - time.time()) < DEADLINE_S

    run(scenario())


def test_what_nobody_is_known_to_have_asked_is_not_recorded() -> None:
    async def scenario() -> None:
        kept = Kept()
        async with site(settings=TENANTED, books=books(kept)) as here:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                answer = await here.client.post(CHAT, json=HI, headers=headers)
                assert answer.status_code == 401
            assert (await here.outcomes())["unauthorized"] == 2
            assert (kept.told, kept.begun) == ([], [])

    run(scenario())


def test_a_refusal_by_a_limit_names_the_limit() -> None:
    async def scenario() -> None:
        kept = Kept()
        limited = LimitTable(RateLimitSettings(default=Limits(tokens_per_minute=100)))
        counted = books(kept, NoMore())
        async with site(settings=TENANTED, books=counted, rate_limits=limited) as here:
            assert (await asked(here, HI)).status_code == 429
            record = await kept.one()
            assert (record.limit, record.cost, len(kept.begun)) == ("tokens", 0, 1)

    run(scenario())


def test_refusals_for_want_of_capacity_are_told_apart() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        engine = EngineSettings(max_num_seqs=1, max_waiting_requests=1)
        async with site(replica=replica, engine=engine, books=books(kept)) as here:
            replica.state = ReplicaState.STARTING
            await asked(here, HI)
            replica.state = ReplicaState.READY
            waiting = asyncio.create_task(asked(here, HI | {"n": 2}))
            (name,) = await here.calls(1)
            await asked(here, HI)
            replica.finish(name)
            await waiting
            replica.script = lambda fake, request: fake.fail(
                request.id, "too late", "deadline_unmeetable"
            )
            await asked(here, HI)
            assert [each.outcome for each in kept.told] == [
                "rejected_not_ready",
                "rejected_queue_full",
                "ok",
                "rejected_deadline",
            ]
            refused = [each for each in kept.told if each.outcome != "ok"]
            assert {(each.prompt_tokens, each.cost) for each in refused} == {(0, 0)}

    run(scenario())


def test_a_replica_that_dies_before_and_within_an_answer() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            asking = asyncio.create_task(asked(here, STREAMED))
            (first,) = await here.calls(1)
            replica.lose(first)
            assert (await asking).status_code == 503
            asking = asyncio.create_task(asked(here, STREAMED))
            second = (await here.calls(2))[1]
            replica.start(second)
            replica.say(second, "a")
            await here.read(second)
            replica.say(second, "b")
            await here.read(second)
            replica.lose(second)
            assert (await asking).text.count("error") >= 1
            await until(lambda: len(kept.told) == 2)
            before, within = kept.told
            assert (before.outcome, before.prompt_tokens, before.cost) == ("error", 0, 0)
            assert (within.outcome, within.completion_tokens, within.sent_tokens) == ("error", 2, 2)
            assert within.cost == 202
            assert within.error_code

    run(scenario())


def test_an_answer_in_one_piece_that_fails_was_not_sent_and_is_not_paid() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            asking = asyncio.create_task(asked(here, HI))
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "a")
            await here.read(name)
            replica.lose(name)
            assert (await asking).status_code == 503
            record = await kept.one()
            assert (record.completion_tokens, record.sent_tokens, record.cost) == (1, 0, 0)

    run(scenario())


@pytest.mark.spec("M5")
def test_what_the_engine_made_for_a_client_that_left_is_recorded_with_what_it_took() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            _, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "x")
            await here.read(name)
            await close(writer)
            await until(lambda: replica.cancelled == [name])
            usage = Usage(prompt_tokens=2, completion_tokens=3, device_s=0.5, queue_s=0.25)
            end = Finished(request_id=name, reason=FinishReason.CANCELLED, usage=usage)
            assert kept.told == []
            replica.boxes[name].put(end)
            record = await kept.one()
            assert (record.outcome, record.finish) == ("cancelled", "cancelled")
            assert (record.completion_tokens, record.sent_tokens) == (3, 1)
            assert (record.device_s, record.queue_s, record.cost) == (0.5, 0.25, 203)

    run(scenario())


@pytest.mark.spec("M5")
@pytest.mark.parametrize("has_ledger", [True, False])
def test_limits_are_settled_for_what_the_ledger_has_of_a_client_that_left(
    has_ledger: bool,
) -> None:
    async def scenario() -> None:
        kept, replica, limits = Kept(), FakeReplica(), Settled()
        limited = LimitTable(RateLimitSettings(default=Limits(monthly_budget=10**9)))
        ledger: journey.Ledger = kept if has_ledger else NoLedger()
        both = Books(limits, ledger, Prices(), time.time, "gateway-1")
        async with site(replica=replica, books=both, rate_limits=limited) as here:
            _, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "x")
            await here.read(name)
            await close(writer)
            await until(lambda: replica.cancelled == [name])
            usage = Usage(prompt_tokens=2, completion_tokens=9)  # eight of them after that
            reason = FinishReason.CANCELLED
            replica.boxes[name].put(Finished(request_id=name, reason=reason, usage=usage))
            await until(lambda: bool(limits.used))
            assert limits.used == [(2 + 9, 209)]
            if has_ledger:
                record = await kept.one()
                assert record.prompt_tokens + record.completion_tokens == limits.used[0][0]
                assert record.cost == limits.used[0][1]

    run(scenario())


def test_limits_do_not_wait_for_an_engine_that_says_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journey, "SETTLE_S", 0.01)

    async def scenario() -> None:
        kept, replica, limits = Kept(), FakeReplica(), Settled()
        limited = LimitTable(RateLimitSettings(default=Limits(concurrent_requests=1)))
        both = books(kept, limits)
        async with site(replica=replica, books=both, rate_limits=limited) as here:
            _, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "x")
            await here.read(name)
            await close(writer)
            await until(lambda: bool(limits.used))
            assert limits.used == [(2 + 1, 201)]  # what is known; the ledger goes on waiting
            assert kept.told == []
            usage = Usage(prompt_tokens=2, completion_tokens=9)
            reason = FinishReason.CANCELLED
            replica.boxes[name].put(Finished(request_id=name, reason=reason, usage=usage))
            assert (await kept.one()).completion_tokens == 9
            assert len(limits.used) == 1

    run(scenario())


def test_an_engine_that_says_no_more_of_a_cancelled_request_does_not_keep_its_record_back() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            _, writer = await here.send(CHAT, HI)
            (name,) = await here.calls(1)
            replica.start(name)
            await here.read(name)
            await close(writer)
            await until(lambda: replica.cancelled == [name])
            replica.lose(name)
            record = await kept.one()
            assert (record.outcome, record.prompt_tokens, record.sent_tokens) == ("cancelled", 2, 0)

    run(scenario())


def test_a_client_that_closes_its_side_has_received_exactly_what_is_recorded() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            for count in range(1, 30):
                reader, writer = await here.send(CHAT, STREAMED)
                name = (await here.calls(count))[-1]
                replica.start(name)
                for i in range(40):
                    replica.say(name, "x")
                    if i == count:
                        writer.write_eof()
                    if i % 3 == 0:
                        await asyncio.sleep(0)
                received = (await reader.read()).decode()
                await until(partial(contains, replica.cancelled, name))
                replica.lose(name)
                await until(partial(has_told, kept, count))
                num_received = sum(
                    len(line.split('"content":"')[1].split('"')[0])
                    for line in received.splitlines()
                    if '"content":"' in line
                )
                assert kept.told[-1].sent_tokens == num_received
                await close(writer)

    run(scenario())


def test_a_request_that_a_stop_ends_is_recorded_as_failed() -> None:
    async def scenario() -> None:
        kept, replica = Kept(), FakeReplica()
        async with site(replica=replica, books=books(kept)) as here:
            asking = asyncio.create_task(asked(here, STREAMED))
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "x")
            await here.read(name)
            here.gateway.abort()
            await asking
            replica.lose(name)
            record = await kept.one()
            assert (record.outcome, record.sent_tokens, record.cost) == ("error", 1, 201)

    run(scenario())


def test_a_user_has_another_name_at_every_tenant_and_the_same_one_each_time() -> None:
    async def scenario() -> None:
        users = []
        settings = GatewaySettings(tenant=("acme:vip:secret-of-acme", "beta:standard:other-key"))
        for key in ("secret-of-acme", "secret-of-acme", "other-key"):
            kept, replica = Kept(), FakeReplica()
            replica.script = say_hello
            async with site(replica=replica, settings=settings, books=books(kept)) as here:
                headers = {"authorization": f"Bearer {key}"}
                await here.client.post(CHAT, json=HI | {"user": "Ann"}, headers=headers)
                users.append((await kept.one()).user)
        assert users[0] == users[1] != users[2]

    run(scenario())
