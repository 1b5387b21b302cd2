from pathlib import Path

import platformdirs
import pytest

from headway.core.base.errors import InvalidSetting
from headway.service.store.ledger_settings import LedgerSettings, check, spool_of
from headway.service.store.settings import StoreSettings


def test_the_defaults_are_fine() -> None:
    check(LedgerSettings())


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (LedgerSettings(retention_days=0), "--ledger-retention-days"),
        (LedgerSettings(spool_bytes=1000), "--ledger-spool-bytes"),
    ],
)
def test_what_cannot_be_is_named(settings: LedgerSettings, name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        check(settings)


def test_the_spool_is_in_the_data_directory_or_beside_the_database(tmp_path: Path) -> None:
    assert spool_of(StoreSettings(data_dir=str(tmp_path))) == tmp_path / "spool"
    beside = StoreSettings(database_url=f"sqlite:///{tmp_path}/x/headway.db?timeout=3")
    assert spool_of(beside) == tmp_path / "x" / "spool"
    home = platformdirs.user_data_path("headway")
    assert spool_of(StoreSettings()) == home / "spool"
    one, same, other = (
        spool_of(StoreSettings(database_url=f"postgresql://{where}"))
        for where in ("a:old@db/headway", "a:new@db/headway?x=1", "db/another")
    )
    assert one == same  # a new password finds what the old one left
    assert one != other
    assert {one.parent, other.parent} == {home}
