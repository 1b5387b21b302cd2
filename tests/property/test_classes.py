"""Invariants of the scheduler over random traffic of several classes and tenants."""

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.base.errors import CapacityError
from headway.core.messages.path import EngineRequest, FinishReason, Sampling, Tokens
from tests.drive import Answer, Drive
from tests.fakes import greedy
from tests.mixed import INTERNAL, STANDARD, VIP, asked, machine, watch_class_order

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
    prompt = [*range(stem), *draw(st.lists(st.integers(0, 255), min_size=1, max_size=20))]
    sampling = Sampling(
        max_tokens=draw(st.integers(1, 20)),
        seed=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        num_logprobs=draw(st.sampled_from([None, 0])),
        prompt_logprobs=draw(st.booleans()),
    )
    return asked(
        f"r{index}",
        prompt,
        draw(st.integers(0, 2)),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        weight=draw(st.sampled_from([0.5, 1.0, 4.0])),
        n=draw(st.integers(1, 3)),
        sampling=sampling,
    )


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    count = draw(st.integers(1, 9))
    return Traffic(
        tuple(draw(engine_requests(index)) for index in range(count)),
        tuple(draw(st.integers(0, 16)) for _ in range(count)),
        draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 40), max_size=3)),
    )


def run(drive: Drive, case: Traffic) -> set[str]:
    """Plays the traffic to its end; ids of the best-effort requests that were refused."""
    refused: set[str] = set()
    last = max([*case.arrivals, *case.cancels.values(), 0])
    for step in range(4000):
        for index, arrival in enumerate(case.arrivals):
            if arrival == step:
                refused |= add(drive, case.requests[index])
        for index, at in case.cancels.items():
            if at == step:
                drive.cancel(case.requests[index].id)
                drive.core.check()
        if not drive.step() and step > last:
            return refused
    raise AssertionError("no end after 4000 steps")


def add(drive: Drive, request: EngineRequest) -> set[str]:
    """Its id if it was refused, which only best effort is, and with a time to come again."""
    told: list[CapacityError] = []
    try:
        drive.add(request)
    except CapacityError as error:
        told.append(error)
    assert not told or (request.slo_class == INTERNAL and told[0].retry_after_s >= 1.0)
    return {request.id} if told else set()


MACHINES = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.integers(3, 24),
        "max_num_seqs": st.integers(1, 9),
        "num_blocks": st.integers(16, 48),
        "enable_prefix_caching": st.booleans(),
        "num_host_blocks": st.sampled_from([0, 3, 30]),
        "ageing": st.sampled_from([3.0, 20.0, 1e9]),
        "long_prompt": st.sampled_from([8, 1 << 30]),
        "slow_lane_share": st.sampled_from([0.1, 0.5, 1.0]),
    }
)


def logprobs_of(answer: Answer) -> list[tuple[object, ...]]:
    """Log-probabilities of the first choice, and those of its prompt."""
    of_first = [e for e in answer.events if isinstance(e, Tokens) and e.choice == 0]
    return [(*e.logprobs, *e.prompt_logprobs) for e in of_first]


@pytest.mark.spec("E3")
@settings(max_examples=EXAMPLES * 200)
@given(case=traffic(), depth=st.integers(0, 1), shape=MACHINES)
def test_any_mix_of_classes_gives_the_same_answers_as_each_request_alone(
    case: Traffic, depth: int, shape: dict[str, Any]
) -> None:
    mixed = machine(depth, **shape)
    watch_class_order(mixed.core.scheduler, [])
    refused = run(mixed, case)
    for index, wanted in enumerate(case.requests):
        if wanted.id in refused:
            continue
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
        assert logprobs_of(got) == logprobs_of(alone)
    status = mixed.core.status()
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks


@settings(max_examples=EXAMPLES * 100)
@given(case=traffic(), shape=MACHINES)
def test_plans_keep_to_budget_and_slots(case: Traffic, shape: dict[str, Any]) -> None:
    drive = machine(**shape)
    run(drive, case)
    for plan in drive.plans:
        assert sum(plan.num_tokens) <= shape["max_num_batched_tokens"]
        assert len(plan.tables) <= shape["max_num_seqs"]
        assert len(set(plan.sequence_ids)) == len(plan.sequence_ids)


