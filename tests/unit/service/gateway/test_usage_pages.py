"""/admin/usage and /admin/requests, over HTTP."""

import csv
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headway.core.messages.record import Route
from headway.core.messages.usage import UsageQuery
from headway.service.gateway.assemble import Access
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.usage_format import usage_csv, usage_table
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.usage_memory import MemoryUsage
from tests.unit.service.gateway.fakes import run, site
from tests.unit.service.store.records import NOON, record

ADMIN = "an-admin-key-of-32-characters-xx"
KEY = {"authorization": f"Bearer {ADMIN}"}


@asynccontextmanager
async def admin(*records: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with the admin key, of a gateway with these records."""
    store = MemoryUsage()
    store.add(records)
    keeper = MemoryLedger(store)
    access = Access(admin_keys=(ADMIN,), admin_routes=UsagePages(keeper).routes())
    async with site(access=access, keeper=keeper) as here:
        here.client.headers.update(KEY)
        yield here.client


SOME = (
    record("a", cost=1, shown_id="svc/shown:a+1"),
    record("b", cost=2, tenant="beta", route=Route(model="other")),
    record("c", cost=4, began=NOON + 86400),
)


@pytest.mark.spec("A9")
def test_usage_is_answered_by_group_as_json() -> None:
    async def scenario() -> None:
        async with admin(*SOME) as client:
            found = (await client.get("/admin/usage?group_by=tenant,day")).json()
            assert found["group_by"] == ["tenant", "day"]
            assert [(row["tenant"], row["day"], row["cost_micros"]) for row in found["data"]] == [
                ("acme", "2026-11-30", 1),
                ("acme", "2026-12-01", 4),
                ("beta", "2026-11-30", 2),
            ]
            assert found["total"]["cost_micros"] == 7
            assert found["total"]["requests"] == 3
            narrow = await client.get("/admin/usage?group_by=model&from=2026-12-01&to=2026-12-02")
            assert [row["model"] for row in narrow.json()["data"]] == ["m"]
            by_default = (await client.get("/admin/usage")).json()
            assert by_default["group_by"] == ["tenant", "model", "day"]

    run(scenario())


def test_usage_is_answered_as_csv_too() -> None:
    async def scenario() -> None:
        async with admin(*SOME) as client:
            answer = await client.get("/admin/usage?group_by=tenant,model&format=csv&tenant=beta")
            assert answer.headers["content-type"] == "text/csv; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            (row,) = csv.DictReader(io.StringIO(answer.text))
            assert (row["tenant"], row["model"], row["cost_micros"]) == ("beta", "other", "2")
            assert (row["requests"], row["prompt_tokens"], row["device_s"]) == (
                "1",
                "10",
                "0.500000",
            )

    run(scenario())


@pytest.mark.spec("M6")
@pytest.mark.parametrize("name", ["a", "svc/shown:a+1", "svc%2Fshown%3Aa%2B1"])
def test_a_request_is_explained_by_our_id_and_by_the_clients(name: str) -> None:
    async def scenario() -> None:
        async with admin(*SOME) as client:
            found = (await client.get(f"/admin/requests/{name}")).json()
            assert found["request"]["id"] == "a"
            assert found["request"]["route"]["model"] == "m"
            assert found["why"]["outcome"] == "It was answered completely, after 1.50 s."
            assert found["why"]["cache"] in found["text"]

    run(scenario())


def test_requests_are_listed_page_by_page() -> None:
    async def scenario() -> None:
        async with admin(*(record(f"r{i}", began=NOON + i // 2) for i in range(5))) as client:
            seen, url = [], "/admin/requests?limit=2"
            while True:
                page = (await client.get(url)).json()
                seen += [each["id"] for each in page["data"]]
                if page["next"] is None:
                    break
                url = f"/admin/requests?limit=2&before={page['next']}"
            assert seen == ["r4", "r3", "r2", "r1", "r0"]
            since = await client.get(f"/admin/requests?since={NOON + 2:.0f}&tenant=acme&outcome=ok")
            assert [each["id"] for each in since.json()["data"]] == ["r4"]

    run(scenario())


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/admin/requests/nobody", 404, None),
        ("/admin/usage?group_by=tenant,tenant", 400, "group_by"),
        ("/admin/usage?group_by=prompt", 400, "group_by"),
        ("/admin/usage?from=yesterday", 400, "from"),
        ("/admin/usage?to=2026-13-01", 400, "to"),
        ("/admin/usage?from=2026-12&to=2026-11", 400, "to"),
        ("/admin/usage/", 404, None),
        ("/admin/requests/", 404, None),
        ("/admin/usage?format=xml", 400, "format"),
        ("/admin/usage?by=tenant", 400, "by"),
        ("/admin/usage?since=2026-12", 400, "since"),
        ("/admin/usage?tenant=", 400, "tenant"),
        ("/admin/requests?from=2026-12", 400, "from"),
        ("/admin/requests/a?format=csv", 400, "format"),
        ("/admin/requests?outcome=good", 400, "outcome"),
        ("/admin/requests?before=x_y", 400, "before"),
        ("/admin/requests?before=nan_y", 400, "before"),
        ("/admin/requests?limit=0", 400, "limit"),
        ("/admin/requests?limit=1001", 400, "limit"),
        ("/admin/requests?since=1e999", 400, "since"),
    ],
)
def test_what_cannot_be_answered_says_which_parameter_is_wrong(
    path: str, status: int, param: str | None
) -> None:
    async def scenario() -> None:
        async with admin(*SOME) as client:
            answer = await client.get(path)
            assert answer.status_code == status
            assert answer.json()["error"]["param"] == param

    run(scenario())


def test_nobody_without_the_admin_key_sees_any_of_it() -> None:
    async def scenario() -> None:
        async with admin(*SOME) as client:
            for path in ("/admin/usage", "/admin/requests", "/admin/requests/a"):
                for headers in ({"authorization": ""}, {"authorization": "Bearer no"}):
                    answer = await client.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert "acme" not in answer.text

    run(scenario())


def test_a_name_is_no_formula_for_a_spreadsheet() -> None:
    store = MemoryUsage()
    store.add([record("a", tenant="=1+1"), record("b", tenant="-x")])
    rows = store.usage(UsageQuery(group_by=("tenant",)))
    text = usage_csv(("tenant",), rows)
    assert [line.split(",")[0] for line in text.splitlines()] == ["tenant", "'-x", "'=1+1"]
    assert "total" in usage_table(("tenant",), rows).splitlines()[-1]
