"""Several replicas as one: no stream ends with the replica that it began at."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import ReplicaLost, ReplicaNotReady, StartError
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Sampling,
    Started,
    Tokens,
)
from headway.core.route.retry import RetrySettings
from headway.core.route.router import RouterSettings
from headway.service.control.replica_set import ReplicaSetSettings
from headway.service.control.supervise import Observers
from headway.service.wire.transport import ReplicaState
from tests.fakes import greedy, request
from tests.unit.service.control.members import Reader, Site, settle

SAMPLED = Sampling(
    max_tokens=100,
    seed=7,
    temperature=1.0,
    repetition_penalty=1.1,
    num_logprobs=0,
    ignore_eos=True,
)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def seen(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What a client sees, choice by choice, however it is cut into events."""
    found: dict[int, list[Any]] = {}
    for event in events:
        if isinstance(event, Tokens):
            got = found.setdefault(event.choice, [(), "", (), None, None])
            got[0] += event.token_ids
            got[1] += event.text
            got[2] += event.logprobs
            got[3:] = [event.finish_reason, event.stop_reason]
    return [(choice, *got) for choice, got in sorted(found.items())]


async def undisturbed(asked: EngineRequest) -> Reader:
    site = await Site(1).ready()
    reader = site.read(asked)
    await site.until(reader.task.done)
    await site.set.stop()
    return reader


def check_same(got: Reader, want: Reader) -> None:
    assert seen(got.events) == seen(want.events)
    assert Counter(type(each) for each in got.events if not isinstance(each, Tokens)) == {
        Started: 1,
        Finished: 1,
    }
    assert {each.request_id for each in got.events} == {each.request_id for each in want.events}
    assert got.end.reason is want.end.reason
    usage, expected = got.end.usage, want.end.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (
        expected.prompt_tokens,
        expected.completion_tokens,
        expected.cached_tokens,
    )


@pytest.mark.spec("M2")
def test_a_stream_survives_the_death_of_its_replica_at_every_token_index() -> None:
    """A hundred kills, each in another stream and one token later than the last one."""

    async def test() -> None:
        asked = request("r", range(40), sampling=SAMPLED)
        want = await undisturbed(asked)
        for index in range(100):
            site = await Site(2).ready()
            reader = site.read(asked)
            await site.tokens(reader, index)
            first = site.working_on(reader)
            first.kill()
            await site.until(reader.task.done)
            check_same(reader, want)
            assert reader.end.failovers == 1
            assert site.working_on(reader) is not first
            await site.set.stop()

    run(test())


@pytest.mark.spec("M2")
def test_one_stream_survives_a_death_after_each_of_its_tokens() -> None:
    async def test() -> None:
        asked = request("r", range(40), sampling=SAMPLED)
        want = await undisturbed(asked)
        site = await Site(2).ready()
        reader = site.read(asked)
        for index in range(1, 100):
            await site.tokens(reader, index)
            working = site.working_on(reader)
            working.kill()
            await settle()
            working.come_back()
        await site.until(reader.task.done)
        check_same(reader, want)
        assert reader.end.failovers == 99
        routed = site.set.view().routed
        assert routed is not None
        assert (routed.continued, routed.broken) == (99, 0)
        await site.set.stop()

    run(test())


@pytest.mark.spec("M2")
def test_several_choices_with_stops_survive_together() -> None:
    async def test() -> None:
        sampling = msgspec.structs.replace(SAMPLED, max_tokens=30, stop=("\x01", "q", "zz"))
        for seed in range(5):
            asked = request(
                "r", range(9), n=3, sampling=msgspec.structs.replace(sampling, seed=seed)
            )
            want = await undisturbed(asked)
            for index in range(0, want.num_tokens - 1, 4):
                site = await Site(2).ready()
                reader = site.read(asked)
                await site.tokens(reader, index)
                site.working_on(reader).kill()
                await site.until(reader.task.done)
                check_same(reader, want)
                await site.set.stop()

    run(test())


def test_a_slow_reader_loses_nothing_that_it_has_not_read() -> None:
    async def test() -> None:
        asked = request("r", range(9), sampling=msgspec.structs.replace(SAMPLED, max_tokens=20))
        want = await undisturbed(asked)
        site = await Site(2).ready()
        box = site.set.call(asked)
        for _ in range(6):
            await site.turn()
        next(m for m in site.members if m.received).kill()
        await site.turn()
        reader = Reader(box)
        await site.until(reader.task.done)
        check_same(reader, want)

    run(test())


