"""/admin over HTTP: who gets in, what each call does, and that /v1 knows it at once."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway.core.base.errors import InvalidSetting
from headway.service.gateway.accounts import Accounts, call_here
from headway.service.gateway.admin import AccountPages
from headway.service.gateway.admin_keys import MAX_WRONG
from headway.service.gateway.admin_routes import AdminCall, AdminRoute
from headway.service.gateway.assemble import Access
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.lifecycle import HttpServer, bind_admin
from headway.service.gateway.pages import Page
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.accounts_memory import MemoryAccounts
from tests.unit.service.gateway.fakes import (
    CHAT,
    HI,
    FakeReplica,
    Site,
    run,
    say_hello,
    site,
    until,
)
from tests.unit.service.gateway.keys import add_tenant, bearer

KEY = "an-admin-key-of-the-operator"
ADMIN = bearer(KEY)


@asynccontextmanager
async def admin_site(store: MemoryAccounts | None = None, **settings: Any) -> AsyncGenerator[Site]:
    """A gateway with /admin, two models and a store in memory."""
    replica, other = FakeReplica(), FakeReplica()
    replica.script = other.script = say_hello
    access = Access(
        store=store or MemoryAccounts(), call=call_here, admin_keys=(KEY, "another-admin-key")
    )
    async with site(
        settings=GatewaySettings(**settings),
        replica=replica,
        names=("small",),
        others={("large", "large-alias"): other},
        access=access,
    ) as here:
        yield here


async def call(here: Site, method: str, path: str, body: object = None) -> Any:
    """The JSON of a call that succeeds."""
    answer = await here.client.request(method, path, json=body, headers=ADMIN)
    assert answer.status_code in {200, 201}, answer.text
    if path != "/admin/openapi.json":
        assert answer.headers["cache-control"] == "no-store"
    return answer.json()


async def refused(here: Site, method: str, path: str, body: object = None) -> dict[str, Any]:
    """The error of a call that does not."""
    answer = await here.client.request(method, path, json=body, headers=ADMIN)
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return {"status": answer.status_code, **error}


def test_without_an_admin_key_there_is_no_admin() -> None:
    async def scenario() -> None:
        async with site() as here:
            for path in ("/admin", "/admin/tenants", "/admin/keys"):
                for method in ("GET", "POST", "DELETE"):
                    answer = await here.client.request(method, path, headers=ADMIN)
                    assert answer.status_code == 404

    run(scenario())


def test_a_wrong_key_learns_nothing_of_which_paths_there_are() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with admin_site(store) as here:
            for headers in ({}, bearer(key), {"X-Admin-Key": KEY}, {"Cookie": f"key={KEY}"}):
                for path in ("/admin", "/admin/tenants", "/admin/none", f"/admin?key={KEY}"):
                    answer = await here.client.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.json()["error"]["code"] == "invalid_api_key"
                    if headers.get("Authorization"):
                        break  # wrong ones are bounded
            assert (await here.client.get("/admin/none", headers=ADMIN)).status_code == 404
            assert (await here.metric("headway_admin_refused_total"))[""] == 13

    run(scenario())


def test_an_admin_key_opens_admin_only() -> None:
    async def scenario() -> None:
        async with admin_site() as here:
            assert (await here.client.get("/admin/tenants", headers=ADMIN)).status_code == 200
            for headers in ({}, ADMIN):
                answer = await here.client.post(CHAT, json=HI, headers=headers)
                assert answer.status_code == 401  # closed, although there is no key yet

    run(scenario())


def test_wrong_admin_keys_are_bounded_by_address() -> None:
    async def scenario() -> None:
        async with admin_site() as here:
            for _ in range(MAX_WRONG):
                answer = await here.client.get("/admin/keys", headers=bearer("guess"))
                assert answer.status_code == 401
            answer = await here.client.get("/admin/keys", headers=ADMIN)
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60

    run(scenario())


def test_a_tenant_and_its_key_from_creation_to_erasure() -> None:
    async def scenario() -> None:
        async with admin_site() as here:
            made = await call(
                here, "POST", "/admin/tenants", {"name": "acme", "class": "vip", "weight": 2}
            )
            assert (made["name"], made["class"], made["disabled"]) == ("acme", "vip", False)
            created = await call(here, "POST", "/admin/tenants/acme/keys", {"label": "ci"})
            key = created["key"]
            assert key.startswith(f"hw-{created['id']}-")
            assert (await here.client.post(CHAT, json=HI, headers=bearer(key))).status_code == 200
            listed = await call(here, "GET", "/admin/tenants/acme/keys")
            assert [each["id"] for each in listed["data"]] == [created["id"]]
            assert all("key" not in each and "hash" not in each for each in listed["data"])
            rotated = await call(
                here, "POST", f"/admin/keys/{created['id']}/rotate", {"overlap_s": 600}
            )
            for each in (key, rotated["key"]):  # both, within the overlap
                answer = await here.client.post(CHAT, json=HI, headers=bearer(each))
                assert answer.status_code == 200
            revoked = await call(here, "POST", f"/admin/keys/{created['id']}/revoke")
            assert revoked["replaced_by"] == rotated["id"]
            assert (await here.client.post(CHAT, json=HI, headers=bearer(key))).status_code == 401
            await call(here, "PATCH", "/admin/tenants/acme", {"disabled": True})
            answer = await here.client.post(CHAT, json=HI, headers=bearer(rotated["key"]))
            assert answer.status_code == 401
            exported = await call(here, "GET", "/admin/tenants/acme/export")
            assert len(exported["tables"]["tenant_keys"]) == 2
            await call(here, "DELETE", "/admin/tenants/acme")
            erased = await call(here, "POST", "/admin/tenants/acme/erase", {"confirm": "acme"})
            assert erased["rows"]["audit"] > 5
            log = await call(here, "GET", "/admin/audit")
            assert [entry["action"] for entry in log["data"]] == ["tenant.erase"]
            assert log["data"][0]["who"].startswith("admin:")

    run(scenario())


def test_a_tenants_models_are_all_that_it_can_see_and_use() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = bearer(add_tenant(store, "acme", models=["large-alias", "gone"]))
        free = bearer(add_tenant(store, "free"))
        async with admin_site(store) as here:
            client = here.client
            listed = (await client.get("/v1/models", headers=key)).json()["data"]
            assert [each["id"] for each in listed] == ["large-alias"]
            assert len((await client.get("/v1/models", headers=free)).json()["data"]) == 3
            for name, status in (("large-alias", 200), ("large", 404), ("small", 404)):
                answers = [
                    await client.get(f"/v1/models/{name}", headers=key),
                    await client.post(CHAT, json={**HI, "model": name}, headers=key),
                    await client.post(
                        "/v1/tokenize", json={"prompt": "Hi", "model": name}, headers=key
                    ),
                ]
                assert [answer.status_code for answer in answers] == [status] * 3, name
                if status == 404:
                    for answer in answers:
                        error = answer.json()["error"]
                        assert error["code"] == "model_not_found"
                        assert "large-alias" in error["message"]
                        assert "large," not in error["message"]
            assert (await client.post(CHAT, json=HI, headers=key)).json()["model"] == "large"
            answer = await client.post(CHAT, json={**HI, "model": "small"}, headers=free)
            assert answer.status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/admin/tenants", {}, 400, "name"),
        ("POST", "/admin/tenants", {"name": "a b"}, 400, "name"),
        ("POST", "/admin/tenants", {"name": "x", "class": "king"}, 400, "class"),
        ("POST", "/admin/tenants", {"name": "x", "weight": "2"}, 400, "weight"),
        ("POST", "/admin/tenants", {"name": "x", "wieght": 2}, 400, "wieght"),
        ("POST", "/admin/tenants", {"name": "x", "limits": {"rpm": 2}}, 400, "limits.rpm"),
        ("POST", "/admin/tenants", {"name": "acme"}, 409, "name"),
        ("POST", "/admin/tenants", {"name": "settled"}, 409, "name"),
        ("PATCH", "/admin/tenants/none", {"weight": 2}, 404, None),
        ("DELETE", "/admin/tenants/none", None, 404, None),
        ("POST", "/admin/tenants/none/keys", {}, 404, None),
        ("POST", "/admin/tenants/acme/keys", {"expires_in_s": -1}, 400, "expires_in_s"),
        ("POST", "/admin/tenants/acme/keys", {"expires_in_s": 1e308}, 400, "expires_in_s"),
        (
            "PATCH",
            "/admin/tenants/acme",
            {"limits": {"tokens_per_minute": 1.5, "monthly_budget": 1}},
            400,
            "limits.tokens_per_minute",
        ),
        (
            "PATCH",
            "/admin/tenants/acme",
            {"limits": {"monthly_budget": 10**400}},
            400,
            "limits.monthly_budget",
        ),
        ("POST", "/admin/tenants/acme/erase", {"confirm": "amce"}, 400, "confirm"),
        ("POST", "/admin/tenants/acme/erase", None, 400, "confirm"),
        ("POST", "/admin/keys/none/rotate", {}, 404, None),
        ("POST", "/admin/keys/none/revoke", None, 404, None),
        ("GET", "/admin/audit?limit=0", None, 400, "limit"),
        ("GET", "/admin/audit?limit=1e9", None, 400, "limit"),
        ("PUT", "/admin/tenants", {}, 405, None),
        ("GET", "/admin/tenants//keys", None, 404, None),
        ("GET", "/admin/", None, 404, None),
    ],
)
def test_what_cannot_be_done_is_said_in_openais_error_shape(
    method: str, path: str, body: object, status: int, param: str | None
) -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        add_tenant(store, "acme")
        async with admin_site(store, tenant=("settled:vip:sk-settled",)) as here:
            before = store.read(lambda book: book.revision())
            error = await refused(here, method, path, body)
            assert (error["status"], error["param"]) == (status, param), error
            assert store.read(lambda book: book.revision()) == before

    run(scenario())


def test_keys_of_the_settings_and_of_the_store_work_beside_each_other() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with admin_site(
            store, api_key=("sk-all",), tenant=("settled:vip:sk-settled",)
        ) as here:
            for each in ("sk-all", "sk-settled", key.text):
                answer = await here.client.post(CHAT, json=HI, headers=bearer(each))
                assert answer.status_code == 200

    run(scenario())


def test_security_headers_auth_01_nothing_in_a_request_changes_whose_it_is() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key, other = add_tenant(store, "acme", **{"class": "internal"}), add_tenant(store, "other")
        async with admin_site(store) as here:
            headers = {
                **bearer(key),
                "X-Tenant-Id": "other",
                "X-Customer-Id": "other",
                "X-Forwarded-User": "other",
                "OpenAI-Organization": "other",
                "api-key": other.text,
                "X-API-Key": other.text,
                "X_Tenant_Id": "other",
                "Connection": "x-internal-auth",
                "X-Internal-Auth": "other",
            }
            body = {**HI, "user": "other", "metadata": {"tenant": "other"}, "priority": 0}
            answer = await here.client.post(CHAT, json=body, headers=headers)
            assert answer.status_code == 200
            (request,) = here.replica.requests.values()
            assert request.tenant == "acme"
            assert request.slo_class == 2
            for values in ((key.text, other.text), (other.text, key.text), (key.text, key.text)):
                answer = await here.client.post(
                    CHAT, json=HI, headers=[("Authorization", f"Bearer {each}") for each in values]
                )
                assert answer.status_code == 401

    run(scenario())


def test_security_headers_auth_01_a_header_with_a_line_end_in_it_is_refused() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with admin_site(store) as here:
            for value in (f"Bearer {key.text}\rX: y", f"Bearer {key.text}\x00", "Bearer \n x"):
                reader, writer = await here.connect()
                head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: {value}\r\n\r\n"
                writer.write(head.encode())
                status = (await reader.readline()).split()[1]
                assert status in {b"400", b"401"}
                writer.close()

    run(scenario())


def test_neither_keys_nor_hashes_come_into_the_log_or_an_answer_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        add_tenant(store, "acme")
        async with admin_site(store) as here:
            created = await call(here, "POST", "/admin/tenants/acme/keys", {})
            secret = created["key"].rpartition("-")[2]
            await here.client.post(CHAT, json=HI, headers=bearer(created["key"]))
            await here.client.get("/admin/keys", headers=bearer(created["key"]))
            texts = [
                json.dumps(await call(here, "GET", path))
                for path in ("/admin/keys", "/admin/audit", "/admin/tenants/acme/export")
            ]
            texts += [str(vars(record)) for record in caplog.records]
            texts.append((await here.client.get("/metrics")).text)
            for text in texts:
                assert secret not in text
                assert KEY not in text
                assert "scrypt" not in text

    with caplog.at_level(logging.DEBUG):
        run(scenario())


def test_other_parts_can_add_calls_of_their_own() -> None:
    async def scenario() -> None:
        async def usage(admin_call: AdminCall) -> Page:
            said = {"of": admin_call.values, "by": admin_call.query("by"), "who": admin_call.who}
            return Page(200, json.dumps(said).encode())

        access = Access(
            admin_keys=(KEY,),
            admin_routes=(AdminRoute("GET", "/admin/usage/{name}", usage, ("by",)),),
        )
        async with site(access=access) as here:
            answer = await here.client.get("/admin/usage/acme?by=day", headers=ADMIN)
            assert answer.json()["of"] == ["acme"]
            assert answer.json()["by"] == "day"
            assert (await here.client.get("/admin/usage/acme?by=day")).status_code == 401

    run(scenario())


def test_an_admin_key_that_is_too_short_ends_the_start() -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidSetting, match="--admin-key"):
            async with site(access=Access(store=MemoryAccounts(), admin_keys=("short",))):
                pass

    run(scenario())


def test_every_described_call_is_there_and_every_call_is_described() -> None:
    async def scenario() -> None:
        async with admin_site() as here:
            document = await call(here, "GET", "/admin/openapi.json")
            described = {
                (method.upper(), path)
                for path, methods in document["paths"].items()
                for method in methods
            }
            access = AccountPages(Accounts(MemoryAccounts(), call_here, lambda _: None))
            routes = [*access.routes(), *UsagePages(MemoryLedger()).routes()]
            assert described == {(route.method, route.path) for route in routes}
            assert (await here.client.get("/admin/openapi.json")).status_code == 401
            public = (await here.client.get("/openapi.json")).json()["paths"]
            assert not [path for path in public if path.startswith("/admin")]

    run(scenario())


async def status(here: Site, url: str) -> int:
    """Of a GET by an operator."""
    return (await here.client.get(url, headers=ADMIN)).status_code


def test_admin_can_have_a_listener_of_its_own() -> None:
    async def scenario() -> None:
        settings = GatewaySettings(admin_listen="127.0.0.1:0", admin_key=(KEY,))
        async with admin_site(admin_listen="127.0.0.1:0") as here:
            listener = bind_admin(settings)
            assert listener is not None
            server = HttpServer(here.gateway.administer, settings, listener)
            serving = asyncio.create_task(server.run_until_stopped())
            try:
                await until(lambda: server.started)
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                assert await status(here, f"{url}/admin/keys") == 200
                for path in ("/metrics", "/v1/models", "/health"):
                    assert await status(here, url + path) == 404
                assert await status(here, "/admin/keys") == 404
                assert (await here.client.get(f"{url}/admin/keys")).status_code == 401
            finally:
                server.stop()
                await serving
                listener.close()

    run(scenario())


def test_a_listener_for_admin_that_cannot_be_had_is_named() -> None:
    with pytest.raises(InvalidSetting, match="--admin-listen: needs an --admin-key"):
        bind_admin(GatewaySettings(admin_listen="127.0.0.1:0"))
    with pytest.raises(InvalidSetting, match="--admin-listen: "):
        bind_admin(GatewaySettings(admin_listen="256.0.0.1:1", admin_key=(KEY,)))
    assert bind_admin(GatewaySettings(admin_key=(KEY,))) is None


def test_a_tenant_of_the_settings_is_told_to_be_changed_there() -> None:
    async def scenario() -> None:
        async with admin_site(MemoryAccounts(), tenant=("settled:vip:sk-settled",)) as here:
            for method, path, body in (
                ("GET", "/admin/tenants/settled", None),
                ("PATCH", "/admin/tenants/settled", {"weight": 2}),
                ("DELETE", "/admin/tenants/settled", None),
                ("GET", "/admin/tenants/settled/keys", None),
                ("POST", "/admin/tenants/settled/keys", {}),
            ):
                error = await refused(here, method, path, body)
                assert error["status"] == 404
                assert "'settled' stands in the server's settings" in error["message"]

    run(scenario())


def test_a_whole_key_in_a_path_is_not_repeated() -> None:
    async def scenario() -> None:
        async with admin_site(MemoryAccounts()) as here:
            for key, told in (("hw-abcdefghijklmnop-x2x2", True), ("x" * 400, False)):
                error = await refused(here, "POST", f"/admin/keys/{key}/revoke", None)
                assert error["status"] == 404
                assert ("give 'abcdefghijklmnop' alone" in error["message"]) is told
                assert "x2" not in error["message"]
                assert len(error["message"]) < 150

    run(scenario())
