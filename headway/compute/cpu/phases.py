"""The phases of a step: how they end, and how long each took when somebody asks.

Times are kept in `ticks`, int64 [threads, TICKS], nanoseconds. Without a profile it has no
rows, and a phase then costs one comparison more.
"""

from typing import Any

from headway.compute.cpu.atomics import nanoseconds
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.team import meet

# In the order of a step; all but the last two once a layer.
PHASES = (
    "add, norm, quantize",
    "q k v",
    "rotate, store",
    "attention",
    "merge",
    "quantize mixed",
    "attention output",
    "add, norm, quantize again",
    "gate and up",
    "silu, quantize",
    "down",
    "input of the head",
    "head",
)
(
    ATTENTION_INPUT,
    QKV_PRODUCT,
    ROTATE,
    ATTEND,
    MERGE,
    OUTPUT_INPUT,
    OUTPUT_PRODUCT,
    MLP_INPUT,
    GATE_UP_PRODUCT,
    DOWN_INPUT,
    DOWN_PRODUCT,
    HEAD_INPUT,
    HEAD_PRODUCT,
) = range(len(PHASES))
WORK, WAIT = 0, len(PHASES)  # columns of ticks: nanoseconds in each phase, then behind each
LAST = 2 * len(PHASES)  # and when the thread was last asked
TICKS = 32


@kernel
def begin(ticks: Any, thread: int) -> None:
    """The first phase of this thread starts now."""
    if ticks.shape[0] > 0:
        ticks[thread, LAST] = nanoseconds()


@kernel
def finish(phase: int, ticks: Any, thread: int, n: int, counter: int, arrivals: int) -> int:
    """This thread's part of a phase is done: `meet` the others, unless n is 1."""
    if ticks.shape[0] == 0:
        return int(meet(counter, n, arrivals)) if n > 1 else arrivals
    done = nanoseconds()
    ticks[thread, WORK + phase] += done - ticks[thread, LAST]
    if n > 1:
        arrivals = meet(counter, n, arrivals)
    together = nanoseconds()
    ticks[thread, WAIT + phase] += together - done
    ticks[thread, LAST] = together
    return arrivals
