"""The thread that carries the spool into the store: batches, what dead gateways left, retention."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from headway.core.base.errors import StoreUnavailable
from headway.core.base.metrics import Outcome
from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import RecordPage, RecordQuery, UsageQuery, UsageRow
from headway.service.store.spool import Left, Position, Spool, abandoned, closed_in, left_in

log = logging.getLogger(__name__)

BATCH_ROWS = 500
BATCH_S = 1.0
READ_BYTES = 1024 * 1024  # some 600 requests
LONGEST_PAUSE_S = 30.0  # between two tries to reach a store that is away
LOOK_S = 60.0  # between two looks for what others left
EXPIRE_S = 600.0  # between two rounds of retention
EXPIRE_ROWS = 1000  # deleted in one transaction
DAY_S = 86400.0

Price = Callable[[str, int, int, int], int]  # model, prompt, cached, completion -> micros


class Records(Protocol):
    """Where records are kept; every method blocks, and may raise StoreUnavailable."""

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Keep these, all or none of them; those whose id is there already change nothing.

        Raises ValueError when one of them cannot be kept, whenever that is tried.
        """
        ...

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Sums by group, in the order of the groups."""
        ...

    def find(self, request_id: str) -> RequestRecord | None:
        """The record by our id, or the latest by the client's."""
        ...

    def page(self, query: RecordQuery) -> RecordPage:
        """Records, the latest first."""
        ...

    def expire(self, before: float, most: int) -> int:
        """Delete up to `most` records of requests that began before that; how many it were."""
        ...


@dataclass(slots=True)
class Counts:
    """What the thread has done since it began; read by others at any time."""

    num_written: int = 0
    num_refused: int = 0  # by the store, each alone: dropped
    num_lost: int = 0  # requests that were open when their gateway died
    num_damaged: int = 0
    num_errors: int = 0  # failed writes to the store
    is_away: bool = False  # the store could not be reached, and nothing was written since
    caught_up: float = 0.0  # seconds since 1970: when all that was in the spool was written


class DrainNeeds(NamedTuple):
    """What the thread works on."""

    spool: Spool
    store: Records
    root: Path  # folder of the spools of all gateways on this host
    price: Price
    wall_clock: Callable[[], float]
    retention_days: float | None = None  # None: for ever
    # Told of each request that was open when its gateway died; perhaps more than once.
    on_lost: Callable[[RequestRecord], None] = lambda record: None


