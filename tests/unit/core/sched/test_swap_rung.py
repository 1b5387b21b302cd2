"""The swap rung acts: blocks are in the host tier before anybody needs their place."""

from typing import Any

import pytest

from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest
from headway.core.sched.pressure import Rung
from tests.drive import Drive
from tests.fakes import ScriptedExecutor, greedy
from tests.mixed import INTERNAL, VIP, asked, machine

TIGHT: dict[str, Any] = {
    "max_model_len": 128,
    "num_blocks": 60,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
}


def crowd() -> list[EngineRequest]:
    """Four answers that the pool cannot hold together."""
    return [asked(f"r{i}", range(i, i + 9 + i), sampling=greedy(80)) for i in range(4)]


def same_as_alone(run: Drive, requests: list[EngineRequest]) -> bool:
    alone = {r.id: machine(**TIGHT).run([r])[r.id].tokens for r in requests}
    return all(run.answers[name].tokens == tokens for name, tokens in alone.items())


def roomy(depth: int = 0) -> Drive:
    """A machine whose host memory is there from the beginning."""
    core = machine(**TIGHT, num_host_blocks=80).core
    return Drive(core, ScriptedExecutor(core, host_segment=80), depth)


@pytest.mark.spec("D3")
@pytest.mark.parametrize("depth", [0, 1])
def test_the_next_victims_blocks_are_copied_before_the_pool_runs_out(depth: int) -> None:
    run = roomy(depth)
    run.add(*crowd())
    rungs, copied = [], 0
    while run.core.status().preemptions == 0:
        before = len(run.plans)
        run.step()
        rungs.append(run.core.status().rung)
        saves = sum(len(plan.saves) for plan in run.plans[before:])
        assert saves == 0 or rungs[-1] >= Rung.SWAP
        if run.core.status().preemptions == 0:
            assert saves <= 1, "a little in each step"
            copied += saves
    assert copied >= 3
    (kept,) = run.core.scheduler.swap.kept.values()
    # And a block of whoever is next from now on.
    assert saves <= len(kept.names) - copied + 1, "only what is new is copied when it is stopped"
    run.run()
    assert same_as_alone(run, crowd())
    assert run.core.status().preemptions_swapped > 0


def test_cached_blocks_are_copied_before_they_are_evicted() -> None:
    run = roomy()
    run.run([asked("first", range(40, 80), sampling=greedy(2))])
    assert (run.core.status().cached_blocks, run.core.status().host_blocks_used) == (10, 0)
    run.add(*(asked(f"r{i}", range(i, i + 49), sampling=greedy(40)) for i in range(4)))
    ahead = []
    while (status := run.core.status()).preemptions == 0:
        if status.cached_blocks:
            num_evicted = 10 - status.cached_blocks
            ahead.append(status.host_blocks_used - num_evicted)
        run.step()
    assert ahead[0] == 0
    assert max(ahead) >= 1
    run.run()
    run.run([asked("again", range(40, 80), sampling=greedy(2))])
    assert run.answers["again"].tokens == run.answers["first"].tokens


def test_without_a_host_tier_the_rung_changes_nothing() -> None:
    run = machine(**TIGHT)
    run.run(crowd())
    assert all(plan.saves == () for plan in run.plans)
    assert same_as_alone(run, crowd())


class Poor(ScriptedExecutor):
    """Has memory for so many host blocks, and cannot get any more."""

    def __init__(self, core: EngineCore, most: int) -> None:
        super().__init__(core, host_segment=most)
        self._most_host = most


@pytest.mark.spec("D3")
@pytest.mark.parametrize("most", [0, 1, 5])
def test_host_memory_that_cannot_be_had_means_computing_again_and_nothing_else(most: int) -> None:
    core = machine(**TIGHT, num_host_blocks=80).core
    run = Drive(core, Poor(core, most))
    run.run(crowd())
    status = run.core.status()
    assert same_as_alone(run, crowd())
    assert status.preemptions > status.preemptions_swapped
    assert status.host_blocks_used <= most < status.host_blocks_total
    assert sum(status.recomputed_by_class) == status.preemptions - status.preemptions_swapped


def test_preemptions_are_counted_by_the_class_of_the_victim_and_by_kind() -> None:
    for run, kind in ((machine(**TIGHT), "recomputed_by_class"), (roomy(), "swapped_by_class")):
        run.add(*(asked(f"low{i}", range(i, i + 9), INTERNAL) for i in range(4)))
        for _ in range(4):
            run.step()
        run.add(asked("vip", range(5), VIP))
        run.run()
        status = run.core.status()
        assert getattr(status, kind) == (0, 0, 1)
        assert sum(status.swapped_by_class) + sum(status.recomputed_by_class) == 1
        assert (status.preemptions, status.preemptions_for_class) == (1, 1)
