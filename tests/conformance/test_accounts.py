"""Every AccountStore keeps tenants, keys and the audit log alike."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headway.core.base.errors import Conflict, InvalidRequest, NotFound
from headway.core.tenancy import administer
from headway.core.tenancy.account import KEY_RANDOM_BYTES, NewKey, TenantRecord, new_key
from headway.core.tenancy.administer import Author, TenantChange
from headway.core.tenancy.book import AccountStore, AuditEntry, AuditQuery, Book, snapshot
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import SloClass
from headway.service.store import accounts_memory
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import file_url, open_database
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile

ME = Author("test", 1000.5)
NUM_THREADS = 4
NUM_EDITS = 10


@pytest.fixture(params=["memory", "embedded", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AccountStore]:
    """An empty one."""
    if request.param == "memory":
        yield MemoryAccounts()
        return
    if request.param == "embedded":
        file = EmbeddedFile(tmp_path / "headway.db")
        yield EmbeddedAccounts(file)
        file.close()
        return
    is_file = request.param == "sqlite"
    url = file_url(tmp_path / "x.db") if is_file else request.getfixturevalue("postgres_url")
    database = open_database(url)
    yield SqlAccounts(database)
    database.close()


def made(number: int) -> NewKey:
    """A key that looks random enough; its hash is made once."""
    return new_key(bytes([number]) * KEY_RANDOM_BYTES, log_n=4)


def change(**given: object) -> TenantChange:
    """A change as the API reads it."""
    return msgspec.convert(given, TenantChange)


def create(store: AccountStore, name: str = "acme", **given: object) -> TenantRecord:
    """A tenant."""
    return store.edit(lambda book: administer.create_tenant(book, name, change(**given), ME))


def audit(store: AccountStore, **query: object) -> list[AuditEntry]:
    """The audit log, newest first."""
    wanted = msgspec.convert(query, AuditQuery)
    return list(store.read(lambda book: book.audit(wanted)))


def test_a_tenant_is_read_as_it_was_made(store: AccountStore) -> None:
    limits = {"requests_per_minute": 10, "monthly_budget": 2**40}
    record = create(
        store,
        **{"class": "vip"},
        weight=2.5,
        limits=limits,
        models=["a", "ü"],
        may_degrade=False,
    )
    assert record == TenantRecord(
        name="acme",
        slo_class=SloClass.VIP,
        weight=2.5,
        limits=Limits(requests_per_minute=10, monthly_budget=2**40),
        models=("a", "ü"),
        may_degrade=False,
        created=1000.5,
        changed=1000.5,
    )
    assert store.read(lambda book: book.tenant("acme")) == record
    assert store.read(lambda book: book.tenant("Acme")) is None
    with pytest.raises(Conflict):
        create(store)


def test_a_change_leaves_what_it_does_not_name(store: AccountStore) -> None:
    create(store, weight=3.0, limits={"tokens_per_minute": 5, "concurrent_requests": 2})
    later = Author("other", 2000.0)
    edit = change(limits={"tokens_per_minute": None}, disabled=True)
    record = store.edit(lambda book: administer.change_tenant(book, "acme", edit, later))
    assert record.weight == 3.0
    assert record.limits == Limits(concurrent_requests=2)
    assert (record.is_disabled, record.created, record.changed) == (True, 1000.5, 2000.0)
    assert store.read(lambda book: book.tenants()) == [record]
    with pytest.raises(NotFound):
        store.edit(lambda book: administer.change_tenant(book, "nobody", edit, later))


def test_tenants_are_sorted_by_name_and_keys_by_age(store: AccountStore) -> None:
    for name in ("b", "_", "B", "a", "0"):
        create(store, name)
    found = store.read(lambda book: [each.name for each in book.tenants()])
    assert found == sorted(["b", "_", "B", "a", "0"])
    for number, at in ((3, 30.0), (1, 10.0), (2, 20.0)):
        author = Author("me", at)
        store.edit(
            lambda book, n=number, by=author: administer.add_key(book, "a", made(n), "", None, by)  # type: ignore[misc]
        )
    keys = store.read(lambda book: book.keys("a"))
    assert [each.created for each in keys] == [10.0, 20.0, 30.0]
    assert store.read(lambda book: book.keys("b")) == []
    assert len(store.read(lambda book: book.keys())) == 3


@pytest.mark.spec("A1")
def test_a_key_is_kept_with_its_hash_but_never_noted_with_it(store: AccountStore) -> None:
    create(store)
    key = made(1)
    record = store.edit(lambda book: administer.add_key(book, "acme", key, "ci", 5000.0, ME))
    assert store.read(lambda book: book.key(key.id)) == record
    assert (record.label, record.expires, record.revoked, record.replaced_by) == (
        "ci",
        5000.0,
        None,
        "",
    )
    said = msgspec.json.encode(audit(store)).decode()
    assert key.id in said
    assert key.hash not in said
    assert key.text.rpartition("-")[2] not in said
    with pytest.raises(NotFound):
        store.edit(lambda book: administer.add_key(book, "nobody", made(2), "", None, ME))
    with pytest.raises(InvalidRequest):
        store.edit(lambda book: administer.add_key(book, "acme", made(2), "", 1.0, ME))


def test_rotating_ends_the_old_key_after_the_overlap(store: AccountStore) -> None:
    create(store)
    old = made(1)
    store.edit(lambda book: administer.add_key(book, "acme", old, "ci", 4000.5, ME))
    author = Author("me", 2000.0)
    new = store.edit(lambda book: administer.rotate_key(book, old.id, made(2), 60.0, author))
    ended = store.read(lambda book: book.key(old.id))
    assert ended is not None
    assert (ended.expires, ended.replaced_by) == (2060.0, new.id)
    assert (new.label, new.tenant) == ("ci", "acme")
    assert new.expires == 5000.0  # as long a life as the old one had
    for key_id, overlap in ((old.id, 60.0), ("a" * 16, 60.0)):
        with pytest.raises((Conflict, NotFound)):
            store.edit(
                lambda book, k=key_id, s=overlap: administer.rotate_key(book, k, made(3), s, author)  # type: ignore[misc]
            )
    with pytest.raises(InvalidRequest):
        store.edit(lambda book: administer.rotate_key(book, new.id, made(3), -1.0, author))


def test_a_long_overlap_does_not_lengthen_the_old_keys_life(store: AccountStore) -> None:
    create(store)
    old = made(1)
    store.edit(lambda book: administer.add_key(book, "acme", old, "", 1100.0, ME))
    store.edit(lambda book: administer.rotate_key(book, old.id, made(2), 3600.0, ME))
    ended = store.read(lambda book: book.key(old.id))
    assert ended is not None
    assert ended.expires == 1100.0


def test_a_revoked_key_stays_revoked_at_the_first_time(store: AccountStore) -> None:
    create(store)
    key = made(1)
    store.edit(lambda book: administer.add_key(book, "acme", key, "", None, ME))
    first = store.edit(lambda book: administer.revoke_key(book, key.id, Author("a", 2000.0)))
    again = store.edit(lambda book: administer.revoke_key(book, key.id, Author("b", 3000.0)))
    assert first.revoked == again.revoked == 2000.0
    assert [entry.who for entry in audit(store) if entry.action == "key.revoke"] == ["a"]
    with pytest.raises(Conflict):
        store.edit(lambda book: administer.rotate_key(book, key.id, made(2), 0.0, ME))


def test_the_revision_grows_with_every_edit_that_is_kept_and_with_no_other(
    store: AccountStore,
) -> None:
    assert store.read(snapshot).revision == 0
    create(store)
    one = store.read(lambda book: book.revision())
    assert one > 0

    def fails(book: Book) -> None:
        administer.create_tenant(book, "other", change(), ME)
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError):
        store.edit(fails)
    assert store.read(lambda book: (book.revision(), book.tenant("other"))) == (one, None)
    assert len(audit(store)) == 1
    create(store, "other")
    assert store.read(lambda book: book.revision()) > one


def test_what_has_changed_since_a_revision_is_all_that_there_is_now_or_nothing(
    store: AccountStore,
) -> None:
    empty = store.changed(-1)
    assert empty is not None
    assert (empty.revision, empty.tenants, empty.keys) == (0, (), ())
    assert store.changed(0) is None
    limits = {"tokens_per_minute": 7, "monthly_budget": 2**40}
    create(store, "b", **{"class": "vip"}, limits=limits, models=["ü"], may_degrade=False)
    create(store, "a")
    for number, at in ((2, 20.5), (1, 10.0)):
        author = Author("me", at)
        store.edit(
            lambda book, n=number, by=author: administer.add_key(book, "b", made(n), "x", 99.5, by)  # type: ignore[misc]
        )
    store.edit(lambda book: administer.revoke_key(book, made(1).id, Author("me", 30.0)))
    found = store.changed(0)
    assert found == store.read(snapshot)
    assert [each.name for each in found.tenants] == ["a", "b"]
    assert [each.revoked for each in found.keys] == [30.0, None]
    assert store.changed(found.revision) is None


def test_the_audit_log_in_memory_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_memory, "MAX_ENTRIES", 3)
    memory = MemoryAccounts()
    for name in "abcde":
        create(memory, name)
    assert [entry.tenant for entry in audit(memory)] == ["e", "d", "c"]
    assert [entry.id for entry in audit(memory)] == [5, 4, 3]


def test_the_audit_log_says_who_changed_what_newest_first(store: AccountStore) -> None:
    create(store)
    create(store, "other")
    store.edit(lambda book: administer.change_tenant(book, "acme", change(weight=2.0), ME))
    entries = audit(store)
    assert [(entry.action, entry.tenant) for entry in entries] == [
        ("tenant.change", "acme"),
        ("tenant.create", "other"),
        ("tenant.create", "acme"),
    ]
    changed = entries[0]
    assert (changed.who, changed.at) == ("test", 1000.5)
    assert msgspec.json.decode(changed.before)["weight"] == 1.0
    assert msgspec.json.decode(changed.after)["weight"] == 2.0
    assert [entry.tenant for entry in audit(store, tenant="other")] == ["other"]
    assert audit(store, before=entries[0].id) == entries[1:]
    assert audit(store, limit=1) == entries[:1]


def test_deleting_keeps_the_audit_log_and_erasing_leaves_one_note(store: AccountStore) -> None:
    create(store)
    create(store, "other")
    store.edit(lambda book: administer.add_key(book, "acme", made(1), "", None, ME))
    store.edit(lambda book: administer.delete_tenant(book, "acme", ME))
    assert store.read(lambda book: (book.tenant("acme"), list(book.keys()))) == (None, [])
    assert len(audit(store, tenant="acme")) == 3
    rows = store.edit(lambda book: administer.erase_tenant(book, "acme", ME))
    assert rows["audit"] == 3
    assert audit(store, tenant="acme") == []
    assert [entry.subject for entry in audit(store)] == ["acme", "other"]
    with pytest.raises(NotFound):
        store.edit(lambda book: administer.erase_tenant(book, "acme", ME))
    assert store.read(lambda book: [each.name for each in book.tenants()]) == ["other"]


def test_an_export_has_everything_but_hashes(store: AccountStore) -> None:
    create(store)
    create(store, "other")
    key = made(1)
    store.edit(lambda book: administer.add_key(book, "acme", key, "ci", None, ME))
    tables = store.edit(lambda book: administer.export_tenant(book, "acme", ME))
    assert [row["name"] for row in tables["tenants"]] == ["acme"]
    assert [(row["id"], row["label"]) for row in tables["tenant_keys"]] == [(key.id, "ci")]
    assert {row["action"] for row in tables["audit"]} == {"tenant.create", "key.create"}
    assert key.hash not in msgspec.json.encode(tables).decode()
    with pytest.raises(NotFound):
        store.edit(lambda book: administer.export_tenant(book, "nobody", ME))


def test_edits_of_several_threads_do_not_lose_each_other(store: AccountStore) -> None:
    create(store, weight=1.0)

    def grow(book: Book) -> None:
        found = administer.find_tenant(book, "acme")
        administer.change_tenant(book, "acme", change(weight=found.weight + 1), ME)

    def work() -> None:
        for _ in range(NUM_EDITS):
            store.edit(grow)

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = store.read(lambda book: administer.find_tenant(book, "acme"))
    assert record.weight == 1.0 + NUM_THREADS * NUM_EDITS
    assert store.read(lambda book: book.revision()) == 1 + NUM_THREADS * NUM_EDITS
