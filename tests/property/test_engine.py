"""The scheduler's invariants and the same-answer law, over random traffic."""

import os
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, FinishReason, Sampling
from tests.drive import Drive
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings, request

EXAMPLES = 20 if os.environ.get("LONG") == "1" else 1  # times the usual number


@dataclass(frozen=True)
class Traffic:
    """Requests with the step at which each arrives and, for some, is cancelled."""

    requests: tuple[EngineRequest, ...]
    arrivals: tuple[int, ...]
    cancels: dict[int, int]


@st.composite
def engine_requests(draw: st.DrawFn, index: int) -> EngineRequest:
    stem = draw(st.integers(0, 12))
    prompt = [*range(stem), *draw(st.lists(st.integers(0, 255), min_size=1, max_size=14))]
    sampling = Sampling(
        max_tokens=draw(st.integers(1, 16)),
        seed=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        num_logprobs=draw(st.sampled_from([None, 0])),
        prompt_logprobs=draw(st.booleans()),
    )
    return request(f"r{index}", prompt, n=draw(st.integers(1, 3)), sampling=sampling)


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    count = draw(st.integers(1, 8))
    return Traffic(
        tuple(draw(engine_requests(index)) for index in range(count)),
        tuple(draw(st.integers(0, 12)) for _ in range(count)),
        draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 40), max_size=2)),
    )


def machine(depth: int = 0, **changes: int | bool) -> Drive:
    core = EngineCore(engine_settings(**changes), ByteTokenizer())  # type: ignore[arg-type]
    return Drive(core, ScriptedExecutor(core), depth)


def run(drive: Drive, case: Traffic) -> None:
    """Plays the traffic to its end, and checks every plan."""
    last = max([*case.arrivals, *case.cancels.values(), 0])
    for step in range(2000):
        for index, arrival in enumerate(case.arrivals):
            if arrival == step:
                drive.add(case.requests[index])
        for index, at in case.cancels.items():
            if at == step:
                drive.cancel(case.requests[index].id)
        if not drive.step() and step > last:
            return
    raise AssertionError("no end after 2000 steps")


@pytest.mark.spec("E3")
@settings(max_examples=EXAMPLES * 150)
@given(
    case=traffic(),
    depth=st.integers(0, 1),
    budget=st.integers(3, 24),
    slots=st.integers(1, 5),
    blocks=st.integers(16, 40),
    caching=st.booleans(),
    host=st.sampled_from([0, 1, 3, 8, 40]),
    ttl=st.sampled_from([0, 0, 5]),
)
def test_any_mix_gives_the_same_answers_as_each_request_alone(
    case: Traffic,
    depth: int,
    budget: int,
    slots: int,
    blocks: int,
    caching: bool,
    host: int,
    ttl: int,
) -> None:
    mixed = machine(
        depth,
        max_num_batched_tokens=budget,
        max_num_seqs=slots,
        num_blocks=blocks,
        enable_prefix_caching=caching,
        num_host_blocks=host,
        prefix_cache_ttl=ttl,
    )
    run(mixed, case)
    for index, wanted in enumerate(case.requests):
        alone = machine().run([wanted])[wanted.id]
        got = mixed.answers[wanted.id]
        assert got.finished is not None, "every request ends"
        if index in case.cancels and got.finished.reason is FinishReason.CANCELLED:
            for choice, tokens in got.tokens.items():
                assert alone.tokens[choice][: len(tokens)] == tokens
            continue
        assert got.tokens == alone.tokens
        assert got.text == alone.text
        assert got.reasons == alone.reasons
        assert alone.finished is not None
        assert got.finished.usage.completion_tokens == alone.finished.usage.completion_tokens
    status = mixed.core.status()
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks
    assert status.host_blocks_used <= host


@settings(max_examples=EXAMPLES * 60)
@given(
    case=traffic(),
    budget=st.integers(3, 24),
    blocks=st.integers(16, 40),
    host=st.sampled_from([0, 2, 20]),
)
def test_plans_keep_budget_cover_continuity_and_exclusive_write(
    case: Traffic, budget: int, blocks: int, host: int
) -> None:
    drive = machine(
        max_num_batched_tokens=budget, max_num_seqs=3, num_blocks=blocks, num_host_blocks=host
    )
    core, plan_of = drive.core, drive.core.plan
    kv = core.scheduler.kv

    def checked(now: float):  # type: ignore[no-untyped-def]
        computed = {s.id: s.num_computed for s in core.scheduler.running.values()}
        preemptions = core.status().preemptions
        plan = plan_of(now)  # type: ignore[arg-type]
        if plan is None:
            return None
        if core.status().preemptions > preemptions:
            computed = {}  # one that was stopped may start again in the same step
        assert sum(plan.num_tokens) <= budget
        assert len(plan.tables) <= 3
        assert len(set(plan.sequence_ids)) == len(plan.sequence_ids)
        for row, sequence_id in enumerate(plan.sequence_ids):
            sequence = core.scheduler.running[sequence_id]
            start, end = plan.starts[row], plan.starts[row] + plan.num_tokens[row]
            assert start == sequence.num_computed
            assert start == computed.get(sequence_id, start)
            assert sequence.table is not None
            assert kv.is_writable(sequence.table, start, end)
        return plan

    drive.core.plan = checked  # type: ignore[method-assign]
    run(drive, case)


@settings(max_examples=EXAMPLES * 30)
@given(case=traffic())
def test_the_same_traffic_gives_the_same_plans(case: Traffic) -> None:
    one, two = (machine(num_blocks=20, num_host_blocks=9) for _ in range(2))
    run(one, case)
    run(two, case)
    assert [plan.token_ids for plan in one.plans] == [plan.token_ids for plan in two.plans]
    assert [plan.sequence_ids for plan in one.plans] == [p.sequence_ids for p in two.plans]
    assert [plan.loads for plan in one.plans] == [plan.loads for plan in two.plans]
