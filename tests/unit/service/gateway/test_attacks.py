"""What a hostile client sends to a gateway with tenants, and what it gets: nothing of use."""

import asyncio
import base64
import itertools
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.service.gateway import jwt_tokens
from headway.service.gateway.accounts import call_here
from headway.service.gateway.admin_keys import MAX_WRONG
from headway.service.gateway.assemble import Access
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.jwt_tokens import JwtTokens
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.accounts_memory import MemoryAccounts
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    HI,
    NATIVE,
    FakeReplica,
    Site,
    close,
    run,
    say_hello,
    site,
)
from tests.unit.service.gateway.keys import add_tenant, bearer, fresh_key

KEY = "an-admin-key-of-the-operator"
ADMIN = bearer(KEY)
ROUTES = {
    "names": [
        {"name": "chat", "versions": {"stable": "small", "preview": "large"}},
    ],
}


@asynccontextmanager
async def guarded(store: MemoryAccounts | None = None, **settings: Any) -> AsyncGenerator[Site]:
    """A gateway with tenants, routes, a ledger and /admin."""
    replica, other = FakeReplica(), FakeReplica()
    replica.script = other.script = say_hello
    keeper = MemoryLedger()
    async with site(
        settings=GatewaySettings(**settings),
        replica=replica,
        names=("small",),
        others={("large",): other},
        access=Access(
            store=store or MemoryAccounts(),
            call=call_here,
            admin_keys=(KEY,),
            admin_routes=UsagePages(keeper).routes(),
        ),
        keeper=keeper,
        routes=ROUTES,
    ) as here:
        yield here


async def told(here: Site, data: bytes) -> bytes:
    """All that is answered to bytes on a connection of their own."""
    reader, writer = await here.connect()
    writer.write(data)
    async with asyncio.timeout(60):
        found = await reader.read()
    await close(writer)
    return found


INJECTED = "x\r\nset-cookie: owned=1\r\n\r\n<script>"
ESCAPED = "x%0d%0aset-cookie:%20owned=1%0d%0a%0d%0a%3Cscript%3E"


def test_nothing_that_a_client_sends_becomes_a_header_of_the_answer() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        headers = bearer(add_tenant(store, "acme"))
        async with guarded(store) as here:
            client = here.client
            answers = [
                await client.post(CHAT, json={**HI, "model": INJECTED}, headers=headers),
                await client.post(f"{CHAT}?model={ESCAPED}", json=HI, headers=headers),
                await client.post(CHAT, json={**HI, "user": INJECTED}, headers=headers),
                await client.post(CHAT, json={**HI, INJECTED: 1, "n": INJECTED}, headers=headers),
                await client.get(f"/v1/models/{ESCAPED}", headers=headers),
                await client.get(f"/{ESCAPED}"),
                await client.get(f"/admin/tenants/{ESCAPED}", headers=ADMIN),
                await client.get(f"/admin/usage?format=csv&tenant={ESCAPED}", headers=ADMIN),
                await client.get(f"/admin/requests?outcome={ESCAPED}", headers=ADMIN),
                await client.post(f"/v1/connections/{ESCAPED}/heartbeat", headers=headers),
            ]
            for answer in answers:
                assert "set-cookie" not in answer.headers, answer.url
                assert answer.headers["content-type"].startswith(("application/json", "text/csv"))
            raw = await told(
                here,
                b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"X-Request-Id: a\tb\x80;<set-cookie>%0d%0ax: y\r\n\r\n",
            )
            head = raw.partition(b"\r\n\r\n")[0].lower()
            assert b"x-request-id: ab" in head
            assert not re.search(rb"set-cookie>|\t|\x80", head)

    run(scenario())


CLAIMS = {
    "x-headway-tenant": "globex",
    "x-headway-class": "vip",
    "x-headway-slo-class": "vip",
    "x-headway-model": "large",
    "x-headway-route": "large",
    "x-headway-version": "preview",
    "x-headway-arm": "preview",
    "x-headway-degraded": "model",
    "x-ratelimit-remaining-tokens": "1000000",
    "x-original-url": "/admin/tenants",
    "x-rewrite-url": "/admin/tenants",
    "x-http-method-override": "DELETE",
}


