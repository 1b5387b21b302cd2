"""The embedded file: what it costs a server that nobody asks, and what it does when it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from headway.core.base.errors import StartError, StoreUnavailable
from headway.core.tenancy import administer
from headway.core.tenancy.account import KEY_RANDOM_BYTES, new_key
from headway.core.tenancy.administer import Author, TenantChange
from headway.core.tenancy.book import Book
from headway.service.store import embedded, usage_rows
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import MIGRATIONS, file_url, open_database
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile, EmbeddedUsage
from headway.service.store.usage import SqlUsage
from headway.service.store.usage_tables import REQUESTS
from tests.unit.service.store.records import record

NUM_PROCESSES = 3
UNASKED = """
import json, sys
from pathlib import Path
from headway.app import gateway  # all that a server imports
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile, EmbeddedUsage
from tests.unit.service.store.records import record

file = EmbeddedFile(Path(sys.argv[1]) / "headway.db")
usage = EmbeddedUsage(file)
sys.stdin.read(1)  # all begin together
usage.add([record(sys.argv[2])])
revision = EmbeddedAccounts(file).changed(-1).revision
loaded = [name for name in ("sqlalchemy", "alembic") if name in sys.modules]
found = usage.find(sys.argv[2]) is not None
print(json.dumps([revision, loaded, found, "sqlalchemy" in sys.modules]))
"""


def test_a_server_that_is_not_asked_imports_no_sql_library_and_several_share_a_folder(
    tmp_path: Path,
) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", UNASKED, str(tmp_path), f"r{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(NUM_PROCESSES)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, problem = child.communicate(timeout=120)
        assert child.returncode == 0, problem
        assert json.loads(out) == [0, [], True, True]


FOLLOWING = """
import json, sys
from pathlib import Path
from headway.app import gateway  # all that a server imports
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile

accounts = EmbeddedAccounts(EmbeddedFile(Path(sys.argv[1]) / "headway.db"))
assert accounts.changed(-1).revision == 0
print("empty", flush=True)
sys.stdin.readline()
before = set(sys.modules)
found = accounts.changed(0)
names = [each.name for each in found.tenants], [each.tenant for each in found.keys]
new = sorted(name for name in set(sys.modules) - before if not name.startswith("encodings"))
print(json.dumps([names, new]))
"""


def test_the_first_tenant_beside_a_running_server_makes_it_import_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FOLLOWING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "empty\n"
    database = open_database(file_url(tmp_path / "headway.db"))  # as `headway admin` does
    key = new_key(os.urandom(KEY_RANDOM_BYTES), log_n=4)

    def set_up(book: Book) -> None:
        administer.create_tenant(book, "acme", TenantChange(), Author("me", 1.0))
        administer.add_key(book, "acme", key, "", None, Author("me", 1.0))

    SqlAccounts(database).edit(set_up)
    database.close()
    out, problem = child.communicate("\n", timeout=120)
    assert child.returncode == 0, problem
    assert json.loads(out) == [[["acme"], ["acme"]], []]


def test_a_file_whose_tenants_are_gone_is_away_and_not_empty(tmp_path: Path) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    accounts = EmbeddedAccounts(file)
    accounts.edit(
        lambda book: administer.create_tenant(book, "acme", TenantChange(), Author("me", 1.0))
    )
    found = accounts.changed(0)
    assert found is not None
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(StoreUnavailable):
        accounts.changed(found.revision)
    file.close()


def test_what_is_said_of_the_schema_is_what_the_migrations_make() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == embedded.SCHEMA
    sizes = {c.name: size for c in REQUESTS.c if (size := getattr(c.type, "length", None))}
    assert sizes == usage_rows.TEXT_SIZES
    assert set(usage_rows.row_of(record())) == set(REQUESTS.c.keys())


def test_a_tenant_that_another_process_makes_is_seen(tmp_path: Path) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    accounts = EmbeddedAccounts(file)
    assert accounts.read(lambda book: book.revision()) == 0
    assert not list(tmp_path.iterdir())  # looking makes nothing
    database = open_database(file_url(file.path))
    assert accounts.read(lambda book: book.revision()) == 0
    SqlAccounts(database).edit(
        lambda book: administer.create_tenant(book, "acme", TenantChange(), Author("me", 1.0))
    )
    assert [each.name for each in accounts.read(lambda book: book.tenants())] == ["acme"]
    found = accounts.changed(0)
    assert found is not None
    assert [each.name for each in found.tenants] == ["acme"]
    file.close()
    database.close()


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    usage = EmbeddedUsage(file)
    usage.add([record("one")])
    for path in tmp_path.iterdir():
        path.unlink()
    usage.add([record("two")])
    assert usage.find("two") is not None
    file.close()


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_file_that_was_replaced_beside_us_is_the_one_that_is_written(
    tmp_path: Path, is_asked: bool
) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    usage = EmbeddedUsage(file)
    usage.add([record("one")])
    if is_asked:
        assert usage.find("one") is not None
    for path in tmp_path.iterdir():
        path.unlink()
    open_database(file_url(file.path)).close()  # as by a command that made it anew
    usage.add([record("two")])
    assert usage.find("two") is not None
    assert usage.find("one") is None
    other = open_database(file_url(file.path))
    assert SqlUsage(other).find("two") is not None
    other.close()
    file.close()


@pytest.mark.parametrize("make", [("false",), ("headway-no-such-program",)])
def test_a_schema_that_cannot_be_made_is_a_store_that_is_away(
    tmp_path: Path, make: tuple[str, ...]
) -> None:
    file = EmbeddedFile(tmp_path / "headway.db", make)
    with pytest.raises(StoreUnavailable):
        EmbeddedUsage(file).add([record()])
    with pytest.raises(StartError):
        file.prepare()


def test_a_file_that_is_no_database_is_away_for_records_and_for_tenants(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "headway.db").write_bytes(b"not a database at all" * 100)
    file = EmbeddedFile(tmp_path / "headway.db")
    with pytest.raises(StoreUnavailable):
        EmbeddedUsage(file).add([record()])
    with pytest.raises(StoreUnavailable):  # a server must not open itself to everybody for it
        EmbeddedAccounts(file).read(lambda book: book.revision())
    with pytest.raises(StoreUnavailable):
        EmbeddedAccounts(file).changed(-1)
    with pytest.raises(StoreUnavailable):
        EmbeddedUsage(file).find("r1")
    with pytest.raises(StartError, match=r"headway\.db"):
        file.prepare()
    assert "not a database" in str([vars(each).get("reason") for each in caplog.records])


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    EmbeddedUsage(file).add([record()])
    file.write(lambda connection: connection.execute("UPDATE alembic_version SET version_num='9'"))
    with pytest.raises(StoreUnavailable):
        EmbeddedUsage(EmbeddedFile(tmp_path / "headway.db")).add([record("r2")])
    with pytest.raises(StartError, match="newer Headway"):
        EmbeddedFile(tmp_path / "headway.db").prepare()
    file.close()


def test_a_record_that_cannot_be_kept_is_refused_by_itself(tmp_path: Path) -> None:
    file = EmbeddedFile(tmp_path / "headway.db")
    usage = EmbeddedUsage(file)
    for wrong in (record("big", cost=2**70), record("none", prompt_tokens=None)):
        with pytest.raises(ValueError, match="refused"):
            usage.add([record("beside"), wrong])
    usage.add([record("good")])
    assert usage.find("beside") is None
    assert usage.find("good") is not None
    file.close()
