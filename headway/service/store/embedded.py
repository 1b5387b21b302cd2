"""An SQLite file that costs a server nearly nothing until it is asked: the embedded default.

Records are written, and tenants and keys are followed, with the standard library's driver alone.
SQLAlchemy is imported with the first question or edit, or before, as by a server that expects them:
the import would hold up streams, whichever thread does it. The schema is made by a process of its
own (`make`).
"""

import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headway.core.base.errors import StartError, StoreUnavailable
from headway.core.base.units import Seconds
from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import RecordPage, RecordQuery, UsageQuery, UsageRow
from headway.core.tenancy.administer import ERASED
from headway.core.tenancy.book import AccountStore, Book, Snapshot
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.accounts_rows import key_of, tenant_of
from headway.service.store.usage_rows import row_of

if TYPE_CHECKING:
    from headway.service.store.database import Database
    from headway.service.store.usage import SqlUsage

log = logging.getLogger(__name__)

T = TypeVar("T")
SCHEMA = "0002"  # the newest revision in `migrations/versions`
MAKE = (sys.executable, "-m", "headway.service.store.make")
MAKE_S = 60.0
BUSY_S = 10.0  # for another writer
RETRY_S = Seconds(2.0)
PRAGMAS = (
    "PRAGMA secure_delete = ON",  # what is erased is overwritten
    "PRAGMA cache_size = -256",  # KiB
)
REVISION = "SELECT revision FROM account_state"
TENANTS = "SELECT * FROM tenants ORDER BY name"
KEYS = "SELECT * FROM tenant_keys ORDER BY created, id"
VERSION = "SELECT version_num FROM alembic_version"
WAS_ERASED = "SELECT max(at) FROM audit WHERE action = ? AND subject = ?"
EXPIRE = (
    "DELETE FROM requests WHERE id IN "
    "(SELECT id FROM requests WHERE began < ? ORDER BY began LIMIT ?)"
)


class _NotMade(Exception):
    """The schema could not be brought up to date; says why."""


