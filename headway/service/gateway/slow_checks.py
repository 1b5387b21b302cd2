"""Slow checks of keys: in a few threads, with a bounded number that wait, each key once.

Keys with an id that is known have threads of their own, so that guessing ids cannot hold up
whoever has a real key. A guess takes as long as a real check.
"""

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headway.core.base.errors import QueueFull
from headway.core.base.units import Seconds
from headway.core.tenancy.account import PresentedKey, hashed, matches

KNOWN_THREADS = 2
MAX_KNOWN = 256  # waiting or under way; about 2 s of work
MAX_OF_ONE = 4  # keys with the same id, which is public: wrong ones must not fill all
MAX_UNKNOWN = 32  # about half a second
MAX_REFUSED = 4096  # wrong keys that are remembered, so that a client that retries costs nothing
RETRY_S = Seconds(1.0)
FULL = "too many API keys are being checked now"


class SlowChecks:
    """Whether a presented key is one that is stored; remembers what was refused."""

    def __init__(self, count: Callable[[str], None]) -> None:
        """`count` takes how each check ended: good, wrong, unknown or full."""
        self._count = count
        self._known = ThreadPoolExecutor(KNOWN_THREADS, thread_name_prefix="keys")
        self._unknown = ThreadPoolExecutor(1, thread_name_prefix="unknown-keys")
        self._waiting: Counter[str] = Counter()  # by the id of the key
        self._num_unknown = 0
        self._under_way: dict[bytes, asyncio.Future[bool]] = {}  # by digest of the whole key
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._salt = os.urandom(16)
        self._num_forgotten = 0

    def forget(self) -> None:
        """What was refused may be good now: the stored keys have changed."""
        self._refused.clear()
        self._num_forgotten += 1

    async def check(self, key: PresentedKey, digest: bytes, stored: str | None) -> bool:
        """Whether `stored` is this key's hash; None for an id that is not known.

        digest  of the whole key, under a secret of this process
        Raises QueueFull.
        """
        if digest in self._refused:
            self._refused.move_to_end(digest)
            return False
        future = self._under_way.get(digest)
        if future is None:
            future = asyncio.ensure_future(self._run(key, digest, stored))
            self._under_way[digest] = future
            future.add_done_callback(lambda done: self._is_done(digest, done))
        return await asyncio.shield(future)

    def close(self) -> None:
        """End the threads when they are done."""
        self._known.shutdown(wait=False, cancel_futures=True)
        self._unknown.shutdown(wait=False, cancel_futures=True)

    async def _run(self, key: PresentedKey, digest: bytes, stored: str | None) -> bool:
        began = self._num_forgotten
        is_good = await (self._guess(key) if stored is None else self._compare(key, stored))
        if not is_good and began == self._num_forgotten:
            self._refused[digest] = None
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        self._count("unknown" if stored is None else ("good" if is_good else "wrong"))
        return is_good

    async def _compare(self, key: PresentedKey, stored: str) -> bool:
        waiting = self._waiting
        if waiting.total() >= MAX_KNOWN or waiting[key.id] >= MAX_OF_ONE:
            raise self._full()
        waiting[key.id] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._known, matches, key.secret, stored)
        finally:
            waiting[key.id] -= 1
            if not waiting[key.id]:
                del waiting[key.id]

    async def _guess(self, key: PresentedKey) -> bool:
        """Spend the time of a check; an id that is known is told by nothing but the answer."""
        if self._num_unknown >= MAX_UNKNOWN:
            raise self._full()
        self._num_unknown += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._unknown, hashed, key.secret, self._salt)
        finally:
            self._num_unknown -= 1
        return False

    def _is_done(self, digest: bytes, done: asyncio.Future[bool]) -> None:
        del self._under_way[digest]
        if not done.cancelled():
            done.exception()  # whoever asked may have gone

    def _full(self) -> QueueFull:
        self._count("full")
        return QueueFull(FULL, RETRY_S)
