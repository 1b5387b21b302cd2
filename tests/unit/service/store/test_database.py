"""Opening a database: its URL, its schema, several processes at once, and what is said when not."""

import asyncio
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import IntegrityError

from headway.core.base.errors import StartError, StoreUnavailable
from headway.core.tenancy.book import snapshot
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.accounts_tables import AUDIT, KEYS, METADATA, TENANTS
from headway.service.store.database import (
    MOST_WAITING,
    DatabaseThread,
    file_url,
    migrate,
    open_database,
    shown_url,
)
from headway.service.store.settings import StoreSettings, default_folder, path_of, url_of
from headway.service.store.tenant_data import TENANT_TABLES
from headway.service.store.usage import SqlUsage
from tests.unit.service.store.records import record

NUM_PROCESSES = 4
OPENS = """
import sys
from headway.service.store.database import open_database
from sqlalchemy import text
sys.stdin.read(1)  # all begin together
database = open_database(sys.argv[1])
print(database.read(lambda c: c.execute(text("SELECT count(*) FROM account_state")).scalar_one()))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that is not there yet."""
    if request.param == "sqlite":
        return file_url(tmp_path / "sub" / "headway.db")
    return str(request.getfixturevalue("postgres_url"))


def test_the_schema_is_there_after_opening_and_opening_again_changes_nothing(url: str) -> None:
    for _ in range(2):
        database = open_database(url)
        names = set(inspect(database.engine).get_table_names())
        database.close()
        assert set(METADATA.tables) | {"alembic_version"} <= names


def as_first_released(url: str) -> None:
    """A database with the schema of the first revision, and nothing in it."""
    database = open_database(url)
    with database.engine.begin() as connection:
        for name in inspect(connection).get_table_names():
            cascade = "CASCADE" if database.engine.dialect.name == "postgresql" else ""
            connection.execute(text(f"DROP TABLE {name} {cascade}"))
    migrate(database.engine, "0001")
    assert "requests" not in inspect(database.engine).get_table_names()
    database.close()


@pytest.mark.parametrize("num_processes", [1, NUM_PROCESSES])
def test_a_database_of_the_first_revision_is_brought_up_to_date_with_what_is_in_it(
    url: str, num_processes: int
) -> None:
    as_first_released(url)
    parsed = url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(parsed)
    with engine.begin() as connection:
        limits = '{"requests_per_minute":7}'
        told = {"name": "acme", "slo_class": "vip", "weight": 2.0, "limits": limits, "models": "[]"}
        told |= {"may_degrade": False, "is_disabled": False, "created": 1.0, "changed": 1.0}
        connection.execute(TENANTS.insert().values(told))
        key = {"id": "k", "tenant": "acme", "label": "ci", "hash": "h", "created": 1.0}
        connection.execute(KEYS.insert().values(key | {"replaced_by": ""}))
        note = {"at": 1.0, "who": "cli:me", "action": "key.create", "tenant": "acme"}
        note |= {"subject": "k", "before": "", "after": ""}
        connection.execute(AUDIT.insert().values(note))
        connection.execute(text("UPDATE account_state SET revision = 2"))
    engine.dispose()
    all_open(url, num_processes)
    database = open_database(url)
    book = SqlAccounts(database).read(snapshot)
    assert (book.revision, [each.name for each in book.tenants]) == (2, ["acme"])
    assert book.tenants[0].limits.requests_per_minute == 7
    assert [each.id for each in book.keys] == ["k"]
    SqlUsage(database).add([record("first")])
    assert SqlUsage(database).find("first") == record("first")
    database.close()


def test_several_processes_may_open_a_new_database_at_once(url: str) -> None:
    all_open(url, NUM_PROCESSES)