def test_a_request_that_had_not_begun_is_sent_again_from_the_start() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        asked = msgspec.structs.replace(request("r", sampling=greedy(4)), first_token_budget_s=9.0)
        reader = site.read(asked)
        first = next(m for m in site.members if m.received)
        first.kill()
        await site.until(reader.task.done)
        assert reader.end.reason is FinishReason.LENGTH
        [again] = next(m for m in site.members if m is not first).received
        assert again.emitted == ()
        assert again.first_token_budget_s == 9.0
        routed = site.set.view().routed
        assert routed is not None
        assert (routed.retried, routed.continued) == (1, 0)

    run(test())


def test_retries_before_the_first_token_end_with_their_budget() -> None:
    async def test() -> None:
        retries = RetrySettings(share=0.0, least=1)
        settings = ReplicaSetSettings(replicas=2, route=RouterSettings(retries=retries))
        site = await Site(settings=settings).ready()
        readers = [site.read(request(f"r{i}", range(i, i + 9))) for i in range(6)]
        busiest = max(site.members, key=lambda m: len(m.received))
        waiting = len(busiest.received)
        assert waiting >= 2
        busiest.kill()
        await site.until(lambda: all(reader.task.done() for reader in readers))
        lost = [reader for reader in readers if reader.error is not None]
        assert len(lost) == waiting - 1
        assert all(isinstance(reader.error, ReplicaLost) for reader in lost)
        routed = site.set.view().routed
        assert routed is not None
        assert (routed.retried, routed.broken) == (1, waiting - 1)

    run(test())


def test_a_request_that_kills_every_replica_is_given_up() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        reader = site.read(request("poison"))
        kills = 0
        while not reader.task.done():
            working = site.working_on(reader)
            working.kill()
            kills += 1
            await settle()
            working.come_back()
            await settle()
        assert isinstance(reader.error, ReplicaLost)
        assert kills == RetrySettings().in_a_row + 1

    run(test())


def test_a_stream_waits_for_a_replica_to_come_back_when_none_is_left() -> None:
    async def test() -> None:
        asked = request("r", range(9), sampling=msgspec.structs.replace(SAMPLED, max_tokens=20))
        want = await undisturbed(asked)
        site = await Site(2).ready()
        reader = site.read(asked)
        await site.until(lambda: reader.num_tokens >= 5)
        for member in site.members:
            member.kill()
        await settle()
        assert not reader.task.done()
        assert site.set.view().state is ReplicaState.STARTING
        with pytest.raises(ReplicaNotReady):
            site.set.call(request("other"))
        site.members[1].come_back()
        await site.until(reader.task.done)
        check_same(reader, want)

    run(test())


def test_a_stream_does_not_wait_for_ever() -> None:
    async def test() -> None:
        site = await Site(settings=ReplicaSetSettings(replicas=2, failover_wait_s=5.0)).ready()
        reader = site.read(request("r", sampling=SAMPLED))
        await site.until(lambda: reader.num_tokens >= 5)
        for member in site.members:
            member.kill()
        await settle()
        site.clock.advance(6.0)
        site.members[0].move(ReplicaState.STARTING, "still loading")
        await settle()
        assert isinstance(reader.error, ReplicaLost)
        assert "was killed" in reader.error.message
        assert reader.error.retry_after_s == 3.0

    run(test())


@pytest.mark.spec("M2")
def test_keepalive_timeouts_02_what_a_stalled_replica_has_goes_on_elsewhere() -> None:
    async def test() -> None:
        asked = [
            request(f"r{i}", range(i, i + 9), sampling=msgspec.structs.replace(SAMPLED, seed=i))
            for i in range(4)
        ]
        want = [await undisturbed(each) for each in asked]
        site = await Site(2).ready()
        readers = [site.read(each) for each in asked]
        await site.until(lambda: all(reader.num_tokens >= 7 for reader in readers))
        stalled = site.members[0]
        assert stalled.received
        stalled.move(ReplicaState.STALLED, "no sign of life for 10.0 s")
        await site.until(lambda: all(reader.task.done() for reader in readers))
        for got, expected in zip(readers, want, strict=True):
            check_same(got, expected)
        stalled.move(ReplicaState.READY, "ready")
        for each in stalled.received:  # what the commands that waited for it say
            stalled.cancel(each.id)
        view = site.set.view()
        assert [member.in_flight for member in view.members] == [0, 0]

    run(test())


