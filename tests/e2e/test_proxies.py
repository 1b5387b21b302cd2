"""deploy/nginx.conf and deploy/envoy.yaml under the real ones: what passes, and what does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.e2e.proxies import Proxy, envoy, nginx
from tests.no_tls import NO_TLS
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, Site, run, site, until

PROXIES = pytest.mark.parametrize("proxy", [nginx, envoy])


@pytest.mark.spec("A6")
@PROXIES
def test_each_event_passes_at_once_and_a_client_that_leaves_ends_its_request(
    tmp_path: Path, proxy: Proxy
) -> None:
    async def scenario() -> None:
        async with site() as here:
            with proxy(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    body = {**HI, "stream": True}
                    asked = client.send(client.build_request("POST", CHAT, json=body), stream=True)
                    asking = asyncio.create_task(asked)
                    (request_id,) = await here.calls(1)
                    here.replica.start(request_id)
                    here.replica.say(request_id, "zero")  # the header leaves with it
                    answer = await asking
                    assert answer.headers["content-type"].startswith("text/event-stream")
                    lines = answer.aiter_lines()
                    for word in ("one", "two", "three"):
                        # Nothing more is written until the client has read this.
                        here.replica.say(request_id, word)
                        async with asyncio.timeout(60):
                            while word not in await anext(lines):
                                pass
                    await answer.aclose()
                    await until(lambda: here.replica.cancelled == [request_id])

    run(scenario())


@PROXIES
def test_a_request_that_fails_is_sent_once(tmp_path: Path, proxy: Proxy) -> None:
    async def scenario() -> None:
        replica = FakeReplica()

        def lost(of: FakeReplica, request: object) -> None:
            of.lose(of.ids[-1])

        replica.script = lost
        async with site(replica=replica) as here:
            with proxy(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    answer = await client.post(CHAT, json=HI)
                    assert answer.status_code == 503
                    assert len(here.replica.ids) == 1
                    assert answer.headers["retry-after"] == "3"

    run(scenario())


@PROXIES
def test_an_answer_that_breaks_off_is_not_asked_for_again(tmp_path: Path, proxy: Proxy) -> None:
    async def scenario() -> None:
        asked = []

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            writer.close()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with proxy(tmp_path, port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    answer = await client.post(CHAT, json=HI)
                    assert answer.status_code in {502, 503}
        assert sum(b"POST" in line for line in asked) == 1

    run(scenario())


@PROXIES
def test_headers_pass_both_ways_and_those_that_are_the_proxys_cannot_be_forged(
    tmp_path: Path, proxy: Proxy
) -> None:
    async def scenario() -> None:
        heads: list[bytes] = []

        async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                heads.append(head.lower())
            answer = b"HTTP/1.1 200 OK\r\nx-request-id: r1\r\nx-headway-model: m\r\n"
            writer.write(answer + b"x-ratelimit-remaining-requests: 7\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(told, "127.0.0.1", 0)
        async with server:
            with proxy(tmp_path, server.sockets[0].getsockname()[1]) as url:
                sent = {
                    "authorization": "Bearer sk-1",
                    "x-request-id": "mine",
                    "x-headway-connection-id": "c" * 16,
                    "x-forwarded-for": "10.1.2.3",
                }
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    answer = await client.post(f"{CHAT}?model=preview", json=HI, headers=sent)
                    bad = await client.post(CHAT, json=HI, headers={"x_forwarded_for": "1.2.3.4"})
        assert answer.status_code == 200
        told_back = [answer.headers[name] for name in ("x-request-id", "x-headway-model")]
        assert told_back == ["r1", "m"]
        assert answer.headers["x-ratelimit-remaining-requests"] == "7"
        head = heads[0]
        assert b"post /v1/chat/completions?model=preview " in head
        for name in ("authorization: bearer sk-1", "x-request-id: mine"):
            assert name.encode() in head
        assert b"x-headway-connection-id: cccccccccccccccc" in head
        assert b"x-forwarded-for: 127.0.0.1\r\n" in head, "the client's own word is not passed on"
        is_refused = bad.status_code == 400
        assert is_refused or b"x_forwarded_for" not in heads[1]

    run(scenario())


@PROXIES
def test_metrics_and_administration_are_not_for_everybody(tmp_path: Path, proxy: Proxy) -> None:
    async def scenario() -> None:
        async with site() as here:
            with proxy(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    assert (await client.get("/ready")).status_code == 200
                    # nginx lets in who is on the same machine, as this test is.
                    is_nginx = proxy is nginx
                    for path in ("/metrics", "/%6detrics", "//metrics"):
                        status = (await client.get(url + path)).status_code
                        assert status in ({200, 404} if is_nginx else {403}), path
                    for path in ("/admin/tenants", "/admin", "/%61dmin/x/y", "//admin/tenants"):
                        status = (await client.get(url + path)).status_code
                        assert status == (404 if is_nginx else 403), path
                    assert (await client.get(url + "/x%2f..%2fadmin")).status_code in {400, 404}

    run(scenario())


@PROXIES
def test_a_body_of_the_largest_size_passes_and_headway_itself_refuses_a_larger(
    tmp_path: Path, proxy: Proxy
) -> None:
    async def scenario() -> None:
        async with site() as here:
            with proxy(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
                    long = [{"role": "user", "content": "x" * 4_200_000}]
                    answer = await client.post(CHAT, json={**HI, "messages": long})
                    assert answer.status_code == 413
                    assert answer.json()["error"]["type"] == "invalid_request_error"

    run(scenario())


class Clients:
    """Connections through a proxy, each with a request that is under way and an id of its own."""

    def __init__(self, client: httpx.AsyncClient, sites: list[Site]) -> None:
        self._client = client
        self._sites = sites
        self._asking: list[asyncio.Task[httpx.Response]] = []

    def under_way(self) -> list[int]:
        """Requests that each gateway has been sent."""
        return [len(each.replica.ids) for each in self._sites]

    async def ask(self, count: int, *, watched: bool = True) -> list[str]:
        """Send so many more, and wait until they are with a gateway; their connections' ids."""
        wanted = sum(self.under_way()) + count
        names = [uuid4().hex for _ in range(count)]
        for name in names:
            headers = {"x-headway-connection-id": name} if watched else {}
            asked = self._client.post(CHAT, json=HI, headers=headers)
            self._asking.append(asyncio.create_task(asked))
        await until(lambda: sum(self.under_way()) == wanted)
        return names

    async def beat(self, name: str) -> int:
        """Say that this one is still there, with nothing but the path; the status."""
        return (await self._client.post(f"/v1/connections/{name}/heartbeat")).status_code

    async def close(self) -> None:
        """Leave them all."""
        for each in self._asking:
            each.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)


