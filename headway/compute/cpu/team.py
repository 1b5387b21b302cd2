"""The threads that run a step, and the barrier where they meet inside it.

A step is one compiled call per thread. Between its phases the threads meet at a barrier
that spins: a phase lasts microseconds, too short to sleep unless others use the cores too.
Between steps the helpers sleep, so that an idle engine uses no CPU.
"""

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.atomics import atomic_add, atomic_load, atomic_store, park, pause, unpark
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.kvpool import aligned_zeros

# A waiter first spins, then sleeps: where other work shares the cores, the thread that is
# waited for may itself wait for a core, even for the waiter's. Who has slept spins less at the
# next meetings: two threads on one core would lose all that time at each of 300 barriers. But
# never less than a sleep costs, or phases that are a little uneven would put a thread to sleep
# at every meeting: with 64 spins single streams ran at 117 tokens/s instead of 206.
SPINS = 4000  # about 100 µs
FEW_SPINS = 1000
LINE = 64  # bytes; arrivals and the rest are not in one
COUNTER_WORDS = 2 * LINE // 8

Work = Callable[[int], object]


@kernel
def meet(counter: int, num_threads: int, arrivals: int) -> int:
    """Wait until all threads are here; returns the arrivals to give to the next meeting.

    counter   address of two cache lines: an int64 that counts arrivals since the team was
              made; threads that are about to sleep, or do, and how long they last spun
    arrivals  arrivals when the meeting before this one was over
    """
    target = arrivals + num_threads
    sleepers, patience = counter + LINE, counter + LINE + 8
    if atomic_add(counter, 1) + 1 == target:
        # An addition, not a load: it must not be done before the one above.
        if atomic_add(sleepers, 0) > 0:
            unpark(counter)
        return target
    most = max(FEW_SPINS, atomic_load(patience))
    spins = 0
    while atomic_load(counter) < target:
        if spins >= most:
            atomic_store(patience, FEW_SPINS)
            sleep(counter, sleepers, target)
            return target
        pause()
        spins += 1
    if most < SPINS:
        atomic_store(patience, 2 * most)
    return target


@kernel
def sleep(counter: int, sleepers: int, target: int) -> None:
    """Until the counter is at `target`."""
    atomic_add(sleepers, 1)
    seen = atomic_load(counter)
    while seen < target:
        park(counter, seen)
        seen = atomic_load(counter)
    atomic_add(sleepers, -1)


class Team:
    """Threads for one executor: the caller's own, and `num_threads - 1` helpers."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._counter: npt.NDArray[np.int64] = aligned_zeros((COUNTER_WORDS,), np.int64)
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