class EmbeddedFile:
    """One file; usable from any thread, and from several processes at once."""

    def __init__(self, path: Path, make: Sequence[str] = MAKE) -> None:
        """`make` is the command that brings the schema of the URL behind it up to date."""
        self.path = path.absolute()
        self._make = make
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None  # once the schema is the newest
        self._database: Database | None = None
        self._stamp = _stamp(self.path)  # of the file that they are connected to

    def prepare(self) -> None:
        """Make it now, or see that it can be used; raises StartError."""
        with self._lock:
            try:
                self._connection = self._connection or self._opened()
            except _NotMade as error:
                raise StartError(str(error)) from error
            except sqlite3.Error as error:
                raise StartError(f"database {self.path}: cannot be opened: {error}") from error

    def revision(self) -> int:
        """Of its tenants and keys; 0 as long as nobody set any up. Raises StoreUnavailable."""
        if not self.path.exists():
            return 0
        with self._lock, _told(self.path):
            self._look()
            connection = self._connection or sqlite3.connect(self.path, timeout=BUSY_S)
            try:
                return int(connection.execute(REVISION).fetchone()[0])
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # it is being made
                    return 0
                raise
            finally:
                if connection is not self._connection:
                    connection.close()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """All of it, or nothing; the file is made first. Raises StoreUnavailable."""
        return self._run("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """On one state, which it must not change; otherwise as `write`."""
        return self._run("BEGIN", work)

    def load(self) -> "Database":
        """The same file as SQLAlchemy has it, which is imported now. Raises StartError."""
        with self._lock:
            self._look()
            if self._database is None:
                # Here and not above: see the head of this file.
                from headway.service.store.database import file_url, open_database

                self._database = open_database(file_url(self.path))
                self._stamp = _stamp(self.path)
            return self._database

    def database(self) -> "Database":
        """The same; raises StoreUnavailable."""
        try:
            return self.load()
        except StartError as error:
            raise _unavailable(self.path, error.message) from error

    def close(self) -> None:
        """Give up every connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            if self._database is not None:
                self._database.close()

    def _run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock, _told(self.path):
            self._look()
            connection = self._connection = self._connection or self._opened()
            with connection:  # commits, or rolls back
                connection.execute(begin)
                return work(connection)

    def _look(self) -> None:
        """Give up a file that somebody removed or replaced: what is written there would be lost."""
        if _stamp(self.path) == self._stamp:
            return
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._database is not None:
            self._database.close()  # it connects again
        self._stamp = _stamp(self.path)

    def _opened(self) -> sqlite3.Connection:
        """With the newest schema."""
        if not self._is_current():
            url = f"sqlite:///{self.path}"
            try:
                made = subprocess.run(
                    [*self._make, url], capture_output=True, text=True, timeout=MAKE_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _NotMade(f"database {self.path}: cannot be made: {error}") from error
            if made.returncode != 0:
                raise _NotMade(" ".join(made.stderr.split())[-500:])
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        for pragma in PRAGMAS:
            connection.execute(pragma).close()
        self._stamp = _stamp(self.path)
        return connection

    def _is_current(self) -> bool:
        if not self.path.exists():
            return False
        connection = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            return bool(connection.execute(VERSION).fetchone() == (SCHEMA,))
        except sqlite3.OperationalError:  # it is empty, or being made
            return False
        finally:
            connection.close()


class EmbeddedUsage:
    """Records in such a file: written as they are, asked through SQLAlchemy."""

    def __init__(self, file: EmbeddedFile) -> None:
        self._file = file

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Keep these, as `SqlUsage.add` does."""
        rows = [row_of(record) for record in records]
        if not rows:
            return
        names = ", ".join(f'"{name}"' for name in rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        insert = f"INSERT INTO requests ({names}) VALUES ({values}) ON CONFLICT (id) DO NOTHING"
        tenants = {row["tenant"] for row in rows}

        def add(connection: sqlite3.Connection) -> None:
            erased = {name: _erased(connection, name) for name in tenants}
            kept = [row for row in rows if row["began"] > erased[row["tenant"]]]
            connection.executemany(insert, kept)

        try:
            self._file.write(add)
        except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, ValueError) as error:
            raise ValueError(f"the database refused it: {type(error).__name__}") from None

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Sums by group, in the order of the groups."""
        return self._full().usage(query)

    def find(self, request_id: str) -> RequestRecord | None:
        """The record by our id, or the latest by the client's."""
        return self._full().find(request_id)

    def page(self, query: RecordQuery) -> RecordPage:
        """Records, the latest first."""
        return self._full().page(query)

    def expire(self, before: float, most: int) -> int:
        """Delete up to `most` records of requests that began before that; how many it were."""
        return self._file.write(
            lambda connection: connection.execute(EXPIRE, (before, most)).rowcount
        )

    def _full(self) -> "SqlUsage":
        from headway.service.store.usage import SqlUsage

        return SqlUsage(self._file.database())


class EmbeddedAccounts:
    """Tenants and keys in such a file: an AccountStore that is empty until somebody makes one."""

    def __init__(self, file: EmbeddedFile) -> None:
        self._file = file
        self._full: AccountStore | None = None
        self._empty = MemoryAccounts()

    def read(self, work: Callable[[Book], T]) -> T:
        """On one state; raises StoreUnavailable."""
        if self._full is None and self._file.revision() == 0:
            return self._empty.read(work)
        return self._opened().read(work)

    def edit(self, work: Callable[[Book], T]) -> T:
        """Alone, over all processes; raises StoreUnavailable."""
        return self._opened().edit(work)

    def changed(self, since: int) -> Snapshot | None:
        """All tenants and keys, unless that is their revision, without SQLAlchemy.

        Raises StoreUnavailable, also where there were some and the file is gone.
        """
        revision = self._file.revision()
        if revision == since:
            return None
        if revision == 0:
            if since > 0:
                raise _unavailable(self._file.path, "it was removed, and its tenants with it")
            return Snapshot()
        return self._file.read(_snapshot)

    def _opened(self) -> AccountStore:
        if self._full is None:
            from headway.service.store.accounts_sql import SqlAccounts

            self._full = SqlAccounts(self._file.database())
        return self._full


def _snapshot(connection: sqlite3.Connection) -> Snapshot:
    """All tenants and keys in the file."""
    (revision,) = connection.execute(REVISION).fetchone()
    tenants, keys = (_rows(connection, query) for query in (TENANTS, KEYS))
    return Snapshot(
        revision=revision,
        tenants=tuple(tenant_of(row) for row in tenants),
        keys=tuple(key_of(row) for row in keys),
    )


def _rows(connection: sqlite3.Connection, query: str) -> list[dict[str, object]]:
    found = connection.execute(query)
    names = [str(each[0]) for each in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one at the same path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _erased(connection: sqlite3.Connection, tenant: str) -> float:
    """When it was; 0 if it was not."""
    (at,) = connection.execute(WAS_ERASED, (ERASED, tenant)).fetchone()
    return float(at or 0.0)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """The driver's errors as ours; a record that cannot be kept is none of the file's."""
    try:
        yield
    except (sqlite3.DataError, sqlite3.IntegrityError):
        raise
    except (sqlite3.Error, _NotMade) as error:
        raise _unavailable(path, str(error)) from error


def _unavailable(path: Path, reason: str) -> StoreUnavailable:
    """Clients are not told where the file is; the log is."""
    log.warning("database_unavailable", extra={"database": str(path), "reason": reason})
    return StoreUnavailable("the database of this server does not answer now", RETRY_S)
