"""Where a server keeps what outlives it. Imports nothing of a database."""

from pathlib import Path

import msgspec

from headway.core.base.errors import InvalidSetting

FILE = "headway.db"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set; with neither, all is in memory and gone with the process."""

    database_url: str | None = None  # sqlite:///FILE or postgresql://...
    data_dir: str | None = None  # folder of headway.db, and of what else is kept in files


def url_of(settings: StoreSettings) -> str | None:
    """URL of the database, or None where there is none; raises InvalidSetting."""
    if settings.database_url is not None:
        return settings.database_url
    if settings.data_dir is None:
        return None
    folder = Path(settings.data_dir).expanduser().absolute()
    if "?" in str(folder):  # it would begin the URL's options
        raise InvalidSetting("--data-dir", f"must not have a ? in its path, got {folder}")
    return f"sqlite:///{folder / FILE}"
