"""What an operator's browser may be made to send to /admin, on the databases that there are."""

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from headway.core.messages.record import Route
from headway.core.messages.usage import GROUPS
from headway.service.gateway.accounts import call_here
from headway.service.gateway.assemble import Access
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import Database, file_url, open_database
from headway.service.store.drain import Records
from headway.service.store.usage import SqlUsage
from tests.unit.service.gateway.fakes import FakeReplica, run, say_hello, site
from tests.unit.service.gateway.keys import add_tenant, bearer
from tests.unit.service.store.records import record

T = TypeVar("T")
KEY = "an-admin-key-of-the-operator"
ADMIN = bearer(KEY)
BAD = [
    *("' OR '1'='1", "a';DROP TABLE requests;--", '"', "\\", "%", "a\0b", "\0", "acme' --"),
    *("1;SELECT pg_sleep(9)", "\ufeff", "🙂", "\x1b[31m", "x" * 5000, "-1", "1e400", "nan"),
    *("9" * 400, "0001-01-01T00:00+23:59", "..", "\r\n", "%00", "\uffff"),
]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    is_file = request.param == "sqlite"
    url = file_url(tmp_path / "h.db") if is_file else request.getfixturevalue("postgres_url")
    made = open_database(url)
    yield made
    made.close()


class Kept(MemoryLedger):
    """A ledger whose questions go to a real database."""

    def __init__(self, store: Records) -> None:
        super().__init__()
        self._records = store

    async def ask(self, question: Callable[[Records], T]) -> T:
        """On this thread."""
        return question(self._records)


@asynccontextmanager
async def administered(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with the admin key, at a gateway with one tenant and one record."""
    accounts, usage = SqlAccounts(database), SqlUsage(database)
    add_tenant(accounts, "acme")
    usage.add([record("r1", route=Route(asked="=1+1", model="=1+1"))])
    keeper = Kept(usage)
    access = Access(
        store=accounts,
        call=call_here,
        admin_keys=(KEY,),
        admin_routes=UsagePages(keeper).routes(),
    )
    replica = FakeReplica()
    replica.script = say_hello
    async with site(access=access, keeper=keeper, replica=replica) as here:
        here.client.headers.update(ADMIN)
        yield here.client


async def total(client: httpx.AsyncClient) -> int:
    """How many requests are recorded."""
    found = (await client.get("/admin/usage")).json()["total"]["requests"]
    assert isinstance(found, int)
    return found


def test_no_text_in_a_query_is_taken_for_sql_or_ends_in_a_server_error(database: Database) -> None:
    async def scenario() -> None:
        async with administered(database) as client:
            for bad in BAD:
                for name in ("group_by", "from", "to", "tenant", "key", "model", "format"):
                    answer = await client.get("/admin/usage", params={name: bad})
                    assert answer.status_code < 500, (name, bad, answer.text)
                    if answer.status_code == 200 and name in {"tenant", "key", "model"}:
                        assert answer.json()["data"] == [], (name, bad)
                for name in ("tenant", "outcome", "model", "since", "before", "limit"):
                    answer = await client.get("/admin/requests", params={name: bad})
                    assert answer.status_code < 500, (name, bad, answer.text)
                before = await client.get("/admin/requests", params={"before": f"1.0_{bad}"})
                assert before.status_code < 500, bad
                for name in ("tenant", "before", "limit"):
                    answer = await client.get("/admin/audit", params={name: bad})
                    assert answer.status_code < 500, (name, bad, answer.text)
            assert await total(client) == 1

    run(scenario())


def test_no_text_in_a_path_or_a_body_ends_in_a_server_error(database: Database) -> None:
    async def scenario() -> None:
        async with administered(database) as client:
            for bad in BAD:
                part = str(httpx.QueryParams({"": bad}))[1:].replace("+", "%20")
                calls = [
                    ("GET", f"/admin/requests/{part}", None),
                    ("GET", f"/admin/tenants/{part}", None),
                    ("PATCH", f"/admin/tenants/{part}", {"weight": 2}),
                    ("DELETE", f"/admin/tenants/{part}", None),
                    ("GET", f"/admin/tenants/{part}/export", None),
                    ("POST", f"/admin/tenants/{part}/erase", {"confirm": bad}),
                    ("POST", f"/admin/tenants/{part}/keys", {"label": bad}),
                    ("POST", f"/admin/keys/{part}/rotate", {}),
                    ("POST", f"/admin/keys/{part}/revoke", None),
                    ("POST", "/admin/tenants", {"name": bad}),
                    ("POST", "/admin/tenants/acme/keys", {"label": bad}),
                    ("PATCH", "/admin/tenants/acme", {"models": [bad]}),
                    ("PATCH", "/admin/tenants/acme", {"class": bad}),
                ]
                for method, path, body in calls:
                    answer = await client.request(method, path, json=body)
                    assert answer.status_code < 500, (method, path, bad, answer.text)
            assert (await client.get("/admin/tenants/acme")).status_code == 200
            assert await total(client) == 1

    run(scenario())


def test_groups_are_words_of_a_list_and_nothing_else(database: Database) -> None:
    async def scenario() -> None:
        async with administered(database) as client:
            for bad in (
                *("tenant;DROP TABLE requests", "tenant,(SELECT hash FROM keys)", "id", "shown_id"),
                *("tenant,tenant,", "keys.hash", "1", "tenant--", "TENANT", "tenant,day,hour,nope"),
            ):
                answer = await client.get("/admin/usage", params={"group_by": bad})
                assert answer.status_code == 400, bad
                assert answer.json()["error"]["param"] == "group_by"
            for pair in itertools.combinations(GROUPS, 2):
                answer = await client.get("/admin/usage", params={"group_by": ",".join(pair)})
                assert answer.json()["total"]["requests"] == 1, pair

    run(scenario())


def test_an_export_for_a_spreadsheet_holds_no_formula(database: Database) -> None:
    async def scenario() -> None:
        async with administered(database) as client:
            answer = await client.get("/admin/usage", params={"group_by": "model", "format": "csv"})
            assert answer.headers["content-type"].startswith("text/csv")
            assert "attachment" in answer.headers["content-disposition"]
            (_, line, *_) = answer.text.splitlines()
            assert line.startswith("'=1+1,")

    run(scenario())
