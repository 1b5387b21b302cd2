"""The threads that run a step, and the barrier where they meet inside it.

A step is one compiled call per thread. Between its phases the threads meet at a barrier
that spins: a phase lasts microseconds, too short to sleep. Between steps the helpers
sleep, so that an idle engine uses no CPU.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.atomics import atomic_add, atomic_load, give_way, pause
from headway.compute.cpu.jit import kernel

# A waiter first spins, then also lets other threads run: on a machine with fewer free
# cores than threads the one that is waited for would otherwise not get a core.
SPINS = 4000  # about 100 µs
COUNTER_WORDS = 8  # a cache line of its own


@kernel
def meet(counter: int, num_threads: int, arrivals: int) -> int:
    """Wait until all threads are here; returns the arrivals to give to the next meeting.

    counter   address of an int64 that counts arrivals since the team was made
    arrivals  arrivals when the meeting before this one was over
    """
    target = arrivals + num_threads
    atomic_add(counter, 1)
    spins = 0
    while atomic_load(counter) < target:
        pause()
        spins += 1
        if spins > SPINS:
            give_way()
    return target


class Team:
    """Threads for one executor: the caller's own, and `num_threads - 1` helpers."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._counter: npt.NDArray[np.int64] = np.zeros(COUNTER_WORDS, np.int64)
        self._helpers = ThreadPoolExecutor(max(1, num_threads - 1), "compute")

    @property
    def counter(self) -> int:
        """Address of the arrivals, for `meet`."""
        return int(self._counter.ctypes.data)

    @property
    def arrivals(self) -> int:
        """Arrivals so far; constant while no step runs."""
        return int(self._counter[0])

    def run(self, work: Callable[[int], object], num_threads: int) -> None:
        """Call `work(thread)` on `num_threads` threads, 0 on this one, and wait for all.

        `work` must give up the interpreter lock (a compiled kernel does), or the threads
        take turns. Waking the helpers costs about 60 µs.
        """
        helped = [self._helpers.submit(work, thread) for thread in range(1, num_threads)]
        work(0)
        for each in helped:
            each.result()

    def close(self) -> None:
        """End the helpers; twice is harmless."""
        self._helpers.shutdown()
