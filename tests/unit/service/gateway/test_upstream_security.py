"""What a client cannot do through the gateway to the servers behind it."""

import asyncio
import re

import pytest

from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Modality
from tests.unit.service.gateway.fakes import (
    DEADLINE_S,
    close,
    post,
    run,
)
from tests.upstreams import (
    CHAT,
    HI,
    front,
    hello,
    upstream,
)

IN_FLIGHT = "headway_upstream_in_flight_requests"
STREAM = {"stream": True}
THREE = ("Zwei 你好 ", "🙂 ", "drei")


def test_security_headers_auth_01_nothing_of_who_asks_goes_to_the_upstream() -> None:
    async def scenario() -> None:
        gateway = GatewaySettings(tenant=("a:standard:key-a", "b:vip:key-b"))
        async with upstream(hello) as theirs:
            made = front([theirs], gateway=gateway, key="ours", headers={"x-team": "t"})
            async with made as here:
                sent = {
                    "authorization": "Bearer key-a",
                    "x-tenant-id": "b",
                    "x-customer-id": "b",
                    "x-forwarded-user": "b",
                    "openai-organization": "b",
                    "api-key": "zzz",
                    "x_internal_auth": "1",
                    "cookie": "a=b",
                    "connection": "x-internal-auth",
                    "x-internal-auth": "1",
                }
                body = {
                    **HI,
                    "user": "b",
                    "priority": -5,
                    "api_base": "http://127.0.0.1:1",
                    "base_url": "http://127.0.0.1:1",
                    "model_list": [],
                    "extra_headers": {"authorization": "Bearer b"},
                    "extra_body": {"model": "b"},
                }
                found = await here.client.post(CHAT, json=body, headers=sent)
                assert found.status_code == 200
                (seen,) = theirs.seen
                names = {name.lower() for name, _ in seen.headers}
                assert names == {
                    *("host", "content-type", "accept", "accept-encoding", "user-agent"),
                    *("authorization", "x-team", "x-request-id", "connection", "content-length"),
                }
                assert seen.header("authorization") == ["Bearer ours"]
                assert seen.header("connection") == ["keep-alive"]
                assert set(seen.json) == {"model", "messages", "user"}
                classes = await here.metric("headway_class_requests_total")
                assert any("standard" in labels for labels in classes)
                assert not any("vip" in labels for labels in classes)
                double = await here.client.post(
                    CHAT,
                    json=HI,
                    headers=[("authorization", "Bearer key-a"), ("authorization", "Bearer key-b")],
                )
                assert double.status_code == 401
                assert len(theirs.seen) == 1

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Content-Length: 5\r\nContent-Length: 6",
        "Authorization: Bearer key-a\rX-Evil: 1\r\nContent-Length: 2",
        "Content-Length: 5\r\n X-Folded: 1",
    ],
)
def test_security_headers_auth_01_ambiguous_framing_never_reaches_the_upstream(head: str) -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            smuggled = post(CHAT, HI, {})
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n".encode())
            writer.write(b"0\r\n\r\n" + smuggled)
            async with asyncio.timeout(DEADLINE_S):
                told = await reader.read()  # to its end: the connection is closed
            assert told.startswith(b"HTTP/1.1 400")
            assert len(re.findall(rb"HTTP/1.1 \d", told)) == 1
            assert theirs.seen == []
            await close(writer)

    run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://{canary}/x",
        "http://2130706433:{port}/x",
        "http://0x7f.1:{port}/",
        "http://169.254.169.254/",
        "file:///etc/hostname",
        "ftp://{canary}/x",
    ],
)
@pytest.mark.parametrize("takes_images", [True, False])
def test_security_ssrf_01_no_url_of_a_request_is_ever_fetched(
    url: str, *, takes_images: bool
) -> None:
    async def scenario() -> None:
        async with upstream(hello) as canary, upstream(hello) as theirs:
            modalities = (Modality.IMAGE,) if takes_images else ()
            async with front([theirs], modalities=modalities) as here:
                where = canary.url.removeprefix("http://")
                target = url.format(canary=where, port=where.rpartition(":")[2])
                part = {"type": "image_url", "image_url": {"url": target}}
                messages = [{"role": "user", "content": [part]}]
                found = await here.chat(messages=messages)
                assert found.status_code == 400
                assert found.json()["error"]["code"] == "unsupported_modality"
                schema = {"$ref": target}
                tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
                assert (await here.chat(tools=tools)).status_code == 200
                assert canary.num_connections == 0
                assert len(theirs.seen) == 1

    run(scenario())
