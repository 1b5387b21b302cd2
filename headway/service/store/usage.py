"""The ledger in a SQL database: records go in once each, sums and pages come out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import StatementError

from headway.core.base.errors import InvalidRequest
from headway.core.base.metrics import Outcome
from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import (
    MAX_ROWS,
    SUMS,
    RecordPage,
    RecordQuery,
    UsageQuery,
    UsageRow,
    name_of_time,
    page_of,
)
from headway.core.tenancy.administer import ERASED
from headway.service.store.accounts_tables import AUDIT, STATE
from headway.service.store.database import Database
from headway.service.store.usage_rows import DAY_S, HOUR_S, record_of, row_of
from headway.service.store.usage_tables import REQUESTS

C = REQUESTS.c


class SqlUsage:
    """Records of requests in a database; every method blocks and may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Keep these, in one transaction; those whose id is there already change nothing.

        What began before its tenant was erased is not kept, from whichever gateway it comes.
        Raises ValueError for a record that the database does not take by itself: what it says of
        any record is StoreUnavailable, so that none is lost to a standby or a missing grant.
        """
        if not records:
            return
        kind = sqlite if self._database.is_sqlite else postgresql
        statement = kind.insert(REQUESTS).on_conflict_do_nothing(index_elements=["id"])
        rows = [row_of(record) for record in records]

        def add(connection: Connection) -> None:
            erased = self._erased(connection, {row["tenant"] for row in rows})
            kept = [row for row in rows if row["began"] > erased.get(row["tenant"], 0.0)]
            if kept:
                connection.execute(statement, kept)

        try:
            self._database.write(add)
        except StatementError as error:
            # Not its text, which has the record's values in it.
            raise ValueError(f"the database refused it: {type(error).__name__}") from None

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Sums by group, in the order of the groups; raises InvalidRequest over MAX_ROWS."""
        groups = [GROUPS[name] for name in query.group_by]
        columns = [group.column.label(f"g{i}") for i, group in enumerate(groups)]
        ok = func.sum(case((C.outcome == Outcome.OK.value, 1), else_=0)).label("ok")
        sums = [func.sum(C[name]).label(name) for name in SUMS]
        statement = (
            select(*columns, func.count().label("requests"), ok, *sums)
            .where(*_wanted(query.since, query.until, tenant=query.tenant, model=query.model))
            .where(*([] if query.key is None else [C.key_id == query.key]))
            .group_by(*[group.column for group in groups])
            .order_by(*[group.column for group in groups])
            .limit(MAX_ROWS + 1)
        )

        def read(connection: Connection) -> list[UsageRow]:
            found = _rows(connection, statement)
            if len(found) > MAX_ROWS:  # a part of them would be taken for all
                raise InvalidRequest(
                    f"There are more than {MAX_ROWS} groups; ask for a shorter time or for fewer "
                    f"groups.",
                    param="group_by",
                )
            rows = [_usage_row(row, groups) for row in found if row["requests"]]
            return sorted(rows, key=lambda row: row.group)  # databases order texts as they like

        return self._database.read(read)

    def find(self, request_id: str) -> RequestRecord | None:
        """The record by our id, or the latest by the client's."""
        statement = (
            select(REQUESTS)
            .where(or_(C.id == request_id, C.shown_id == request_id))
            .order_by((C.id == request_id).desc(), C.began.desc())
            .limit(1)
        )

        def read(connection: Connection) -> RequestRecord | None:
            return next((record_of(row) for row in _rows(connection, statement)), None)

        return self._database.read(read)

    def page(self, query: RecordQuery) -> RecordPage:
        """Records, the latest first."""
        conditions = _wanted(query.since, None, tenant=query.tenant, model=query.model)
        if query.outcome is not None:
            conditions.append(C.outcome == query.outcome)
        if query.before is not None:
            began, request_id = query.before
            conditions.append(or_(C.began < began, and_(C.began == began, C.id < request_id)))
        statement = (
            select(REQUESTS)
            .where(*conditions)
            .order_by(C.began.desc(), C.id.desc())
            .limit(query.limit + 1)
        )

        def read(connection: Connection) -> RecordPage:
            found = [record_of(row) for row in _rows(connection, statement)]
            return page_of(found, query.limit)

        return self._database.read(read)

    def expire(self, before: float, most: int) -> int:
        """Delete up to `most` records of requests that began before that; how many it were."""
        old = select(C.id).where(C.began < before).order_by(C.began).limit(most)
        statement = delete(REQUESTS).where(C.id.in_(old))
        return self._database.write(lambda connection: connection.execute(statement).rowcount)

    def _erased(self, connection: Connection, tenants: set[str]) -> dict[str, float]:
        """When these were erased, if they were; nobody erases one until the transaction ends."""
        if not self._database.is_sqlite:  # which has one writer at a time anyway
            connection.execute(select(STATE.c.revision).with_for_update(read=True))
        marks = (
            select(AUDIT.c.subject, func.max(AUDIT.c.at))
            .where(AUDIT.c.action == ERASED, AUDIT.c.subject.in_(tenants))
            .group_by(AUDIT.c.subject)
        )
        return {name: at for name, at in connection.execute(marks)}


class _Group(NamedTuple):
    """What to group by, and how its values are called."""

    column: ColumnElement[Any]
    name: Callable[[Any], str] = str


GROUPS: Mapping[str, _Group] = {
    "tenant": _Group(C.tenant),
    "key": _Group(C.key_id),
    "model": _Group(C.model),
    "version": _Group(C.version),
    "replica": _Group(C.replica),
    "endpoint": _Group(C.endpoint),
    "class": _Group(C.slo_class),
    "outcome": _Group(C.outcome),
    "hour": _Group(C.hour, lambda hour: name_of_time("hour", hour * HOUR_S)),
    "day": _Group(C.hour // 24, lambda day: name_of_time("day", day * DAY_S)),
    "month": _Group(C.month, lambda month: f"{month // 100:04}-{month % 100:02}"),
}


def _rows(connection: Connection, statement: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in connection.execute(statement)]


def _wanted(
    since: float | None, until: float | None, *, tenant: str | None, model: str | None
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(C.began >= since)
    if until is not None:
        conditions.append(C.began < until)
    if tenant is not None:
        conditions.append(C.tenant == tenant)
    if model is not None:
        conditions.append(C.model == model)
    return conditions


def _usage_row(row: Mapping[str, Any], groups: Sequence[_Group]) -> UsageRow:
    sums = {name: row[name] or 0 for name in ("requests", "ok", *SUMS)}
    group = tuple(group.name(row[f"g{i}"]) for i, group in enumerate(groups))
    # PostgreSQL adds whole numbers up to decimal ones.
    return msgspec.convert({"group": group, **{k: _number(v) for k, v in sums.items()}}, UsageRow)


def _number(value: Any) -> float | int:
    return value if isinstance(value, float | int) else int(value)
