import time

import numpy as np

from headway.compute.cpu.atomics import nanoseconds
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.phases import (
    ATTEND,
    HEAD_PRODUCT,
    LAST,
    PHASES,
    ROTATE,
    TICKS,
    WAIT,
    WORK,
    begin,
    finish,
)
from headway.compute.cpu.team import Team


@kernel
def now() -> int:
    return int(nanoseconds())


def test_the_clock_is_pythons() -> None:
    now()
    before = time.monotonic_ns()
    found = now()
    assert before <= found <= time.monotonic_ns()


def test_the_times_of_phases_and_waits_add_up_to_the_whole() -> None:
    assert max(WAIT + HEAD_PRODUCT, LAST) < TICKS
    assert len(PHASES) == HEAD_PRODUCT + 1
    team = Team(1)
    ticks = np.zeros((2, TICKS), np.int64)
    begin(ticks, 1)
    first = ticks[1, LAST]
    arrivals = 0
    for phase in (ATTEND, ROTATE, ATTEND):
        arrivals = finish(phase, ticks, 1, 1, team.counter, arrivals)
    team.close()
    assert not ticks[0].any()
    whole = ticks[1, LAST] - first
    assert ticks[1, :LAST].sum() == whole > 0
    assert np.flatnonzero(ticks[1, :WAIT]).tolist() == [WORK + ROTATE, WORK + ATTEND]


def test_without_a_profile_nothing_is_written() -> None:
    team = Team(1)
    ticks = np.zeros((0, TICKS), np.int64)
    begin(ticks, 0)
    assert finish(ATTEND, ticks, 0, 1, team.counter, 0) == team.arrivals
    team.close()
