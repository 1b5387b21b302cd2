"""Where journeys' records go: the latest into memory, or through the spool into a database."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from headway.core.base.errors import StartError
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.ledger_metrics import (
    LEDGER_DAMAGED,
    LEDGER_ERRORS,
    LEDGER_LAG,
    LEDGER_LOST,
    LEDGER_RECORDS,
    LEDGER_SPOOL_BYTES,
)
from headway.service.gateway.journey import Ledger, Pricing
from headway.service.observe.prometheus import Sample
from headway.service.store.drain import Drain, DrainNeeds, Records
from headway.service.store.ledger_settings import LedgerSettings
from headway.service.store.spool import Spool
from headway.service.store.usage_memory import MemoryUsage

FRESH_S = 1.0  # how long a question waits for what has just happened to be in the store
AGAIN_S = 0.05  # between two looks at connections that are read slowly
STOP_S = 10.0  # for the last batch at the end of the process
T = TypeVar("T")
Rest = Callable[[], Coroutine[Any, Any, RequestRecord]]


class Keeper(Protocol):
    """A ledger with its store: what the process starts, asks, counts and ends."""

    @property
    def ledger(self) -> Ledger:
        """What journeys write to."""
        ...

    async def ask(self, question: Callable[[Records], T]) -> T:
        """Ask the store, off the event loop, after what has happened here so far is in it.

        Raises StoreUnavailable.
        """
        ...

    def samples(self) -> Iterator[Sample]:
        """What is counted, for the exporter."""
        ...

    async def close(self) -> None:
        """Keep what is still under way; nothing may be written after this."""
        ...


class MemoryLedger:
    """The latest records in this process: Ledger and Keeper."""

    def __init__(self, store: MemoryUsage | None = None) -> None:
        self._store = store or MemoryUsage()
        self._tasks = LastWords(self)
        self._num_written = 0

    @property
    def ledger(self) -> Ledger:
        """Itself."""
        return self

    def opened(self, record: RequestRecord) -> None:
        """Nothing would be left of it."""

    def giving(self, request_id: str, num_tokens: int) -> None:
        """As above."""

    def gave(self, request_id: str, num_tokens: int, num_unsent: Callable[[], int]) -> None:
        """As above."""

    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        """Keep it."""
        self._store.add([record])
        self._num_written += 1

    def closes(self, rest: Rest) -> None:
        """Keep it once it is complete."""
        self._tasks.wait(rest)

    async def ask(self, question: Callable[[Records], T]) -> T:
        """At once; a thousand records take milliseconds."""
        return question(self._store)

    def samples(self) -> Iterator[Sample]:
        """Records only."""
        yield Sample(LEDGER_RECORDS, self._num_written, {"state": "written"})

    async def close(self) -> None:
        """Forget what is under way."""
        await self._tasks.end()


class SpoolLedger:
    """Records through a spool into a store: Ledger and Keeper.

    What is written to a socket may reach it only at the end of the event loop's turn, or when its
    reader makes room. Progress is therefore noted once nothing is unsent, and an end, which is told
    before its last bytes are written, a turn later at the soonest: what the spool says was sent,
    the kernel has.
    """

    def __init__(self, spool: Spool, drain: Drain, store: Records) -> None:
        self._spool = spool
        self._drain = drain
        self._store = store
        self._noted: list[_Noted] = []
        self._due: asyncio.Handle | None = None
        self._tasks = LastWords(self)
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="usage")
        drain.start()

    @property
    def ledger(self) -> Ledger:
        """Itself."""
        return self

    def opened(self, record: RequestRecord) -> None:
        """It is in the spool on return."""
        self._spool.opened(record)

    def giving(self, request_id: str, num_tokens: int) -> None:
        """A store into mapped memory."""
        self._spool.give(request_id, num_tokens)

    def gave(self, request_id: str, num_tokens: int, num_unsent: Callable[[], int]) -> None:
        """Counted as sent if the kernel has it, as it nearly always has; else when it takes it."""
        if not self._noted and not num_unsent():
            self._spool.gave(request_id, num_tokens)
        else:  # in order: an older count must not come after a newer one
            self._note(_Noted(request_id, num_tokens, num_unsent))

    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        """As with `gave`: until then it counts as open."""
        self._note(_Noted(record.id, 0, num_unsent, record))

    def closes(self, rest: Rest) -> None:
        """It will be, once it is complete; until then it stays open."""
        self._tasks.wait(rest)

    async def ask(self, question: Callable[[Records], T]) -> T:
        """Ask in a thread of its own."""

        def asked() -> T:
            self._drain.flush(FRESH_S)
            return question(self._store)

        return await asyncio.get_running_loop().run_in_executor(self._asking, asked)

    def samples(self) -> Iterator[Sample]:
        """Everything of the catalogue."""
        spool, counts = self._spool, self._drain.counts
        num_dropped = spool.num_dropped + counts.num_refused
        yield Sample(LEDGER_RECORDS, counts.num_written, {"state": "written"})
        yield Sample(LEDGER_RECORDS, num_dropped, {"state": "dropped"})
        yield Sample(LEDGER_LOST, counts.num_lost)
        yield Sample(LEDGER_DAMAGED, counts.num_damaged)
        yield Sample(LEDGER_ERRORS, spool.num_errors, {"to": "spool"})
        yield Sample(LEDGER_ERRORS, counts.num_errors, {"to": "store"})
        yield Sample(LEDGER_SPOOL_BYTES, spool.num_bytes)
        yield Sample(LEDGER_LAG, self._drain.lag_s)

    async def close(self) -> None:
        """Spool what is known, and wait for the store for a while."""
        await self._tasks.end()
        self._settle(is_last=True)
        await asyncio.to_thread(self._drain.stop, STOP_S)
        self._asking.shutdown(wait=False)

    def _note(self, noted: "_Noted") -> None:
        self._noted.append(noted)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self, *, is_last: bool = False) -> None:
        """Write what the kernel has taken; a connection that is gone has nothing unsent."""
        noted, self._noted = self._noted, []
        for each in noted:
            if each.num_unsent() and not is_last:
                self._noted.append(each)
            elif each.record is not None:
                self._spool.closed(each.record)
            else:
                self._spool.gave(each.request_id, each.num_tokens)
        loop = asyncio.get_running_loop()
        self._due = loop.call_later(AGAIN_S, self._settle) if self._noted else None


class _Noted(NamedTuple):
    """Tokens that were written to a connection, or the end of a request."""

    request_id: str
    num_tokens: int
    num_unsent: Callable[[], int]
    record: RequestRecord | None = None


class _Keeps(Protocol):
    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        """Keep it."""
        ...


class LastWords:
    """Records that wait for what an engine still tells of a request that was cancelled."""

    def __init__(self, ledger: _Keeps) -> None:
        self._ledger = ledger
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(self, rest: Rest) -> None:
        """Keep the record once it is complete."""
        task = asyncio.get_running_loop().create_task(self._keep(rest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Wait for all of them."""
        await asyncio.gather(*self._tasks)

    async def _keep(self, rest: Rest) -> None:
        self._ledger.closed(await rest(), lambda: 0)