def test_headers_of_answers_mean_nothing_in_a_request() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme", **{"class": "internal"}, models=["chat"])
        add_tenant(store, "globex", **{"class": "vip"})
        async with guarded(store) as here:
            body = {**HI, "model": "chat"}
            answer = await here.client.post(CHAT, json=body, headers=bearer(key) | CLAIMS)
            assert answer.status_code == 200
            assert answer.headers["x-headway-model"] == "small"
            assert answer.headers["x-headway-version"] == "stable"
            assert "x-headway-degraded" not in answer.headers
            assert "x-ratelimit-remaining-tokens" not in answer.headers
            (request,) = here.replica.requests.values()
            assert (request.tenant, request.slo_class) == ("acme", 2)

    run(scenario())


def test_who_guesses_admin_keys_cannot_do_so_under_other_addresses() -> None:
    async def scenario() -> None:
        async with guarded() as here:
            for number in range(MAX_WRONG):
                forged = {
                    "x-forwarded-for": f"10.0.0.{number}",
                    "x-real-ip": f"10.0.0.{number}",
                    "forwarded": f"for=10.0.0.{number}",
                }
                guess = bearer(f"guess-number-{number}")
                answer = await here.client.get("/admin/keys", headers=guess | forged)
                assert answer.status_code == 401
            last = {**ADMIN, "x-forwarded-for": "10.1.0.1", "x-real-ip": "10.1.0.1"}
            assert (await here.client.get("/admin/keys", headers=last)).status_code == 429

    run(scenario())


def seen_of(answer: httpx.Response) -> tuple[int, str, list[str]]:
    """What an answer tells, but for its id and its time."""
    names = sorted(name for name in answer.headers if name != "date")
    return answer.status_code, answer.text, names


def test_a_key_with_an_id_that_is_there_is_refused_exactly_as_one_with_none() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        limits = {"requests_per_minute": 5, "tokens_per_minute": 1000}
        good, other = add_tenant(store, "acme", limits=limits), fresh_key()
        async with guarded(store) as here:
            wrong = f"hw-{good.id}-{other.text.rpartition('-')[2]}"
            for path in (CHAT, COMPLETIONS, NATIVE, "/v1/tokenize", "/v1/models/small"):
                seen = []
                for key in (wrong, other.text, "sk-anything", good.text[:-1] + "!"):
                    method = "GET" if path.endswith("small") else "POST"
                    answer = await here.client.request(
                        method, path, json=HI if method == "POST" else None, headers=bearer(key)
                    )
                    seen.append(seen_of(answer))
                assert seen[0][0] == 401
                assert all(each == seen[0] for each in seen), path
                assert good.id not in seen[0][1]

    run(scenario())


@pytest.mark.parametrize(
    "target",
    [
        *("//admin/tenants", "/./admin/tenants", "/v1/../admin/tenants", "/ADMIN/tenants"),
        *("/admin;/tenants", "/admin%2ftenants", "/%61dmin/tenants", "/admin/tenants/"),
        *("/metrics/../admin/tenants", "/docs/..%2fadmin/tenants", "/admin\\tenants"),
        *("http://127.0.0.1/admin/tenants", "/v1/models/../../admin/tenants", "/admin%00"),
    ],
)
def test_no_spelling_of_a_path_gets_into_admin_without_its_key(target: str) -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with guarded(store) as here:
            for method in ("GET", "POST", "DELETE", "PATCH"):
                head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                head += f"Authorization: Bearer {key.text}\r\nContent-Length: 0\r\n\r\n"
                answer = await told(here, head.encode())
                status = int(answer.split()[1])
                assert status in {400, 401, 404, 405, 429}, (method, answer[:200])
                assert b"acme" not in answer.partition(b"\r\n\r\n")[2].replace(target.encode(), b"")

    run(scenario())


def test_what_anybody_may_read_tells_of_no_tenant_and_no_key() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme-7q")
        async with guarded(store) as here:
            await here.client.post(CHAT, json=HI, headers=bearer(key))
            for path in ("/metrics", "/health", "/ready", "/docs", "/openapi.json", "/admin", "/"):
                text = (await here.client.get(path)).text
                assert "acme-7q" not in text, path
                assert key.id not in text, path
                assert KEY not in text, path

    run(scenario())


