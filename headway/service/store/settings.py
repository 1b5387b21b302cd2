"""Where a server keeps what outlives it. Imports nothing of a database."""

from pathlib import Path

import msgspec
import platformdirs

from headway.core.base.errors import InvalidSetting

FILE = "headway.db"
SQLITE = "sqlite:///"
NOTHING = "none"  # in place of a folder: nothing is kept


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set; with neither, it is the user's own data folder."""

    database_url: str | None = None  # sqlite:///FILE or postgresql://...
    data_dir: str | None = None  # folder of headway.db, and of what else is kept in files

    @property
    def is_default(self) -> bool:
        """Whether nothing was chosen."""
        return self.database_url is None and self.data_dir is None


def default_folder() -> Path:
    """The user's data folder for Headway, as XDG_DATA_HOME has it; relative without a home."""
    return platformdirs.user_data_path("headway")


def folder_of(settings: StoreSettings) -> Path | None:
    """The data folder; None where nothing is to be kept in one."""
    if settings.data_dir is None:
        return default_folder()
    return None if settings.data_dir == NOTHING else Path(settings.data_dir).expanduser().absolute()


def path_of(url: str) -> Path | None:
    """The file of an SQLite URL without options; None for every other URL."""
    path = url.removeprefix(SQLITE)
    return None if path == url or not path or path == ":memory:" or "?" in url else Path(path)


def url_of(settings: StoreSettings) -> str | None:
    """URL of the database, or None where there is to be none; raises InvalidSetting."""
    if settings.database_url is not None:
        return settings.database_url
    folder = folder_of(settings)
    if folder is None:
        return None
    if not folder.is_absolute():
        raise InvalidSetting("--data-dir", "is needed: this user has no home folder")
    if "?" in str(folder):  # it would begin the URL's options
        raise InvalidSetting("--data-dir", f"must not have a ? in its path, got {folder}")
    return f"{SQLITE}{folder / FILE}"
