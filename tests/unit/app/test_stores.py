"""Which stores a server opens for its settings, and what it says where it keeps nothing."""

import asyncio
from pathlib import Path

import pytest

from headway.app.settings import Settings
from headway.app.stores import DEFAULT_DAYS, keeper_of, open_stores
from headway.core.tenancy.price import PriceTable
from headway.service.gateway.ledger import MemoryLedger, SpoolLedger
from headway.service.gateway.settings import GatewaySettings
from headway.service.store.embedded import EmbeddedAccounts
from headway.service.store.ledger_settings import LedgerSettings
from headway.service.store.settings import StoreSettings

ADMIN = GatewaySettings(admin_key=("an-admin-key-of-the-operator",))


def settings(data_dir: str | None = None, gateway: GatewaySettings | None = None) -> Settings:
    store = StoreSettings(data_dir=data_dir)
    return Settings(store=store, gateway=gateway or GatewaySettings())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_by_default_the_users_data_folder_is_used_and_records_are_kept_for_a_while(
    home: Path,
) -> None:
    async def scenario() -> None:
        stores = open_stores(settings())
        assert isinstance(stores.accounts, EmbeddedAccounts)
        keeper = keeper_of(settings(), stores, "g", PriceTable({}))
        assert isinstance(keeper, SpoolLedger)
        assert keeper._drain._needs.retention_days == DEFAULT_DAYS
        await keeper.close()
        stores.close()

    asyncio.run(scenario())
    assert (home / "headway" / "spool").exists()


def test_a_retention_that_was_chosen_counts(home: Path) -> None:
    async def scenario() -> None:
        given = Settings(ledger=LedgerSettings(retention_days=400))
        stores = open_stores(given)
        keeper = keeper_of(given, stores, "g", PriceTable({}))
        assert isinstance(keeper, SpoolLedger)
        assert keeper._drain._needs.retention_days == 400
        await keeper.close()
        stores.close()

    asyncio.run(scenario())


def test_a_folder_that_was_chosen_is_made_at_once_and_kept_for_ever(
    home: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        given = settings(str(tmp_path / "mine"))
        stores = open_stores(given)
        assert (tmp_path / "mine" / "headway.db").exists()
        keeper = keeper_of(given, stores, "g", PriceTable({}))
        assert isinstance(keeper, SpoolLedger)
        assert keeper._drain._needs.retention_days is None
        await keeper.close()
        stores.close()

    asyncio.run(scenario())
    assert not home.exists()


def test_none_keeps_nothing_or_with_an_admin_key_the_latest_in_memory(home: Path) -> None:
    off = settings("none")
    assert open_stores(off) == (None, None, None, None, None)
    assert keeper_of(off, open_stores(off), "g", PriceTable({})) is None
    with_key = settings("none", ADMIN)
    stores = open_stores(with_key)
    assert stores.accounts is not None
    assert isinstance(keeper_of(with_key, stores, "g", PriceTable({})), MemoryLedger)
    assert not home.exists()


def test_a_default_folder_that_cannot_be_used_is_one_warning_and_no_failure(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("a file where the folder should be")
    stores = open_stores(settings())
    assert keeper_of(settings(), stores, "g", PriceTable({})) is None
    (told,) = [each for each in caplog.records if each.message == "nothing_is_kept"]
    assert "none if that is meant" in vars(told)["hint"]
    memory = open_stores(settings(gateway=ADMIN))
    assert memory.recent is not None


def test_a_spool_that_cannot_be_made_by_default_is_a_warning_too(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = open_stores(settings())
    (home / "headway" / "spool").write_text("in the way")
    assert keeper_of(settings(), stores, "g", PriceTable({})) is None
    assert [each.message for each in caplog.records] == ["nothing_is_kept"]