def test_only_the_tenant_of_a_request_can_beat_for_it_or_learn_that_it_is_there() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        acme, globex = add_tenant(store, "acme"), add_tenant(store, "globex")
        name = "6c1f0d2e9a4b4a7f"
        async with guarded(store) as here:
            here.replica.script = None
            sent = {**bearer(acme), "X-Headway-Connection-Id": name}
            _, writer = await here.send(CHAT, {**HI, "stream": True}, sent)
            await here.calls(1)
            beat = f"/v1/connections/{name}/heartbeat"
            own = await here.client.post(beat, headers=bearer(acme))
            other = await here.client.post(beat, headers=bearer(globex))
            none = await here.client.post(beat.replace("6", "7"), headers=bearer(globex))
            assert own.status_code == 204
            assert other.status_code == none.status_code == 404
            assert other.text == none.text
            assert (await here.client.post(beat)).status_code == 401
            # Nor does another's request of the same name end it, or take its place.
            await close(writer)

    run(scenario())


DEEP = [
    b"[" * 200_000,
    b'{"messages":' * 50_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"messages":[{"role":"user","content":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    b'{"metadata":' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    b'{"limits":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    b'{"n":' + b"9" * 100_000 + b"}",
]


def test_json_that_nests_without_end_is_refused_everywhere() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with guarded(store) as here:
            paths = [(each, bearer(key)) for each in (CHAT, COMPLETIONS, NATIVE, "/v1/tokenize")]
            paths += [(each, bearer(key)) for each in ("/v1/detokenize",)]
            paths += [
                (each, ADMIN)
                for each in (
                    *("/admin/tenants", "/admin/tenants/acme/keys", "/admin/tenants/acme/erase"),
                    f"/admin/keys/{key.id}/rotate",
                )
            ]
            for (path, headers), body in itertools.product(paths, DEEP):
                if path.startswith("/admin") and len(body) > 256 * 1024:
                    continue
                answer = await here.client.post(path, content=body, headers=headers)
                assert 400 <= answer.status_code < 500, (path, body[:20], answer.text)
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            patched = await here.client.patch("/admin/tenants/acme", content=DEEP[5], headers=ADMIN)
            assert patched.status_code == 400
            assert (await here.client.post(CHAT, json=HI, headers=bearer(key))).status_code == 200

    run(scenario())


BOMBS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(a+)+$"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
    {"guided_regex": "(" * 3000 + ")" * 3000},
    {"guided_grammar": 'root ::= "a" root root | ""'},
    {"structured_outputs": {"regex": "(.*)*\\1{9999}"}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}]},
    {"regex": "ab**"},
    {"ebnf": "root ::= root"},
    {"stop": ["(a+)+$" * 20]},
    {"bad_words": ["(a+)+$"]},
]


def test_patterns_and_grammars_are_refused_or_taken_as_plain_text() -> None:
    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with guarded(store) as here:
            for bomb in BOMBS:
                async with asyncio.timeout(20):
                    answer = await here.client.post(CHAT, json=HI | bomb, headers=bearer(key))
                is_text = "stop" in bomb or "bad_words" in bomb
                assert answer.status_code == 200 if is_text else 400, (bomb, answer.text)

    run(scenario())


@contextmanager
def opened() -> Iterator[list[str]]:
    """Paths of all files that this process opens, renames, lists or removes within the block."""
    found: list[str] = []
    watches = [True]
    events = ("open", "os.", "shutil.", "glob.", "pathlib.", "sqlite3.connect")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watches and event.startswith(events):
            found.extend(str(each) for each in arguments if isinstance(each, str | bytes | Path))

    sys.addaudithook(hook)  # it cannot be taken out again, only made to do nothing
    try:
        yield found
    finally:
        watches.clear()


