"""The SQL database: opened by its URL, brought to the newest schema, used by short transactions.

Everything here blocks; on an event loop it is called through `DatabaseThread`. SQLite is the
embedded default, PostgreSQL (psycopg 3) what several hosts share.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoConnection

from headway.core.base.errors import StartError, StoreUnavailable
from headway.core.base.units import Seconds

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Connection], T]

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x4865616477617931  # any number that is ours: "Headway1"
BUSY_S = 10.0  # how long SQLite waits for another writer
CONNECT_S = 5
NETWORK_S = 10  # without an acknowledgement, after which a connection counts as lost
RETRY_S = Seconds(2.0)
MOST_WAITING = 1024  # calls of one DatabaseThread
READS = "headway_reads"  # execution option of a transaction that only reads
POSTGRES = frozenset({"postgresql", "postgres", "postgresql+psycopg"})


class Database:
    """One database with the newest schema; usable from any thread."""

    def __init__(self, engine: Engine, shown: str) -> None:
        """To be made by `open_database`; `shown` is its URL without secrets."""
        self.engine = engine
        self.shown = shown
        self._reading: dict[str, Any] = {READS: True}
        if not self.is_sqlite:
            self._reading |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of this host, with one writer at a time."""
        return self.engine.dialect.name == "sqlite"

    def read(self, work: Work[T]) -> T:
        """Run `work` on one consistent state, which it must not change.

        Raises StoreUnavailable when the database cannot be reached.
        """
        with self._reported(), self.engine.connect() as connection:
            connection.execution_options(**self._reading)
            with connection.begin():
                return work(connection)

    def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction: all of it is kept, or, when it raises, nothing.

        Raises StoreUnavailable when the database cannot be reached, or takes nothing now, as one
        that may only be read. IntegrityError and DataError pass: it is the work that is at fault.
        """
        with self._reported(), self.engine.begin() as connection:
            return work(connection)

    def close(self) -> None:
        """Give up every connection."""
        self.engine.dispose()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError):
            raise
        except (DBAPIError, NoConnection) as error:
            raise _unavailable(self.shown, error) from error


class DatabaseThread:
    """Runs database calls off the event loop, in order where it is one thread.

    A call that was begun is finished also when its caller is cancelled.
    """

    def __init__(self, database: Database, num_threads: int = 1) -> None:
        self._database = database
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="database")
        self._num_waiting = 0
        self._lock = threading.Lock()

    async def read(self, work: Work[T]) -> T:
        """As `Database.read`; raises StoreUnavailable also where too many calls wait."""
        return await self.run(lambda: self._database.read(work))

    async def write(self, work: Work[T]) -> T:
        """As `Database.write`; raises StoreUnavailable also where too many calls wait."""
        return await self.run(lambda: self._database.write(work))

    async def run(self, call: Callable[[], T]) -> T:
        """Run anything that blocks, in the same thread."""
        with self._lock:
            if self._num_waiting >= MOST_WAITING:
                raise StoreUnavailable("too many calls wait for the database", RETRY_S)
            self._num_waiting += 1
        future = self._pool.submit(call)
        future.add_done_callback(self._is_done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the calls that were begun; blocks."""
        self._pool.shutdown(wait=True)

    def _is_done(self, _: object) -> None:
        with self._lock:
            self._num_waiting -= 1


def open_database(url: str) -> Database:
    """The database at a URL, made if it is a file that is not there, with the newest schema.

    Takes `sqlite:///FILE` and `postgresql://...`. Gateways that start at once wait for each
    other. Raises StartError, which names the URL without its password.
    """
    parsed = _parsed(url)
    shown = shown_url(url)
    engine = _sqlite(parsed, shown) if parsed.drivername == "sqlite" else _postgres(parsed, shown)
    database = Database(engine, shown)
    try:
        with _alone(parsed):
            migrate(engine)
    except (DBAPIError, OSError, CommandError) as error:
        database.close()
        raise _cannot_open(shown, error) from error
    return database


def shown_url(url: str) -> str:
    """The URL without its password and without its options, which may hold one too."""
    parsed = _parsed(url).set(query={})
    return parsed.render_as_string(hide_password=True)


def file_url(path: Path) -> str:
    """URL of an SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the schema to the newest revision, in one transaction that nobody else is in."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:  # on SQLite this is the write lock already
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StartError(
            "database: the URL cannot be read; it must be sqlite:///FILE or "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from None
    if parsed.drivername in POSTGRES:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername != "sqlite":
        raise StartError(
            f"database: {parsed.drivername}:// is not supported; give sqlite:///FILE or "
            f"postgresql://USER:PASSWORD@HOST:PORT/NAME"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StartError(
            "database: sqlite:// needs a file, as in sqlite:///headway.db or sqlite:////var/x.db; "
            "without a database, everything is in memory already"
        )
    return parsed


def _sqlite(url: URL, shown: str) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Hashes of keys are in it; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise _cannot_open(shown, error) from None
    engine = create_engine(url, connect_args={"timeout": BUSY_S})

    def connected(raw: Any, _: object) -> None:
        raw.isolation_level = None  # the driver would begin late, and not at all for a schema
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("PRAGMA secure_delete = ON").close()  # what is erased is overwritten
        raw.execute("PRAGMA journal_mode = WAL").close()  # the file remembers it

    def begun(connection: Connection) -> None:
        # A transaction that reads first and then finds another writer would fail at once.
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def _postgres(url: URL, shown: str) -> Engine:
    options = {
        "connect_timeout": CONNECT_S,
        "keepalives_idle": NETWORK_S,
        "tcp_user_timeout": NETWORK_S * 1000,
        "application_name": "headway",
    }
    given = {name: value for name, value in options.items() if name not in url.query}
    try:
        return create_engine(url, connect_args=given, pool_pre_ping=True, pool_timeout=CONNECT_S)
    except (ImportError, NoSuchModuleError):
        raise StartError(
            f"database {shown}: the driver is not installed; pip install 'headway[postgres]'"
        ) from None


@contextlib.contextmanager
def _alone(url: URL) -> Iterator[None]:
    """Where it is a file: no other process opens it meanwhile."""
    if url.drivername != "sqlite":
        yield
        return
    descriptor = os.open(f"{url.database}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unavailable(shown: str, error: Exception) -> StoreUnavailable:
    """Clients are not told where the database is; the log is."""
    log.warning("database_unavailable", extra={"database": shown, "reason": _reason(error)})
    return StoreUnavailable("the database of this server does not answer now", RETRY_S)


def _cannot_open(shown: str, error: Exception) -> StartError:
    if isinstance(error, CommandError):
        return StartError(
            f"database {shown}: its schema is not one of this version ({_reason(error)}); "
            f"it was made by a newer Headway, use that one"
        )
    return StartError(f"database {shown}: cannot be opened: {_reason(error)}")


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return " ".join(said.split())