def open_ledger(
    settings: LedgerSettings,
    store: Records,
    root: Path,
    name: str,
    pricing: Pricing,
    on_lost: Callable[[RequestRecord], None] = lambda record: None,
) -> SpoolLedger:
    """A ledger that writes to `store`, through a spool of its own in `root`; raises StartError.

    Other gateways of this host may use the same folder at the same time; `on_lost` is called, by
    another thread, with what one that died had under way.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        spool = Spool(root / instance_name(name), settings.spool_bytes)
    except OSError as error:
        raise StartError(
            f"the ledger's spool {root} cannot be written: {error.strerror or error}"
        ) from None
    needs = DrainNeeds(
        spool=spool,
        store=store,
        root=root,
        price=pricing.cost,
        wall_clock=time.time,
        retention_days=settings.retention_days,
        on_lost=on_lost,
    )
    return SpoolLedger(spool, Drain(needs), store)


def instance_name(gateway: str) -> str:
    """Name of this process's folder: no other process's, on whatever host."""
    host = "".join(char if char.isalnum() or char in "-_" else "-" for char in socket.gethostname())
    mine = "".join(char if char.isalnum() or char in "-_" else "-" for char in gateway)
    return f"{host}-{mine}-{os.getpid()}-{time.time_ns():x}"[:200]
