"""Where `headway admin` does its work: on the database itself, or at a running server."""

import argparse
import asyncio
import getpass
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from headway.app.settings import Settings, merge_models
from headway.core.base.errors import HeadwayError, InvalidSetting, StartError
from headway.core.tenancy.book import AccountStore
from headway.service.gateway.accounts import Accounts, call_here
from headway.service.gateway.admin import AccountPages
from headway.service.gateway.admin_keys import check_admin_keys
from headway.service.gateway.admin_routes import AdminCall, AdminTable
from headway.service.store.settings import path_of

TIMEOUT_S = 30.0


class Refused(Exception):
    """What was asked for was not done; the message is for the user."""


class Desk(Protocol):
    """Takes the calls of /admin."""

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's JSON; raises Refused."""
        ...


class StoreDesk:
    """The calls that a server answers, made here: the same code, without the server."""

    def __init__(self, store: AccountStore) -> None:
        self._accounts = Accounts(store, call_here, lambda _: None)
        self._table = AdminTable(AccountPages(self._accounts).routes())

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """As `Desk.call`."""

        async def sent() -> bytes:
            return b"" if body is None else json.dumps(body).encode()

        call = AdminCall(f"cli:{_user()}", (), (query or {}).get, sent)
        try:
            page = asyncio.run(self._table.call(method, path, call))
        except HeadwayError as error:
            raise Refused(error.message) from error
        return json.loads(page.body)


class HttpDesk:
    """A running server, by its admin key."""

    def __init__(self, url: str, key: str) -> None:
        """Raises InvalidSetting for what cannot be sent."""
        self._url = url.rstrip("/")
        check_admin_keys([key], [])
        try:
            self._client = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {key}"},
                timeout=TIMEOUT_S,
            )
        except httpx.InvalidURL as error:
            raise InvalidSetting("--url", f"{url[:200]!r} is no URL: {error}") from None

    def close(self) -> None:
        """Give up the connection."""
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """As `Desk.call`; raises StartError when no server answers."""
        # The server's own words for what JSON cannot carry (nan), not the client library's.
        content = None if body is None else json.dumps(dict(body)).encode()
        try:
            answer = self._client.request(method, quote(path), content=content, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StartError(f"{self._url}: no server answers there: {error}") from None
        try:
            found = answer.json()
        except ValueError:
            raise Refused(f"{self._url} answered {answer.status_code} without JSON") from None
        if answer.is_success:
            return found
        problem = found.get("error", {}) if isinstance(found, dict) else {}
        hint = (
            " (is /admin switched on there, with --admin-key?)"
            if (
                answer.status_code == httpx.codes.NOT_FOUND
                and problem.get("code") == "not_found"
                and "/docs" in str(problem.get("message"))
            )
            else ""
        )
        raise Refused(f"{problem.get('message', f'status {answer.status_code}')}{hint}")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say where; `settings_of` reads them."""
    place = parser.add_argument_group("where", "the database, as headway serve has it, or a server")
    place.add_argument("--database-url", metavar="URL", help="[HEADWAY_DATABASE_URL]")
    place.add_argument("--data-dir", metavar="DIR", help="[HEADWAY_DATA_DIR]")
    place.add_argument("--config", metavar="FILE", help="TOML or YAML file [HEADWAY_CONFIG]")
    place.add_argument("--url", help="a running server, in place of its database")
    place.add_argument("--admin-key", metavar="KEY", help="for --url [HEADWAY_ADMIN_KEY]")


def settings_of(chosen: argparse.Namespace) -> Settings:
    """Those of the server that is meant; raises InvalidSetting."""
    places: dict[str, object] = {
        name: value
        for name in ("database_url", "data_dir")
        if (value := getattr(chosen, name)) is not None
    }
    if chosen.admin_key is not None:
        places["admin_key"] = [chosen.admin_key]
    return merge_models(places, os.environ, chosen.config)[0]


def admin_key_of(settings: Settings) -> str:
    """The key for --url; raises InvalidSetting where there is none."""
    if not settings.gateway.admin_key:
        raise InvalidSetting("--admin-key", "is needed for --url (or HEADWAY_ADMIN_KEY)")
    return settings.gateway.admin_key[0]


def no_database() -> StartError:
    """The error where there is to be no database, and no server is named."""
    return StartError(
        "--data-dir none has no database: give --database-url or --data-dir as to headway serve, "
        "or --url and --admin-key of a running server"
    )


def existing(url: str) -> str:
    """The URL, if something may be there to be read; raises StartError for a file that is not.

    Opening it would make it, and a mistyped folder look like a server that had no requests.
    """
    path = path_of(url)
    try:
        if path is not None:
            path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StartError(
            f"there is no database {path}: nothing was kept there yet. Give --data-dir or "
            f"--database-url as to headway serve, or --url of a running server"
        ) from None
    except OSError:  # told by whoever opens it
        return url
    return url


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
