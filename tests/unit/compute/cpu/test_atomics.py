import threading
import time
from typing import Any

import numpy as np

from headway.compute.cpu.atomics import atomic_add, atomic_load, park, pause, unpark
from headway.compute.cpu.jit import kernel

TIMES = 200_000


@kernel
def add_many(address: int, amount: int, times: int) -> Any:
    """Adds one at a time; the last number that was there before."""
    before = 0
    for _ in range(times):
        before = atomic_add(address, amount)
    return before


@kernel
def wait_for(address: int, value: int, most: int) -> Any:
    """Looks until the value is there; how often it looked, at most `most` times."""
    looks = 0
    while atomic_load(address) != value and looks < most:
        pause()
        looks += 1
    return looks


@kernel
def sleep_until(address: int, value: int) -> Any:
    """Sleeps while the value is not there; what was there at last."""
    seen = atomic_load(address)
    while seen != value:
        park(address, seen)
        seen = atomic_load(address)
    return seen


@kernel
def wake(address: int) -> None:
    unpark(address)


def test_an_addition_returns_what_was_there_before() -> None:
    counter = np.array([7, 100], np.int64)
    assert add_many(counter.ctypes.data, 5, 1) == 7
    assert add_many(counter.ctypes.data, -2, 3) == 8
    assert counter.tolist() == [6, 100]


def test_no_addition_of_two_threads_is_lost() -> None:
    counter = np.zeros(1, np.int64)
    add_many(counter.ctypes.data, 1, 0)  # compiled before the threads begin
    threads = [
        threading.Thread(target=add_many, args=(counter.ctypes.data, 1, TIMES)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter[0] == 3 * TIMES


def test_a_waiting_thread_sees_what_another_one_writes() -> None:
    counter = np.zeros(1, np.int64)
    assert wait_for(counter.ctypes.data, 1, 10) == 10
    looks: list[int] = []
    waiter = threading.Thread(
        target=lambda: looks.append(wait_for(counter.ctypes.data, 1, 1_000_000_000))
    )
    waiter.start()
    add_many(counter.ctypes.data, 1, 1)
    waiter.join(60)
    assert not waiter.is_alive()
    assert looks[0] < 1_000_000_000


def test_a_parked_thread_uses_no_cpu_and_is_woken() -> None:
    counter = np.zeros(1, np.int64)
    address = counter.ctypes.data
    wake(address)
    assert sleep_until(address, 0) == 0
    used: list[float] = []

    def sleep() -> None:
        before = time.thread_time()
        sleep_until(address, 1)
        used.append(time.thread_time() - before)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    sleeper.join(0.3)
    assert sleeper.is_alive()
    add_many(address, 1, 1)
    wake(address)
    sleeper.join(60)
    assert not sleeper.is_alive()
    assert used[0] < 0.1


def test_who_parks_after_the_change_does_not_sleep() -> None:
    counter = np.array([2**32 + 5], np.int64)
    done = threading.Thread(target=lambda: sleep_until(counter.ctypes.data, 2**32 + 5))
    done.start()
    done.join(60)
    assert not done.is_alive()
