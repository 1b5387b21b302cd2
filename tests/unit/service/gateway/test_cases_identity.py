"""Whose a request is: its key says so, and nothing else in it does."""

import re
from typing import Any

import msgspec
import pytest

from headway.core.messages.path import EngineRequest
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    HI,
    FakeReplica,
    Site,
    close,
    post,
    run,
    say_hello,
    site,
)

SETTINGS = GatewaySettings(
    tenant=("acme:standard*2:sk-acme", "globex:vip:sk-globex"), api_key=("sk-nobody",)
)
ACME = {"Authorization": "Bearer sk-acme"}
HEADERS: list[dict[str, str]] = [
    {"x-tenant-id": "globex"},
    {"x-customer-id": "globex", "X-Forwarded-User": "globex"},
    {"OpenAI-Organization": "globex", "OpenAI-Project": "globex"},
    {"api-key": "sk-globex", "x-api-key": "sk-globex"},
    {"x_tenant_id": "globex", "http_authorization": "Bearer sk-globex"},
    {"Cookie": "tenant=globex", "Proxy-Authorization": "Bearer sk-globex"},
    {"x-internal-auth": "globex", "Connection": "x-internal-auth"},
]
BODIES: list[dict[str, Any]] = [
    {"user": "globex", "metadata": {"tenant": "globex"}},
    {"tenant": "globex", "slo_class": 0, "tenant_weight": 1000, "first_token_budget_s": 9},
    {"api_base": "http://globex", "base_url": "http://globex", "model_list": ["globex"]},
    {"extra_headers": {"Authorization": "Bearer sk-globex"}, "extra_body": {"tenant": "globex"}},
    {"cache_salt": "globex\0"},
    {"service_tier": "priority"},
]


async def taken(
    here: Site, headers: dict[str, str], body: dict[str, Any]
) -> tuple[int, EngineRequest | None]:
    """The status, and what reached the engine for it."""
    before = len(here.replica.requests)
    answer = await here.client.post(CHAT, json=HI | body, headers=headers)
    requests = list(here.replica.requests.values())[before:]
    return answer.status_code, requests[0] if requests else None


def test_security_headers_auth_01_only_the_key_says_whose_a_request_is() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(settings=SETTINGS, replica=replica) as here:
            status, plain = await taken(here, ACME, {})
            assert status == 200
            assert plain is not None
            for headers, body in [
                *((each, {}) for each in HEADERS),
                *(({}, each) for each in BODIES),
            ]:
                status, request = await taken(here, ACME | headers, body)
                if request is None:  # a field that is refused by its name
                    assert status == 400, (headers, body)
                    continue
                assert (request.tenant, request.tenant_weight) == ("acme", 2.0)
                assert request.slo_class == plain.slo_class
                assert request.first_token_budget_s == plain.first_token_budget_s
                assert request.cache_salt.startswith(b"acme\0")
                # Nothing of what was claimed travels on but the salt, which is under acme's name.
                inside = msgspec.structs.replace(request, cache_salt=b"")
                assert b"globex" not in msgspec.json.encode(inside)
            counted = await here.metric("headway_class_requests_total")
            assert all('slo_class="standard"' in series for series, n in counted.items() if n)

    run(scenario())


def test_security_headers_auth_01_nobodys_key_reaches_no_tenants_blocks() -> None:
    """The salt of a tenant could be spelled by somebody who has none."""

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(settings=SETTINGS, replica=replica) as here:
            salts = []
            for key, fields in (
                ("sk-acme", {}),
                ("sk-acme", {"cache_salt": "x"}),
                ("sk-nobody", {"cache_salt": "acme\0"}),
                ("sk-nobody", {"cache_salt": "acme\0x"}),
                ("sk-nobody", {"cache_salt": "\0acme\0x"}),
                ("sk-globex", {"cache_salt": "acme\0"}),
            ):
                _, request = await taken(here, {"Authorization": f"Bearer {key}"}, fields)
                assert request is not None
                salts.append(request.cache_salt)
            assert len(set(salts)) == len(salts)

    run(scenario())


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: Bearer sk-acme\r\nAuthorization: Bearer sk-globex\r\n",
        b"Authorization: Bearer sk-acme\r\nAuthorization: Bearer sk-acme\r\n",
        b"Authorization: Bearer\r\n sk-acme\r\n",
        b"Authorization: Bearer sk-acme,Bearer sk-globex\r\n",
        b"Authorization : Bearer sk-acme\r\n",
        b"Authorization: Bearer sk-acme\rX: y\r\n",
        b"Authorization: Bearer sk-acme\x00\r\n",
        b"authorization_: Bearer sk-acme\r\n",
        b"Transfer-Encoding: chunked\r\nAuthorization: Bearer sk-acme\r\n",
    ],
)
def test_security_headers_auth_01_a_header_of_two_meanings_is_refused(lines: bytes) -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(settings=SETTINGS, replica=replica) as here:
            reader, writer = await here.connect()
            data = post(CHAT, HI, {})
            head, _, body = data.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n" + lines + b"Connection: close\r\n\r\n" + body)
            answer = await reader.read()
            await close(writer)
            assert re.match(rb"HTTP/1.1 40[01] ", answer), answer[:80]
            assert not replica.requests

    run(scenario())
