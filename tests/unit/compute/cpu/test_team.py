import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headway.compute.cpu.atomics import atomic_load, nanoseconds
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.team import FEW_SPINS, LINE, SPINS, Team, meet

PHASES = 300


@kernel
def phases(thread: int, n: int, counter: int, arrivals: int, cells: Any, sums: Any) -> None:
    """In every phase each thread writes its cell, and after the meeting adds up all of them.

    A thread that did not wait would read a cell of the phase before, or overwrite one that is
    still to be read.
    """
    for phase in range(sums.shape[1]):
        cells[thread] = phase * n + thread
        arrivals = meet(counter, n, arrivals)
        total = 0
        for other in range(n):
            total += cells[other]
        sums[thread, phase] = total
        arrivals = meet(counter, n, arrivals)


@kernel
def atomic_at(address: int) -> int:
    return int(atomic_load(address))


@kernel
def meet_late(thread: int, n: int, counter: int, arrivals: int, seconds: float, seen: Any) -> None:
    """Thread 0 comes to the second meeting `seconds` after the others."""
    arrivals = meet(counter, n, arrivals)
    began = nanoseconds()
    while thread == 0 and nanoseconds() - began < seconds * 1e9:
        pass
    seen[thread] = 1
    meet(counter, n, arrivals)


@pytest.fixture(params=[1, 2, 5])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    found = Team(request.param)
    yield found
    found.close()


def patience(team: Team) -> int:
    """How long the next to wait will spin."""
    return atomic_at(team.counter + LINE + 8)


def totals(team: Team, num_threads: int) -> npt.NDArray[np.int64]:
    cells = np.zeros(num_threads, np.int64)
    sums = np.full((num_threads, PHASES), -1, np.int64)
    phases(0, 1, Team(1).counter, 0, cells[:1].copy(), sums[:1, :0])  # compiled here
    arguments = (num_threads, team.counter, team.arrivals, cells, sums)
    team.run(lambda thread: phases(thread, *arguments), num_threads)
    return sums


def test_nobody_goes_on_before_all_have_arrived(team: Team) -> None:
    n = team.num_threads
    for _ in range(3):  # the counter goes on from where it was
        phase = np.arange(PHASES)
        want = phase * n * n + n * (n - 1) // 2
        assert (totals(team, n) == want).all()
    assert team.arrivals == 3 * PHASES * 2 * n


def test_who_waits_long_sleeps_and_is_woken(team: Team) -> None:
    n = team.num_threads
    meet_late(0, 1, Team(1).counter, 0, 0.0, np.zeros(1, np.int64))  # compiled here
    seen = np.zeros(n, np.int64)
    used = np.zeros(n)
    arguments = (n, team.counter, team.arrivals, 0.2, seen)

    def work(thread: int) -> None:
        before = time.thread_time()
        meet_late(thread, *arguments)
        used[thread] = time.thread_time() - before

    for _ in range(2):
        arguments = (n, team.counter, team.arrivals, 0.2, seen)
        team.run(work, n)
        assert seen.all()
        assert (used[1:] < 0.1).all()
        # Of many threads on few cores one may come so late that it need not sleep, and adds to it.
        most = FEW_SPINS if n == 2 else 2 * FEW_SPINS
        assert n == 1 or FEW_SPINS <= patience(team) <= most, "the next one is not spun for as long"


def test_who_meets_in_time_spins_longer_again(team: Team) -> None:
    seen = [patience(team)]
    deadline = time.monotonic() + 60
    while team.num_threads == 2 and seen[-1] <= FEW_SPINS and time.monotonic() < deadline:
        totals(team, 2)
        seen.append(patience(team))
    assert max(seen) <= SPINS
    assert team.num_threads != 2 or seen[-1] > FEW_SPINS


def test_fewer_threads_than_the_team_has_may_run(team: Team) -> None:
    assert (totals(team, 1) == np.arange(PHASES)).all()
    assert team.arrivals == 2 * PHASES


def test_the_caller_is_thread_0_and_each_thread_runs_once(team: Team) -> None:
    seen: dict[int, int] = {}
    team.run(lambda thread: seen.setdefault(thread, threading.get_ident()), team.num_threads)
    assert sorted(seen) == list(range(team.num_threads))
    assert seen[0] == threading.get_ident()


def test_what_a_helper_raises_reaches_the_caller() -> None:
    team = Team(2)

    def work(thread: int) -> None:
        if thread == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        team.run(work, 2)
    team.close()


def test_helpers_of_a_team_that_nobody_has_any_more_end() -> None:
    team = Team(3)
    ran: list[threading.Thread] = []
    team.run(lambda thread: ran.append(threading.current_thread()), 3)
    del team
    gc.collect()
    for helper in ran:
        if helper is not threading.current_thread():
            helper.join(60)
            assert not helper.is_alive()


def test_after_a_failure_the_team_still_works() -> None:
    team = Team(3)
    ran: list[int] = []

    def fail(thread: int) -> None:
        raise IndexError(thread)

    for _ in range(2):
        with pytest.raises(IndexError):
            team.run(fail, 3)
    team.run(ran.append, 3)
    assert sorted(ran) == [0, 1, 2]
    team.close()


def test_closing_ends_the_helpers_and_twice_is_harmless() -> None:
    team = Team(3)
    ran: list[threading.Thread] = []
    team.run(lambda thread: ran.append(threading.current_thread()), 3)
    helpers = [each for each in ran if each is not threading.current_thread()]
    assert helpers
    team.close()
    team.close()
    assert not any(each.is_alive() for each in helpers)