def test_a_stalled_replica_keeps_its_requests_while_no_other_can_go_on() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        reader = site.read(request("r", sampling=msgspec.structs.replace(SAMPLED, max_tokens=20)))
        await site.until(lambda: reader.num_tokens >= 3)
        first = next(m for m in site.members if m.received)
        other = next(m for m in site.members if m is not first)
        other.kill()
        first.move(ReplicaState.STALLED, "no step")
        await settle()
        assert site.set.view().state is ReplicaState.STALLED
        first.move(ReplicaState.READY, "ready")
        await site.until(lambda: reader.num_tokens >= 6)
        assert reader.events[-1].request_id == "r"
        first.move(ReplicaState.STALLED, "no step")
        other.come_back()
        await site.until(reader.task.done)
        assert reader.end.failovers == 1

    run(test())


def test_a_full_replica_is_not_the_last_word() -> None:
    async def test() -> None:
        site = await Site(2, engine={"max_num_seqs": 1, "max_waiting_requests": 1}).ready()
        for number in range(2):  # which the router knows nothing of
            site.members[0].core.add(request(f"other{number}"), site.clock.now())
        reader = site.read(request("r", sampling=greedy(3)))
        await site.until(reader.task.done)
        assert reader.end.reason is FinishReason.LENGTH
        assert [len(member.received) for member in site.members] == [1, 1]
        assert (reader.end.replica, reader.end.failovers) == ("1", 1)

    run(test())


def test_a_request_that_no_replica_has_room_for_is_refused() -> None:
    async def test() -> None:
        site = await Site(2, engine={"max_num_seqs": 1, "max_waiting_requests": 1}).ready()
        readers = [site.read(request(f"r{i}", sampling=greedy(3))) for i in range(8)]
        await site.until(lambda: all(reader.task.done() for reader in readers))
        codes = Counter(reader.end.error_code for reader in readers)
        assert codes == {None: 4, "queue_full": 4}
        assert sum(len(member.received) for member in site.members) == 4 + 2 * 4

    run(test())


def test_a_cancelled_request_ends_once_wherever_it_is() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        first, second = (site.read(request(f"r{i}", sampling=SAMPLED)) for i in range(2))
        await site.until(lambda: first.num_tokens >= 3)
        site.set.cancel("r0")
        await site.until(first.task.done)
        assert first.end.reason is FinishReason.CANCELLED
        for member in site.members:
            member.kill()
        await settle()
        site.set.cancel("r1")
        site.set.cancel("never seen")
        site.members[0].move(ReplicaState.STARTING, "still loading")
        await settle()
        assert second.task.done()
        site.members[0].come_back()
        await site.turn()
        assert site.members[0].core.status().num_running == 0

    run(test())


def test_stopping_ends_streams_and_continues_none() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        reader = site.read(request("r", sampling=SAMPLED))
        await site.until(lambda: reader.num_tokens >= 3)
        await site.set.stop()
        await settle()
        assert isinstance(reader.error, ReplicaLost)
        assert site.set.view().state is ReplicaState.STOPPED
        routed = site.set.view().routed
        assert routed is not None
        assert routed.broken == 0

    run(test())


def test_the_first_loads_alone_and_the_set_is_ready_once_all_have() -> None:
    async def test() -> None:
        states: list[ReplicaState] = []
        site = Site(3, observers=Observers(on_state=lambda view: states.append(view.state)))
        for member in site.members:
            member.loads_by_itself = False
        site.set.start()
        await settle()
        assert [member.reason for member in site.members] == [
            "loading",
            "not started",
            "not started",
        ]
        site.members[0].load()
        await settle()
        assert [member.reason for member in site.members] == ["ready", "loading", "loading"]
        with pytest.raises(ReplicaNotReady):
            site.set.call(request())
        site.members[2].load()
        await settle()
        assert site.set.view().state is ReplicaState.STARTING
        assert site.set.view().reason == "replica 1: loading"
        site.members[1].load()
        hello = await site.set.wait_ready()
        assert (hello.num_blocks, hello.max_num_seqs, hello.max_model_len) == (768, 24, 256)
        assert states[-1] is ReplicaState.READY
        assert ReplicaState.READY not in states[:-1]
        await site.set.stop()

    run(test())


def test_a_replica_that_cannot_load_fails_the_set_by_its_name() -> None:
    async def test() -> None:
        site = Site(2)
        site.members[1].loads_by_itself = False
        site.set.start()
        await settle()
        site.members[1].load(StartError("not enough memory"))
        with pytest.raises(StartError, match="replica 1: not enough memory"):
            await site.set.wait_ready()
        assert site.set.view().state is ReplicaState.FAILED
        assert site.set.view().reason == "replica 1: not enough memory"
        await site.set.stop()

    run(test())