@asynccontextmanager
async def clients_of(url: str, sites: list[Site]) -> AsyncIterator[Clients]:
    """Those of the proxy there, in front of these gateways."""
    async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS) as client:
        found = Clients(client, sites)
        try:
            yield found
        finally:
            await found.close()


@pytest.mark.spec("A8")
@PROXIES
def test_heartbeats_reach_the_gateway_of_three_that_has_the_request(
    tmp_path: Path, proxy: Proxy
) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            sites = [await stack.enter_async_context(site()) for _ in range(3)]
            url = stack.enter_context(proxy(tmp_path, *(each.port for each in sites)))
            clients = await stack.enter_async_context(clients_of(url, sites))
            names = await clients.ask(30)
            assert min(clients.under_way()) > 0, "they are spread"
            assert [await clients.beat(name) for name in names] == 30 * [204]
            assert await clients.beat(uuid4().hex) == 404
            before = clients.under_way()
            await clients.ask(30, watched=False)
            added = [now - then for now, then in zip(clients.under_way(), before, strict=True)]
            assert min(added) >= 5, "those without an id go to all in turn"

    run(scenario())


@PROXIES
def test_heartbeats_go_where_their_requests_go_also_while_a_gateway_is_gone(
    tmp_path: Path, proxy: Proxy
) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            sites = [await stack.enter_async_context(site()) for _ in range(2)]
            dying = await stack.enter_async_context(AsyncExitStack())
            sites.append(await dying.enter_async_context(site()))
            url = stack.enter_context(proxy(tmp_path, *(each.port for each in sites)))
            clients = await stack.enter_async_context(clients_of(url, sites))
            names = await clients.ask(12)
            at_last = [
                (await sites[2].client.post(f"/v1/connections/{name}/heartbeat")).status_code
                for name in names
            ]
            await dying.aclose()
            left = [name for name, status in zip(names, at_last, strict=True) if status == 404]
            left += await clients.ask(20)
            assert [await clients.beat(name) for name in left] == len(left) * [204]

    run(scenario())
