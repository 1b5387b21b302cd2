"""Keys of a store at a gateway: one slow check each, noticed changes, guesses that cannot harm."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from headway.core.base.errors import QueueFull, StartError, StoreUnavailable, Unauthorized
from headway.core.tenancy import administer
from headway.core.tenancy.account import PresentedKey, matches
from headway.core.tenancy.administer import Author, TenantChange
from headway.core.tenancy.book import Book, Snapshot, changed_in
from headway.core.tenancy.tenant import Principal, SloClass
from headway.service.gateway import slow_checks
from headway.service.gateway.accounts import Accounts, call_here
from headway.service.gateway.slow_checks import MAX_OF_ONE, MAX_UNKNOWN, SlowChecks
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import DatabaseThread, file_url, open_database
from tests.unit.service.gateway.fakes import DEADLINE_S, run, until
from tests.unit.service.gateway.keys import ME, add_key, add_tenant, fresh_key

T = TypeVar("T")
NOW = 2000.0
NUM_GUESSES = 100


class Clock:
    """The time that the test says."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now


class Away:
    """A store that answers only while it is here."""

    def __init__(self) -> None:
        self.store = MemoryAccounts()
        self.is_here = True

    def read(self, work: Callable[[Book], T]) -> T:
        """As the store, or StoreUnavailable."""
        if not self.is_here:
            raise StoreUnavailable("away", slow_checks.RETRY_S)
        return self.store.read(work)

    def edit(self, work: Callable[[Book], T]) -> T:
        """As the store."""
        return self.store.edit(work)

    def changed(self, since: int) -> Snapshot | None:
        """As `read`."""
        return self.read(lambda book: changed_in(book, since))


def made(store: MemoryAccounts | Away) -> tuple[Accounts, Counter[str], Clock]:
    """Accounts over a store, what they count, and their clock."""
    counts: Counter[str] = Counter()

    def count(result: str) -> None:
        counts[result] += 1

    clock = Clock()
    return Accounts(store, call_here, count, clock), counts, clock


async def refused(accounts: Accounts, token: str) -> str:
    """Why a key is refused."""
    with pytest.raises(Unauthorized) as caught:
        await accounts.check(token)
    return caught.value.message


@pytest.mark.spec("A1")
def test_a_key_takes_one_slow_check_and_none_from_then_on() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme", **{"class": "vip"}, weight=2.0, models=["m"])
        accounts, counts, _ = made(store)
        await accounts.load()
        found = [await accounts.check(key.text) for _ in range(100)]
        principal = found[0]
        assert isinstance(principal, Principal)
        assert principal.key_id == key.id
        assert principal.tenant.name == "acme"
        assert principal.tenant.slo_class is SloClass.VIP
        assert all(each is principal for each in found)
        assert counts == {"good": 1}
        accounts.close()

    run(scenario())


def test_many_at_once_with_the_same_new_key_share_one_check() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        accounts, counts, _ = made(store)
        await accounts.load()
        found = await asyncio.gather(*(accounts.check(key.text) for _ in range(200)))
        assert {each.key_id for each in found if each is not None} == {key.id}
        assert counts == {"good": 1}
        accounts.close()

    run(scenario())


def test_a_wrong_secret_an_unknown_id_and_another_form_are_told_apart_by_nothing() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key, other = add_tenant(store, "acme"), fresh_key()
        accounts, counts, _ = made(store)
        await accounts.load()
        await accounts.check(key.text)
        wrong = f"hw-{key.id}-{other.text.rpartition('-')[2]}"
        messages = {await refused(accounts, wrong), await refused(accounts, other.text)}
        assert len(messages) == 1
        assert counts == {"good": 1, "wrong": 1, "unknown": 1}
        assert await accounts.check("sk-something") is None
        assert (await accounts.check(key.text)) is not None  # the wrong one changed nothing
        accounts.close()

    run(scenario())


