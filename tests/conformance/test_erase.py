"""What is erased stays erased: in memory, and from whichever gateway a record comes later."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.core.messages.usage import RecordQuery
from headway.core.tenancy import administer
from headway.core.tenancy.administer import Author, TenantChange
from headway.core.tenancy.book import AccountStore, AuditQuery
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import file_url, open_database
from headway.service.store.drain import Records
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile, EmbeddedUsage
from headway.service.store.usage import SqlUsage
from headway.service.store.usage_memory import MemoryUsage
from tests.unit.service.store.records import NOON, record

AUTHOR = Author("cli:me", NOON)


class Kept(NamedTuple):
    """Both halves of what is kept."""

    accounts: AccountStore
    records: Records  # of another gateway, where there can be several
    now: list[float]  # for those that look at a clock

    def ids(self) -> set[str]:
        """Of all records."""
        return {each.id for each in self.records.page(RecordQuery(limit=100)).records}


def erase(kept: Kept, author: Author) -> dict[str, int]:
    """Everything of acme's."""
    return kept.accounts.edit(lambda book: administer.erase_tenant(book, "acme", author))


@pytest.fixture(params=["memory", "embedded", "sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """With nothing in it."""
    now = [NOON]
    if request.param == "memory":
        records = MemoryUsage(wall_clock=lambda: now[0])
        yield Kept(MemoryAccounts(records), records, now)
        return
    if request.param == "embedded":
        files = EmbeddedFile(tmp_path / "headway.db"), EmbeddedFile(tmp_path / "headway.db")
        yield Kept(EmbeddedAccounts(files[0]), EmbeddedUsage(files[1]), now)
        for file in files:
            file.close()
        return
    is_file = request.param == "sqlite"
    url = file_url(tmp_path / "x.db") if is_file else request.getfixturevalue("postgres_url")
    databases = open_database(url), open_database(url)
    yield Kept(SqlAccounts(databases[0]), SqlUsage(databases[1]), now)
    for database in databases:
        database.close()


def test_a_request_that_had_begun_is_not_recorded_after_its_tenant_was_erased(kept: Kept) -> None:
    kept.accounts.edit(lambda book: administer.create_tenant(book, "acme", TenantChange(), AUTHOR))
    kept.records.add([record("done", began=NOON - 60), record("beta", tenant="beta")])
    rows = erase(kept, AUTHOR)
    assert rows == {"requests": 1, "audit": 1, "tenant_keys": 0, "tenants": 1}
    assert kept.ids() == {"beta"}
    kept.records.add(
        [
            record("under way", began=NOON - 1),  # of a gateway that has only now written it
            record("later", began=NOON + 1),  # the name is used again
            record("another's", began=NOON - 1, tenant="beta"),
        ]
    )
    assert kept.ids() == {"beta", "later", "another's"}


def test_an_export_has_the_records_and_the_note_of_an_erasure_nothing_of_them(kept: Kept) -> None:
    kept.records.add([record("mine"), record("beta", tenant="beta")])
    tables = kept.accounts.edit(lambda book: administer.export_tenant(book, "acme", AUTHOR))
    assert [row["id"] for row in tables["requests"]] == ["mine"]
    erase(kept, AUTHOR)
    (note,) = kept.accounts.read(lambda book: book.audit(AuditQuery()))
    assert (note.action, note.tenant, note.subject, note.before) == (
        "tenant.erase",
        "",
        "acme",
        "",
    )
    assert "mine" not in note.after


def test_a_name_that_is_erased_again_goes_by_the_latest_time(kept: Kept) -> None:
    for at in (NOON, NOON + 100):
        kept.now[0] = at
        kept.records.add([record(f"r{at}", began=at + 1)])
        erase(kept, Author("cli:me", at))
    kept.records.add([record("between", began=NOON + 50), record("after", began=NOON + 101)])
    assert kept.ids() == {"after"}