class Drain:
    """One thread from `start` to `stop`; the other methods are for any thread."""

    def __init__(self, needs: DrainNeeds) -> None:
        self.counts = Counts(caught_up=needs.wall_clock())
        self._needs = needs
        self._at = Position(1, 0)  # read and written up to here
        self._has_looked = False  # for what others had left when this began
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def is_behind(self) -> bool:
        """Whether something that was closed is not in the store yet."""
        spool = self._needs.spool
        return self._at < spool.end or bool(spool.beside)

    @property
    def lag_s(self) -> float:
        """For how long it has been behind; 0 while it is not."""
        if not self.is_behind:
            return 0.0
        return max(0.0, self._needs.wall_clock() - self.counts.caught_up)

    def start(self) -> None:
        """Begin with what others left."""
        self._thread.start()

    def flush(self, timeout: float) -> bool:
        """Wait until all that is known now is in the store; False if it takes too long.

        That is what has closed here, and what others had left when this began.
        """
        spool = self._needs.spool
        end = spool.end
        self._wake.set()

        def is_written() -> bool:
            return self._has_looked and self._at >= end and not spool.beside

        with self._moved:
            return self._moved.wait_for(is_written, timeout)

    def stop(self, timeout: float) -> None:
        """Write what there is, if the store takes it in time, and end the spool."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout)
        num_beside = len(self._needs.spool.beside)
        if num_beside:  # neither the spool nor the store has taken them, and memory ends
            log.error("ledger_dropped", extra={"records": num_beside})
        if not self._thread.is_alive():
            self._needs.spool.close(is_done=not self.is_behind)

    def turn(self) -> bool:
        """Write what is in the spool; False when the store cannot be reached."""
        try:
            while self._write_some():
                pass
        except StoreUnavailable as error:
            self._is_away(error)
            return False
        if self.counts.is_away:
            log.info("ledger_store_is_back", extra={"written": self.counts.num_written})
        self.counts.is_away = False
        self.counts.caught_up = self._needs.wall_clock()
        return True

    def take_over(self) -> None:
        """Write what gateways that have died left behind, then delete it.

        What cannot be read, or not deleted, is told and tried again the next time.
        """
        for folder in abandoned(self._needs.root):
            num_damaged = self.counts.num_damaged
            try:
                num_lost = self._write_left(left_in(folder))
                shutil.rmtree(folder)
            except OSError as error:  # of its disk: the other ones have theirs
                reason = error.strerror or str(error)
                log.error(
                    "ledger_spool_not_taken_over", extra={"spool": str(folder), "reason": reason}
                )
                continue
            self.counts.num_lost += num_lost
            num_damaged = self.counts.num_damaged - num_damaged
            log.info(
                "ledger_spool_taken_over",
                extra={"spool": folder.name, "lost": num_lost, "damaged": num_damaged},
            )

    def expire(self) -> None:
        """Delete what is older than the retention, a small batch at a time."""
        days = self._needs.retention_days
        if days is None:
            return
        before = self._needs.wall_clock() - days * DAY_S
        num_deleted = 0
        while not self._stop.is_set():
            num = self._needs.store.expire(before, EXPIRE_ROWS)
            num_deleted += num
            if num < EXPIRE_ROWS:
                break
        if num_deleted:
            log.info("ledger_expired", extra={"records": num_deleted})

    def _run(self) -> None:
        pause = BATCH_S
        looks, expiries = _Rounds(LOOK_S), _Rounds(EXPIRE_S)
        while not self._stop.is_set():
            try:
                is_written = self.turn()
                now = self._needs.wall_clock()
                if is_written and looks.is_due(now):
                    self.take_over()
                    looks.done(now)
                    self._has_looked = True
                    self._move(self._at)
                if is_written and expiries.is_due(now):
                    self.expire()
                    expiries.done(now)
            except StoreUnavailable as error:
                is_written = False
                self._is_away(error)
            except Exception:  # the thread goes on: what is in the spool stays there
                is_written = False
                self.counts.num_errors += 1
                log.exception("ledger_failed")
            pause = BATCH_S if is_written else min(LONGEST_PAUSE_S, 2 * pause)
            self._wake.wait(pause)
            self._wake.clear()
        try:
            self.turn()
        except Exception:  # as above
            log.exception("ledger_failed")

    def _write_some(self) -> bool:
        """Write one batch; False when there was nothing left."""
        spool = self._needs.spool
        beside = [spool.beside[i] for i in range(min(BATCH_ROWS, len(spool.beside)))]
        data = spool.read(self._at, READ_BYTES)
        records, num_read, num_damaged = closed_in(data, BATCH_ROWS)
        if not data:
            after = spool.after(self._at)
            if after is None and not beside:
                return False
            self._move(after or self._at)
        elif not num_read:  # the end of a file that cannot be read, with others after it
            if spool.end.segment == self._at.segment:
                return False
            num_read, num_damaged = len(data), 1
        self._add([*records, *beside])
        self.counts.num_damaged += num_damaged
        for _ in beside:
            spool.beside.popleft()
        self._move(Position(self._at.segment, self._at.offset + num_read))
        return True

    def _write_left(self, left: Iterator[Left]) -> int:
        num_lost = 0
        batch: list[RequestRecord] = []
        for record, progress in left:
            if record is None:
                self.counts.num_damaged += 1
                continue
            if progress is not None:
                num_lost += 1
                record = self._lost(record, progress.sure, progress.given)
                self._needs.on_lost(record)
            batch.append(record)
            if len(batch) >= BATCH_ROWS:
                self._add(batch)
                batch = []
        self._add(batch)
        return num_lost

    def _lost(self, record: RequestRecord, sure: int, given: int) -> RequestRecord:
        """The record of a request whose gateway died under it: what was sent is what is known."""
        prompt = record.prompt_tokens if sure else 0
        model = record.route.model if record.route is not None else ""
        return msgspec.structs.replace(
            record,
            outcome=Outcome.LOST.value,
            took_s=0.0,
            prompt_tokens=prompt,
            completion_tokens=sure,
            sent_tokens=sure,
            unsure_tokens=given - sure,
            cost=self._needs.price(model, prompt, 0, sure) if sure else 0,
        )

    def _add(self, records: Sequence[RequestRecord]) -> None:
        """Write them all; of a batch that the store refuses, those that it takes one by one."""
        if not records:
            return
        try:
            self._needs.store.add(records)
            self.counts.num_written += len(records)
        except StoreUnavailable:
            raise
        except ValueError as error:  # a record that it cannot keep must not hold up the others
            self.counts.num_errors += 1
            if len(records) == 1:
                self.counts.num_refused += 1
                reason = str(error)
                log.error("ledger_refused", extra={"request_id": records[0].id, "reason": reason})
                return
            for record in records:
                self._add([record])

    def _move(self, position: Position) -> None:
        with self._moved:
            self._at = position
            self._moved.notify_all()

    def _is_away(self, error: StoreUnavailable) -> None:
        counts = self.counts
        counts.num_errors += 1
        if not counts.is_away:
            spool_bytes = self._needs.spool.num_bytes
            log.warning(
                "ledger_store_is_away", extra={"reason": error.message, "spool": spool_bytes}
            )
        counts.is_away = True
        try:  # what waits for long is to survive the machine's power too
            self._needs.spool.sync()
        except OSError as problem:  # of the disk: it survives a kill all the same
            log.warning("ledger_not_synced", extra={"reason": problem.strerror or str(problem)})


class _Rounds:
    """Something that is done now and then, also by a clock that was set back meanwhile."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time again."""
        return self._last is None or abs(now - self._last) >= self._every_s

    def done(self, now: float) -> None:
        """It was done."""
        self._last = now
