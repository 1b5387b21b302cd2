"""The threads that run a step, and the barrier where they meet inside it.

A step is one compiled call per thread. Between its phases the threads meet at a barrier
that spins: a phase lasts microseconds, too short to sleep. Between steps the helpers
sleep, so that an idle engine uses no CPU.
"""

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.atomics import atomic_add, atomic_load, give_way, pause
from headway.compute.cpu.jit import kernel

# A waiter first spins, then also lets other threads run: on a machine with fewer free
# cores than threads the one that is waited for would otherwise not get a core.
SPINS = 4000  # about 100 µs
COUNTER_WORDS = 8  # a cache line of its own


Work = Callable[[int], object]


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
        # Queues in C: a step's data drives the interpreter's code out of the caches, so that
        # each line of Python between two steps costs a microsecond.
        self._orders: list[SimpleQueue[Work | None]] = []
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._helpers: list[Thread] = []
        self._dismiss = weakref.finalize(self, _dismiss, self._orders)

    @property
    def counter(self) -> int:
        """Address of the arrivals, for `meet`."""
        return int(self._counter.ctypes.data)

    @property
    def arrivals(self) -> int:
        """Arrivals so far; constant while no step runs."""
        return int(self._counter[0])

    def run(self, work: Work, num_threads: int) -> None:
        """Call `work(thread)` on `num_threads` threads, 0 on this one, and wait for all.

        `work` must give up the interpreter lock (a compiled kernel does), or the threads
        take turns. What a helper raises is raised here.
        """
        while len(self._helpers) < num_threads - 1:
            self._start_helper()
        for orders in self._orders[: num_threads - 1]:
            orders.put(work)
        try:
            work(0)
        finally:
            failures = [self._done.get() for _ in range(num_threads - 1)]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        """End the helpers; twice is harmless."""
        self._dismiss()
        for helper in self._helpers:
            helper.join()

    def _start_helper(self) -> None:
        orders: SimpleQueue[Work | None] = SimpleQueue()
        number = len(self._helpers) + 1
        helper = Thread(
            target=_help, args=(number, orders, self._done), name=f"compute-{number}", daemon=True
        )
        helper.start()
        self._orders.append(orders)
        self._helpers.append(helper)


def _dismiss(queues: "list[SimpleQueue[Work | None]]") -> None:
    for orders in queues:
        orders.put(None)


def _help(
    thread: int,
    orders: "SimpleQueue[Work | None]",
    done: "SimpleQueue[BaseException | None]",
) -> None:
    """What a helper does until it is dismissed; it holds no reference to its team."""
    while (work := orders.get()) is not None:
        outcome = _Outcome()
        with outcome:
            work(thread)
        del work
        done.put(outcome.failure)


class _Outcome:
    """Keeps what a block raises, for another thread to raise."""

    failure: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.failure = failure
        return True