def test_security_paths_01_no_name_of_a_request_reaches_the_disk(tmp_path: Path) -> None:
    secret = tmp_path / "secret-7q"
    secret.write_text("what is in it 7Q")
    (tmp_path / "link-7q").symlink_to(secret)
    names = [
        *(str(secret), f"../../../{secret}", f"..%2f..%2f{str(secret)[1:]}", "secret-7q\0.gguf"),
        *(str(tmp_path / "link-7q"), "link-7q", "secret-7q" * 40, ".", "CON", "secret\n7q"),
        *("sha256:../../secret-7q", "file://" + str(secret), "~/secret-7q", "\\\\host\\secret-7q"),
        *(f"small,model={secret}", f"small@{secret}", ""),
    ]

    async def scenario() -> None:
        store = MemoryAccounts()
        key = add_tenant(store, "acme")
        async with guarded(store) as here:
            seen: list[httpx.Response] = []
            with opened() as touched:
                for name in names:
                    url = httpx.QueryParams({"model": name})
                    in_path = str(httpx.QueryParams({"": name}))[1:]
                    for body in (
                        {"model": name},
                        {"lora_path": name, "lora_request": {"lora_local_path": name}},
                        {"adapter": name, "cache_salt": name or "x", "user": name},
                    ):
                        seen.append(
                            await here.client.post(CHAT, json=HI | body, headers=bearer(key))
                        )
                    seen += [
                        await here.client.post(f"{CHAT}?{url}", json=HI, headers=bearer(key)),
                        await here.client.get(f"/v1/models/{in_path}", headers=bearer(key)),
                        await here.client.get(f"/admin/tenants/{in_path}", headers=ADMIN),
                        await here.client.get(f"/admin/requests/{in_path}", headers=ADMIN),
                        await here.client.post(
                            "/admin/tenants", json={"name": name}, headers=ADMIN
                        ),
                        await here.client.get(
                            "/health", headers={b"x-request-id": name.encode("unicode_escape")}
                        ),
                    ]
            assert not [path for path in touched if "7q" in path.lower() or "CON" in path]
            assert all("what is in it" not in each.text for each in seen)
            assert not [each for each in seen if each.status_code >= 500]
            refused = [each.status_code for each in seen[::9]]
            assert refused.count(404) + refused.count(400) >= len(names) - 1  # "" names none

    run(scenario())


def test_many_unknown_key_ids_fetch_the_providers_keys_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetches: list[int] = []

    async def body(self: JwtTokens) -> bytes:
        fetches.append(1)
        await asyncio.sleep(0)
        return b'{"keys":[' + b'{"a":' * 100_000 if len(fetches) > 1 else b'{"keys": []}'

    monkeypatch.setattr(JwtTokens, "_body", body)

    def token(number: int) -> str:
        parts = (f'{{"alg":"RS256","kid":"{number}"}}', '{"tenant":"acme"}', "x")
        return ".".join(base64.urlsafe_b64encode(each.encode()).decode() for each in parts).replace(
            "=", ""
        )

    async def scenario() -> None:
        settings = JwtSettings(
            jwks="https://id.example.com/keys", issuer="https://id.example.com/", audience="headway"
        )
        access = Access(tokens=lambda find: JwtTokens(settings, find))
        async with site(access=access) as here:
            answers = await asyncio.gather(
                *(
                    here.client.post(CHAT, json=HI, headers=bearer(token(each)))
                    for each in range(100)
                )
            )
            assert {each.status_code for each in answers} == {503}
            # One at the start, and one a second at most while no key is known.
            assert len(fetches) <= 3
            monkeypatch.setattr(jwt_tokens, "MIN_PAUSE_S", 0.0)
            again = await here.client.post(CHAT, json=HI, headers=bearer(token(1)))
            assert again.status_code == 503  # also of keys that nest without end
            assert len(fetches) > 1

    run(scenario())


def test_an_upgrade_to_another_protocol_is_not_made() -> None:
    async def scenario() -> None:
        async with guarded() as here:
            for upgrade in ("websocket", "h2c"):
                head = (
                    "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
                    f"Upgrade: {upgrade}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                    "Sec-WebSocket-Version: 13\r\n\r\n"
                )
                answer = await told(here, head.encode())
                assert answer.split()[1] in {b"401", b"400"}

    run(scenario())
