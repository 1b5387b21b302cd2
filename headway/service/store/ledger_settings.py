"""Settings of the ledger, and where its spool is. Imports nothing of a database."""

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.service.store.settings import SQLITE, StoreSettings, default_folder, folder_of

LEAST_SPOOL_BYTES = 1024 * 1024
FOLDER = "spool"


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set."""

    retention_days: int | None = None  # of records in the database; None: for ever
    spool_bytes: int = 256 * 1024 * 1024  # most of it while the database is away


def check(settings: LedgerSettings) -> None:
    """Raise InvalidSetting for what cannot be."""
    if settings.retention_days is not None and settings.retention_days < 1:
        raise InvalidSetting(
            "--ledger-retention-days", f"must be at least 1 day, got {settings.retention_days}"
        )
    if settings.spool_bytes < LEAST_SPOOL_BYTES:
        raise InvalidSetting(
            "--ledger-spool-bytes",
            f"must be at least {LEAST_SPOOL_BYTES} bytes, got {settings.spool_bytes}",
        )


def spool_of(store: StoreSettings) -> Path:
    """Folder of the spools of this host's gateways; it must be on a disk of this host.

    In the data directory; without one, beside the database's file, and for a database that is
    elsewhere in a folder of its own in the user's data directory.
    """
    folder, url = folder_of(store), store.database_url
    if url is None or (store.data_dir is not None and folder is not None):
        return (folder or default_folder()) / FOLDER
    if url.startswith(SQLITE):
        file = url.removeprefix(SQLITE).partition("?")[0]
        return Path(file).absolute().parent / FOLDER
    # What one gateway leaves another one takes over, into its own database: the same one then.
    parts = urlsplit(url)
    name = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return default_folder() / f"{FOLDER}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