def test_an_unknown_id_costs_the_same_scrypt_as_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by the clock, which lies on a busy machine: by what is computed."""
    calls: list[str] = []

    def note_match(*_: object) -> bool:
        calls.append("known")
        return False

    def note_hash(*_: object) -> str:
        calls.append("unknown")
        return ""

    monkeypatch.setattr(slow_checks, "matches", note_match)
    monkeypatch.setattr(slow_checks, "hashed", note_hash)

    async def scenario() -> None:
        checks = SlowChecks(lambda _: None)
        assert not await checks.check(PresentedKey("a" * 16, "b" * 40), b"1", "stored")
        assert not await checks.check(PresentedKey("c" * 16, "b" * 40), b"2", None)
        assert calls == ["known", "unknown"]
        checks.close()

    run(scenario())


def test_a_refused_key_that_is_sent_again_costs_nothing_until_the_keys_change() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        later = fresh_key()
        accounts, counts, _ = made(store)
        await accounts.load()
        for _ in range(50):
            await refused(accounts, later.text)
        assert counts == {"unknown": 1}
        store.edit(lambda book: administer.add_key(book, "acme", later, "", None, ME))
        await accounts.refresh()
        principal = await accounts.check(later.text)
        assert principal is not None
        assert principal.key_id == later.id
        await accounts.check(key.text)
        accounts.close()

    run(scenario())


def test_guessed_ids_are_bounded_and_hold_up_neither_the_loop_nor_real_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def slow(*_: object) -> str:
        gate.wait(30)
        return ""

    monkeypatch.setattr(slow_checks, "hashed", slow)

    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        accounts, counts, _ = made(store)
        await accounts.load()
        guesses = [
            asyncio.ensure_future(accounts.check(fresh_key().text)) for _ in range(NUM_GUESSES)
        ]
        await until(lambda: counts["full"] == NUM_GUESSES - MAX_UNKNOWN)
        principal = await accounts.check(key.text)  # while all guesses still wait
        assert principal is not None
        gate.set()
        results = await asyncio.gather(*guesses, return_exceptions=True)
        assert sum(isinstance(each, QueueFull) for each in results) == NUM_GUESSES - MAX_UNKNOWN
        assert sum(isinstance(each, Unauthorized) for each in results) == MAX_UNKNOWN
        accounts.close()

    run(scenario())


def test_wrong_secrets_of_one_known_id_leave_room_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def slow(secret: str, stored: str) -> bool:
        if secret.startswith("a"):  # the guesses of this test
            gate.wait(30)
            return False
        return matches(secret, stored)

    monkeypatch.setattr(slow_checks, "matches", slow)
    monkeypatch.setattr(slow_checks, "KNOWN_THREADS", MAX_OF_ONE + 1)

    async def scenario() -> None:
        store = MemoryAccounts()
        victim, other = add_tenant(store, "acme"), add_tenant(store, "other")
        accounts, counts, _ = made(store)
        await accounts.load()
        letters = "bcdefghijklmnopqrstuvwxyz"
        guesses = [
            asyncio.ensure_future(accounts.check(f"hw-{victim.id}-a{letter * 39}"))
            for letter in letters
        ]
        await until(lambda: counts["full"] == len(letters) - MAX_OF_ONE)
        assert await accounts.check(other.text) is not None
        gate.set()
        await asyncio.gather(*guesses, return_exceptions=True)
        assert await accounts.check(victim.text) is not None
        accounts.close()

    run(scenario())


def test_expiry_and_disabling_are_seen_at_once_although_the_key_was_checked() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        add_tenant(store, "acme")
        key = add_key(store, "acme", expires=NOW + 10)
        accounts, _, clock = made(store)
        await accounts.load()
        assert await accounts.check(key.text) is not None
        clock.now = NOW + 10
        assert "expired" in await refused(accounts, key.text)
        clock.now = NOW
        disabled = TenantChange(disabled=True)
        await accounts.edit(lambda book: administer.change_tenant(book, "acme", disabled, ME))
        assert "disabled" in await refused(accounts, key.text)
        await accounts.edit(lambda book: administer.delete_tenant(book, "acme", ME))
        assert "not known" in await refused(accounts, key.text)
        accounts.close()

    run(scenario())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_another_gateway_refuses_a_revoked_key_after_its_next_poll(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_file = kind == "sqlite"
    url = file_url(tmp_path / "x.db") if is_file else request.getfixturevalue("postgres_url")

    async def scenario() -> None:
        databases = [open_database(url) for _ in range(2)]
        threads = [DatabaseThread(each) for each in databases]
        one, other = (
            Accounts(SqlAccounts(database), thread.run, lambda _: None)
            for database, thread in zip(databases, threads, strict=True)
        )
        key = add_tenant(SqlAccounts(databases[0]), "acme")
        await one.load()
        await other.load()
        assert await one.check(key.text) is not None
        assert await other.check(key.text) is not None
        following = asyncio.ensure_future(other.follow(0.01))
        began = time.monotonic()
        author = Author("me", time.time())
        await one.edit(lambda book: administer.revoke_key(book, key.id, author))
        assert "revoked" in await refused(one, key.text)  # at once where it was revoked
        while True:
            try:
                await other.check(key.text)
            except Unauthorized:
                break
            assert time.monotonic() - began < DEADLINE_S
            await asyncio.sleep(0.005)
        following.cancel()
        one.close()
        other.close()
        for thread, database in zip(threads, databases, strict=True):
            thread.close()
            database.close()

    run(scenario())


@pytest.mark.spec("M13")
def test_keys_go_on_while_the_store_is_away_and_the_metric_tells_how_old_they_are() -> None:
    async def scenario() -> None:
        store = Away()
        key = add_tenant(store.store, "acme")
        accounts, _, clock = made(store)
        await accounts.load()
        store.is_here = False
        following = asyncio.ensure_future(accounts.follow(0.001))
        clock.now = NOW + 60
        assert await accounts.check(key.text) is not None
        (sample,) = accounts.samples()
        assert sample.value == 60
        later = add_key(store.store, "acme")
        store.is_here = True
        await until(lambda: next(iter(accounts.samples())).value == 0)
        assert await accounts.check(later.text) is not None
        following.cancel()
        accounts.close()

    run(scenario())


def test_a_store_that_cannot_be_read_at_start_ends_the_start() -> None:
    async def scenario() -> None:
        store = Away()
        store.is_here = False
        accounts, _, _ = made(store)
        with pytest.raises(StartError):
            await accounts.load()
        accounts.close()

    run(scenario())


def test_a_store_that_was_emptied_does_not_count_as_one_that_was_never_set_up() -> None:
    async def scenario() -> None:
        store = Away()
        accounts, _, _ = made(store)
        await accounts.load()
        seen = [accounts.is_empty]
        add_tenant(store.store, "acme")
        await accounts.refresh()
        seen.append(accounts.is_empty)
        store.store = MemoryAccounts()
        await accounts.refresh()
        seen.append(accounts.is_empty)
        assert accounts.tenant("acme") is None
        assert seen == [True, False, False]
        accounts.close()

    run(scenario())


def test_an_edit_is_kept_and_answered_also_when_the_store_goes_away_right_after() -> None:
    async def scenario() -> None:
        store = Away()
        add_tenant(store.store, "acme")
        accounts, _, _ = made(store)
        await accounts.load()
        key = fresh_key()
        store.is_here = False
        record = await accounts.edit(
            lambda book: administer.add_key(book, "acme", key, "", None, ME)
        )
        assert record.id == key.id
        store.is_here = True
        await accounts.refresh()
        assert await accounts.check(key.text) is not None
        accounts.close()

    run(scenario())


def test_a_budget_that_is_new_is_told_of_and_nothing_else_is() -> None:
    async def scenario() -> None:
        store, told = MemoryAccounts(), list[str]()
        add_tenant(store, "had", limits={"monthly_budget": 5})

        async def on_budgets() -> None:
            told.append("told")

        def changed(change: TenantChange, book: Book) -> object:
            return administer.change_tenant(book, "had", change, ME)

        accounts = Accounts(store, call_here, lambda _: None, on_budgets=on_budgets)
        await accounts.load()
        assert told == []  # a start recalls everything anyway
        for change, count in (
            (TenantChange(weight=2.0), 0),
            (TenantChange(limits={"monthly_budget": 9}), 0),
            (TenantChange(limits={"monthly_budget": None}), 0),
            (TenantChange(limits={"monthly_budget": 9}), 1),
        ):
            await accounts.edit(partial(changed, change))
            assert len(told) == count
        accounts.close()

    run(scenario())
