"""Where `headway usage` and `headway explain` read: the database itself, or a server's /admin."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from headway.app.admin_desk import HttpDesk, Refused
from headway.app.settings import Settings, merge_models
from headway.core.base.errors import InvalidSetting, StartError, StoreUnavailable
from headway.service.store.database import open_database
from headway.service.store.settings import url_of
from headway.service.store.usage import SqlUsage

NO_DATABASE = (
    "--data-dir none has no database: give --database-url or --data-dir as to headway serve, or "
    "--url and --admin-key of a running server"
)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Declare where to read, as `headway admin` has it."""
    place = parser.add_argument_group("where", "the database, as headway serve has it, or a server")
    place.add_argument("--database-url", help="[HEADWAY_DATABASE_URL]")
    place.add_argument("--data-dir", help="[HEADWAY_DATA_DIR]")
    place.add_argument("--config", metavar="FILE", help="TOML or YAML file [HEADWAY_CONFIG]")
    place.add_argument("--url", help="a running server, in place of its database")
    place.add_argument("--admin-key", metavar="KEY", help="for --url [HEADWAY_ADMIN_KEY]")


@contextmanager
def open_usage(chosen: argparse.Namespace) -> Iterator[SqlUsage]:
    """The database's records; raises StartError."""
    url = url_of(_settings(chosen).store)
    if url is None:
        raise StartError(NO_DATABASE)
    database = open_database(url)
    try:
        yield SqlUsage(database)
    except StoreUnavailable as error:
        raise StartError(f"database {database.shown}: {error.message}") from None
    finally:
        database.close()


def asked_server(chosen: argparse.Namespace, path: str, query: Mapping[str, str]) -> Any:
    """What a server answers; raises StartError with what it said instead."""
    keys = _settings(chosen).gateway.admin_key
    if not keys:
        raise InvalidSetting("--admin-key", "is needed for --url (or HEADWAY_ADMIN_KEY)")
    try:
        with closing(HttpDesk(chosen.url, keys[0])) as desk:
            return desk.call("GET", path, query=query)
    except Refused as error:
        raise StartError(str(error)) from None


def _settings(chosen: argparse.Namespace) -> Settings:
    places: dict[str, object] = {
        name: value
        for name in ("database_url", "data_dir")
        if (value := getattr(chosen, name)) is not None
    }
    if chosen.admin_key is not None:
        places["admin_key"] = [chosen.admin_key]
    return merge_models(places, os.environ, chosen.config)[0]
