"""The ledger without a database: the latest records, in this process."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import msgspec

from headway.core.base.metrics import Outcome
from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import (
    SUMS,
    RecordPage,
    RecordQuery,
    UsageQuery,
    UsageRow,
    group_of,
    page_of,
)

KEPT = 1000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRecord).decode


class MemoryUsage:
    """The latest records; usable from any thread.

    They are kept encoded: a thousand take some 700 KB then, and nothing that a collector has
    to look at.
    """

    def __init__(self, kept: int = KEPT, wall_clock: Callable[[], float] = time.time) -> None:
        self._kept = kept
        self._wall_clock = wall_clock
        self._erased: dict[str, float] = {}  # tenants, and when that was
        self._records: OrderedDict[str, bytes] = OrderedDict()
        self._shown: dict[str, str] = {}  # the client's id -> ours, of the latest
        self._lock = Lock()

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Keep these, and as many of the others as there is room for."""
        with self._lock:
            for record in records:
                if record.id in self._records:
                    continue
                if record.began <= self._erased.get(record.tenant, 0.0):
                    continue
                self._records[record.id] = _encode(record)
                self._shown[record.shown_id] = record.id
                if len(self._records) > self._kept:
                    self._drop(next(iter(self._records)))

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Sums over what is kept, in the order of the groups."""
        sums: dict[tuple[str, ...], dict[str, int | float]] = {}
        for record in self._all():
            is_wanted = _is_within(record, query.since, query.until) and _is_of(record, query)
            if not is_wanted or query.key not in (None, record.key_id):
                continue
            names = ("requests", "ok", *SUMS)
            row = sums.setdefault(group_of(record, query.group_by), dict.fromkeys(names, 0))
            row["requests"] += 1
            row["ok"] += record.outcome == Outcome.OK.value
            for name in SUMS:
                row[name] += getattr(record, name)
        return [
            msgspec.convert({"group": group, **row}, UsageRow)
            for group, row in sorted(sums.items())
        ]

    def find(self, request_id: str) -> RequestRecord | None:
        """The record by our id, or the latest by the client's."""
        with self._lock:
            found = self._records.get(request_id)
            if found is None:
                found = self._records.get(self._shown.get(request_id, ""))
        return None if found is None else _decode(found)

    def page(self, query: RecordQuery) -> RecordPage:
        """Records, the latest first."""
        found = [
            record
            for record in self._all()
            if _is_within(record, query.since, None)
            and _is_of(record, query)
            and query.outcome in (None, record.outcome)
            and (query.before is None or (record.began, record.id) < query.before)
        ]
        found.sort(key=lambda record: (record.began, record.id), reverse=True)
        return page_of(found, query.limit)

    def expire(self, before: float, most: int) -> int:
        """Delete up to `most` records of requests that began before that; how many it were."""
        old = [record.id for record in self._all() if record.began < before][:most]
        with self._lock:
            for request_id in old:
                self._drop(request_id)
        return len(old)

    def of_tenant(self, tenant: str) -> list[RequestRecord]:
        """What is kept of one tenant's."""
        return [record for record in self._all() if record.tenant == tenant]

    def erase(self, tenant: str) -> None:
        """Forget a tenant's, and those of it that have begun and come later."""
        gone = [record.id for record in self.of_tenant(tenant)]
        with self._lock:
            self._erased[tenant] = self._wall_clock()
            for request_id in gone:
                self._drop(request_id)

    def _all(self) -> Iterator[RequestRecord]:
        with self._lock:
            found = list(self._records.values())
        return (_decode(each) for each in found)

    def _drop(self, request_id: str) -> None:
        record = _decode(self._records.pop(request_id))
        if self._shown.get(record.shown_id) == request_id:
            del self._shown[record.shown_id]


def _is_within(record: RequestRecord, since: float | None, until: float | None) -> bool:
    return (since is None or record.began >= since) and (until is None or record.began < until)


def _is_of(record: RequestRecord, query: UsageQuery | RecordQuery) -> bool:
    model = record.route.model if record.route is not None else ""
    return query.tenant in (None, record.tenant) and query.model in (None, model)
