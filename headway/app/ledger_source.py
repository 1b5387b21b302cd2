"""Where `headway usage` and `headway explain` read: the database itself, or a server's /admin."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import msgspec

from headway.core.base.errors import InvalidSetting, StartError, StoreUnavailable
from headway.service.store.database import open_database
from headway.service.store.usage import SqlUsage

TIMEOUT_S = 30.0
ADMIN_KEY = "HEADWAY_ADMIN_KEY"


def add_source(parser: argparse.ArgumentParser) -> None:
    """Declare where to read."""
    parser.add_argument(
        "--database-url", metavar="URL", help="database to read [HEADWAY_DATABASE_URL]"
    )
    parser.add_argument("--url", help="server to ask instead, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--admin-key", metavar="KEY", help=f"key for the server's /admin [{ADMIN_KEY}]"
    )


@contextmanager
def open_usage(url: str | None) -> Iterator[SqlUsage]:
    """The database's records; raises StartError."""
    if not url:
        raise InvalidSetting(
            "--database-url", "is needed, or --url of a server; without either there is no ledger"
        )
    database = open_database(url)
    try:
        yield SqlUsage(database)
    except StoreUnavailable as error:
        raise StartError(f"database {database.shown}: {error.message}") from None
    finally:
        database.close()


def asked_server(chosen: argparse.Namespace, path: str, query: Mapping[str, str]) -> bytes:
    """The body of a server's answer; raises StartError with what it said."""
    key = chosen.admin_key or os.environ.get(ADMIN_KEY, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = chosen.url.rstrip("/") + path
    try:
        answer = httpx.get(url, params=dict(query), headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StartError(f"{chosen.url} cannot be asked: {error}") from None
    if answer.status_code != 200:
        raise StartError(f"{chosen.url} answered {answer.status_code}: {_reason(answer)}")
    return answer.content


def _reason(answer: httpx.Response) -> str:
    try:
        return str(msgspec.json.decode(answer.content)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return answer.reason_phrase