@settings(max_examples=EXAMPLES * 50)
@given(case=traffic(), shape=MACHINES)
def test_the_same_mixed_traffic_gives_the_same_plans(case: Traffic, shape: dict[str, Any]) -> None:
    one, two = machine(**shape), machine(**shape)
    run(one, case)
    run(two, case)
    assert [plan.token_ids for plan in one.plans] == [plan.token_ids for plan in two.plans]
    assert [plan.sequence_ids for plan in one.plans] == [p.sequence_ids for p in two.plans]


@settings(max_examples=EXAMPLES * 60)
@given(data=st.data(), slots=st.integers(8, 17), blocks=st.integers(60, 120))
def test_of_equals_only_long_guests_give_way_to_newcomers(
    data: st.DataObject, slots: int, blocks: int
) -> None:
    """Enough long ones that they fill every slot, and short ones that come later."""
    run_ = machine(max_num_seqs=slots, num_blocks=blocks, max_num_batched_tokens=64, long_prompt=8)
    seen: list[tuple[int, int]] = []
    watch_class_order(run_.core.scheduler, seen)
    run_.add(*(asked(f"long{i}", range(i, i + 12), sampling=greedy(30)) for i in range(slots + 3)))
    for number in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 9))):
            run_.step()
        slo_class = data.draw(st.sampled_from([STANDARD, STANDARD, INTERNAL, VIP]))
        length = data.draw(st.sampled_from([3, 3, 20]))
        run_.add(asked(f"r{number}", range(number, number + length), slo_class))
    run_.run()
    assert all(answer.finished is not None for answer in run_.answers.values())
    assert all(theirs >= ours for ours, theirs in seen)


@pytest.mark.spec("C7")
@settings(max_examples=EXAMPLES * 15, deadline=None)
@given(
    low=st.sampled_from([STANDARD, INTERNAL]),
    slots=st.integers(1, 4),
    answer=st.integers(1, 40),
    ageing=st.integers(5, 40),
)
def test_nobody_starves_behind_an_endless_stream_of_vips(
    low: int, slots: int, answer: int, ageing: int
) -> None:
    run_ = machine(max_num_seqs=slots, ageing=float(ageing))
    run_.add(asked("low", range(10), low, sampling=greedy(answer)))
    for step in range(3 * low * ageing + 20 * answer + 100):
        while run_.core.status().num_waiting < slots + 1:
            run_.add(asked(f"vip{step}-{run_.core.status().num_waiting}", range(20), VIP))
        run_.step()
        if run_.answers["low"].finished is not None:
            return
    raise AssertionError(f"still waiting after {step} steps: {run_.core.status()}")


@settings(max_examples=EXAMPLES * 15, deadline=None)
@given(
    weights=st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1.0, 3.0])),
    slots=st.integers(1, 6),
    lengths=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    budget=st.integers(8, 32),
)
def test_tenants_that_always_ask_are_served_by_their_weights(
    weights: tuple[float, float], slots: int, lengths: tuple[int, int], budget: int
) -> None:
    run_ = machine(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        num_blocks=200,
        enable_prefix_caching=False,
        ageing=1e9,
    )
    count = [0, 0]
    for _ in range(400):
        for who in (0, 1):
            waiting = [s for s in run_.core.scheduler.queue if s.group.request.tenant == str(who)]
            for _ in range(slots + 1 - len(waiting)):
                count[who] += 1
                run_.add(
                    asked(
                        f"{who}-{count[who]}",
                        range(lengths[who]),
                        tenant=str(who),
                        weight=weights[who],
                        sampling=greedy(6),
                    )
                )
        run_.step()
    served = [0.0, 0.0]
    for who in (0, 1):
        for name, answer in run_.answers.items():
            if name.startswith(f"{who}-"):
                served[who] += (lengths[who] + len(answer.tokens[0])) / weights[who]
    # A request in hand is served to its end whatever its tenant's share: slots of them, at most.
    slack = (slots + 2) * (max(lengths) + 6) / min(weights)
    assert abs(served[0] - served[1]) <= 2 * slack