def test_stopping_while_it_loads_starts_no_other() -> None:
    async def test() -> None:
        site = Site(2)
        site.members[0].loads_by_itself = False
        site.set.start()
        await settle()
        reasons = [member.reason for member in site.members]
        await site.set.stop()
        with pytest.raises(StartError, match="stopped"):
            await site.set.wait_ready()
        assert reasons == ["loading", "not started"]

    run(test())


@pytest.mark.spec("B5")
def test_requests_are_spread_and_a_prompt_goes_back_to_where_it_was_computed() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        readers = [site.read(request(f"r{i}", range(i, i + 70))) for i in range(4)]
        await site.until(lambda: all(reader.task.done() for reader in readers))
        assert [len(member.received) for member in site.members] == [2, 2]
        again = site.read(request("again", range(1, 71)))
        await site.until(again.task.done)
        assert again.end.replica == readers[1].end.replica
        assert again.end.usage.cached_tokens > 60

    run(test())


def test_a_replica_that_is_back_gets_a_few_requests_at_first() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        site.members[0].kill()
        site.members[0].come_back()
        for i in range(6):
            site.read(request(f"r{i}", range(i, i + 9), sampling=SAMPLED))
        assert [len(member.received) for member in site.members] == [1, 5]
        await site.set.stop()

    run(test())


def test_gateway_health_03_counters_of_running_requests_come_down() -> None:
    """1000 requests: refused, cancelled early and late, lost and sent again, or answered."""

    async def test() -> None:
        site = await Site(2, engine={"max_num_seqs": 4, "max_waiting_requests": 8}).ready()
        readers: list[Reader] = []
        for number in range(1000):
            asked = request(f"r{number}", (number % 250, 1, 2), sampling=greedy(1 + number % 5))
            readers.append(site.read(asked))
            if number % 10 == 3:
                site.set.cancel(asked.id)
            if number % 10 == 7:
                await site.turn()
                site.set.cancel(asked.id)
            if number % 100 == 50:
                member = site.members[number % 200 // 100]
                member.kill()
                await settle()
                member.come_back()
            assert all(each.in_flight >= 0 for each in site.set.view().members)
            if number % 40 == 0:
                await site.until(lambda: all(reader.task.done() for reader in readers))
        await site.until(lambda: all(reader.task.done() for reader in readers))
        outcomes = Counter(
            type(reader.error).__name__ if reader.error else reader.end.reason.value
            for reader in readers
        )
        assert sum(outcomes.values()) == 1000
        assert {"length", "cancelled", "error"} <= set(outcomes)
        view = site.set.view()
        assert [member.in_flight for member in view.members] == [0, 0]
        assert view.status is not None
        assert (view.status.num_running, view.status.num_waiting) == (0, 0)
        assert all(member.work_s == 0.0 for member in view.members)

    run(test())


def test_the_times_of_a_moved_request_are_those_at_all_of_its_replicas_together() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        asked = request("r", range(9), sampling=msgspec.structs.replace(SAMPLED, max_tokens=20))
        began = site.clock.now()
        reader = site.read(asked)
        await site.tokens(reader, 1)
        first = site.clock.now()
        await site.tokens(reader, 5)
        site.clock.advance(3.0)  # it is found dead that late
        site.working_on(reader).kill()
        await site.until(reader.task.done)
        usage, ended = reader.end.usage, site.clock.now()
        assert reader.end.failovers == 1
        assert usage.queue_s + usage.prefill_s == pytest.approx(first - began, abs=0.011)
        assert usage.decode_s == pytest.approx(ended - first, abs=0.011)
        assert usage.decode_s > 3.0
        await site.set.stop()

    run(test())


def test_a_request_that_was_lost_before_it_began_has_waited_all_the_time() -> None:
    async def test() -> None:
        site = await Site(2).ready()
        began = site.clock.now()
        reader = site.read(request("r", range(9)))
        site.clock.advance(2.0)
        site.working_on(reader).kill()
        await site.until(reader.task.done)
        usage = reader.end.usage
        assert usage.queue_s >= 2.0
        whole = usage.queue_s + usage.prefill_s + usage.decode_s
        assert whole == pytest.approx(site.clock.now() - began, abs=0.011)
        await site.set.stop()

    run(test())