def all_open(url: str, num_processes: int) -> None:
    """So many processes open it at the same moment; all succeed."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPENS, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(num_processes)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, problem = child.communicate(timeout=60)
        assert (child.returncode, out.strip()) == (0, "1"), problem


def test_every_table_with_a_tenant_is_known_to_export_and_erase(url: str) -> None:
    database = open_database(url)
    found = inspect(database.engine)
    with_tenant = {
        name
        for name in found.get_table_names()
        if any(column["name"] == "tenant" for column in found.get_columns(name))
    }
    database.close()
    assert with_tenant | {"tenants"} == {each.table.name for each in TENANT_TABLES}


def test_the_tables_in_code_are_those_of_the_migrations(url: str) -> None:
    database = open_database(url)
    found = inspect(database.engine)
    for table in METADATA.tables.values():
        columns = {column["name"]: column for column in found.get_columns(table.name)}
        assert set(columns) == set(table.columns.keys())
        for column in table.columns:
            assert columns[column.name]["nullable"] == column.nullable, column
    database.close()


def test_a_transaction_that_fails_leaves_nothing(url: str) -> None:
    database = open_database(url)
    with pytest.raises(IntegrityError):
        database.write(
            lambda connection: (
                connection.execute(text("UPDATE account_state SET revision = 7")),
                connection.execute(KEYS.insert().values(id="k", tenant="nobody")),
            )
        )
    revision = database.read(
        lambda connection: connection.execute(text("SELECT revision FROM account_state")).scalar()
    )
    assert revision == 0
    row = {"id": "k", "tenant": "no", "label": "", "hash": "", "created": 0, "replaced_by": ""}
    with pytest.raises(IntegrityError):  # foreign keys hold
        database.write(lambda connection: connection.execute(KEYS.insert().values(row)))
    database.close()


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    database = open_database(url)
    database.write(
        lambda connection: connection.execute(text("UPDATE alembic_version SET version_num='9'"))
    )
    database.close()
    with pytest.raises(StartError, match="newer Headway"):
        open_database(url)


def test_a_file_has_wal_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    database = open_database(file_url(path))
    mode = database.read(
        lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()
    )
    database.close()
    assert mode == "wal"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_reader_sees_one_state_while_another_writes(url: str) -> None:
    database = open_database(url)
    count = text("SELECT revision FROM account_state")

    def read_around_a_write(connection: object) -> tuple[object, object]:
        before = connection.execute(count).scalar()  # type: ignore[attr-defined]  # a Connection
        writer = threading.Thread(
            target=database.write,
            args=(lambda other: other.execute(text("UPDATE account_state SET revision = 3")),),
        )
        writer.start()
        writer.join()
        return before, connection.execute(count).scalar()  # type: ignore[attr-defined]

    before, after = database.read(read_around_a_write)
    assert before == after == 0
    assert database.read(lambda connection: connection.execute(count).scalar()) == 3
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:hush@host/x",
        "sqlite://",
        "sqlite:///:memory:",
        "no url at all with hush",
        "postgresql://user:hush@127.0.0.1:1/none?password=hush&options=hush",
        "postgresql://user:hush@127.0.0.1:port/none",
    ],
)
def test_a_url_that_cannot_be_opened_is_one_line_without_its_password(url: str) -> None:
    with pytest.raises(StartError) as caught:
        open_database(url)
    assert "hush" not in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_no_database_or_cannot_be_made_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StartError, match=r"broken\.db"):
        open_database(file_url(broken))
    with pytest.raises(StartError, match=r"/proc/none/x\.db"):
        open_database("sqlite:////proc/none/x.db")


def test_a_shown_url_has_neither_password_nor_options() -> None:
    shown = shown_url("postgresql://me:hush@db:5432/headway?sslpassword=hush")
    assert shown == "postgresql+psycopg://me:***@db:5432/headway"


def test_a_database_that_went_away_is_a_503_that_does_not_say_where(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    database = open_database(file_url(path))
    blocker = open_database(file_url(path))
    database.write(lambda connection: None)
    database.engine.dispose()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable) as caught:
        database.read(lambda connection: connection.execute(TENANTS.select()).all())
    assert str(path) not in caught.value.message
    assert caught.value.http_status == 503
    blocker.close()


def test_calls_of_a_thread_run_off_the_loop_and_in_order(tmp_path: Path) -> None:
    database = open_database(file_url(tmp_path / "headway.db"))

    async def scenario() -> list[int]:
        thread = DatabaseThread(database)
        seen: list[int] = []

        def note(number: int) -> str:
            seen.append(number)
            return threading.current_thread().name

        names = await asyncio.gather(*(thread.run(partial(note, n)) for n in range(20)))
        assert all(name.startswith("database") for name in names)
        thread.close()
        return seen

    assert asyncio.run(scenario()) == list(range(20))
    database.close()


def test_too_many_waiting_calls_are_refused_at_once(tmp_path: Path) -> None:
    database = open_database(file_url(tmp_path / "headway.db"))

    async def scenario() -> None:
        thread = DatabaseThread(database)
        gate = threading.Event()
        first = [asyncio.ensure_future(thread.run(gate.wait)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await thread.run(gate.wait)
        gate.set()
        assert all(await asyncio.gather(*first))
        assert await thread.run(lambda: 1) == 1
        thread.close()

    asyncio.run(scenario())
    database.close()


def test_the_url_comes_from_the_settings(tmp_path: Path) -> None:
    assert url_of(StoreSettings(data_dir="none")) is None
    assert url_of(StoreSettings()) == file_url(default_folder() / "headway.db")
    assert url_of(StoreSettings(data_dir=str(tmp_path))) == file_url(tmp_path / "headway.db")
    given = "postgresql://db/x"
    assert url_of(StoreSettings(data_dir=str(tmp_path), database_url=given)) == given
    with pytest.raises(StartError, match="--data-dir"):
        url_of(StoreSettings(data_dir="/a?b"))
    assert path_of(file_url(tmp_path / "x.db")) == tmp_path / "x.db"
    for other in ("sqlite:///x.db?timeout=3", "sqlite://", "sqlite:///:memory:", given):
        assert path_of(other) is None
