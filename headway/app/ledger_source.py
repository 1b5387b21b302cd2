"""Where `headway usage` and `headway explain` read: the database itself, or a server's /admin."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from headway.app.admin_desk import (
    HttpDesk,
    Refused,
    admin_key_of,
    existing,
    no_database,
    settings_of,
)
from headway.core.base.errors import InvalidRequest, StartError, StoreUnavailable
from headway.service.store.database import open_database
from headway.service.store.settings import url_of
from headway.service.store.usage import SqlUsage


@contextmanager
def open_usage(chosen: argparse.Namespace) -> Iterator[SqlUsage]:
    """The database's records; raises StartError."""
    url = url_of(settings_of(chosen).store)
    if url is None:
        raise no_database()
    database = open_database(existing(url))
    try:
        yield SqlUsage(database)
    except StoreUnavailable as error:
        raise StartError(f"database {database.shown}: {error.message}") from None
    except InvalidRequest as error:
        raise StartError(error.message) from None
    finally:
        database.close()


def asked_server(chosen: argparse.Namespace, path: str, query: Mapping[str, str]) -> Any:
    """What a server answers; raises StartError with what it said instead."""
    key = admin_key_of(settings_of(chosen))
    try:
        with closing(HttpDesk(chosen.url, key)) as desk:
            return desk.call("GET", path, query=query)
    except Refused as error:
        raise StartError(str(error)) from None
