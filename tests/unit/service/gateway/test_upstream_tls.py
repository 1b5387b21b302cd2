"""Servers behind https: who is trusted, and what the operator reads where one is not."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme

from headway.service.upstream.settings import Tls
from tests.unit.service.gateway.fakes import run
from tests.upstreams import Front, events_of, front, hello, text_of, upstream

CLIENT = "headway@example.com"


class Authority:
    """One of the test's own, with its certificate in a file."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.file = str(folder / "ca.pem")
        self.client = str(folder / "client.pem")
        self._authority.cert_pem.write_to_path(self.file)
        own = self._authority.issue_cert(CLIENT)
        own.private_key_and_cert_chain_pem.write_to_path(self.client)

    def server(self, *names: str, asks_clients: bool = False) -> ssl.SSLContext:
        """What a server of these names speaks TLS with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(context)
        if asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            self._authority.configure_trust(context)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """One that this system does not know."""
    return Authority(tmp_path)


def told(
    context: ssl.SSLContext, scenario: Callable[[Front], Coroutine[Any, Any, None]], tls: Tls
) -> None:
    """A scenario with a gateway in front of one server."""

    async def whole() -> None:
        async with (
            upstream(hello, tls=context) as theirs,
            front([theirs.url], tls=tls) as here,
        ):
            await scenario(here)

    run(whole())


async def answers(here: Front) -> None:
    """Whole and streamed, over connections that are kept."""
    for _ in range(2):
        assert (await here.chat()).json()["choices"][0]["message"]["content"] == "Hello"
        assert text_of(events_of((await here.chat(stream=True)).text)) == "Hello"
    assert list((await here.metric("headway_upstream_up")).values()) == [1.0]


async def refuses(here: Front) -> None:
    """The server counts as away, and the client learns nothing of certificates."""
    refused = await here.chat()
    assert refused.status_code == 503
    assert "certificate" not in refused.text
    assert list((await here.metric("headway_upstream_up")).values()) == [0.0]


def said(caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Which server is down, and why."""
    (down,) = (record for record in caplog.records if record.message == "upstream_down")
    assert down.levelno == logging.WARNING
    return vars(down)["replica"], vars(down)["reason"]


def test_a_server_of_an_authority_of_ones_own_is_trusted_by_its_file(authority: Authority) -> None:
    told(authority.server("127.0.0.1"), answers, Tls(ca_file=authority.file))


def test_the_authorities_of_the_system_are_those_of_ssl_cert_file(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    told(authority.server("127.0.0.1"), answers, Tls())


def test_one_that_is_not_trusted_is_named_with_what_to_do(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    told(authority.server("127.0.0.1"), refuses, Tls())
    replica, reason = said(caplog)
    assert replica.startswith("127.0.0.1:")
    assert reason.startswith("its certificate is not trusted (")
    assert "tls.ca_file, or in SSL_CERT_FILE" in reason


def test_one_with_a_certificate_of_another_name_is_told_apart(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Tls(ca_file=authority.file)
    told(authority.server("other.example"), refuses, tls)
    assert said(caplog)[1].startswith("its certificate is for another name (")


def test_one_that_speaks_no_tls_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with front([url], tls=Tls()) as here:
                await refuses(here)

    run(scenario())
    assert said(caplog)[1].startswith("it does not speak TLS: its url must begin with http://")


def test_one_that_asks_for_a_certificate_gets_it(authority: Authority) -> None:
    context = authority.server("127.0.0.1", asks_clients=True)
    tls = Tls(ca_file=authority.file, cert_file=authority.client, key_file=authority.client)
    told(context, answers, tls)


def test_without_verification_any_certificate_will_do(authority: Authority) -> None:
    told(authority.server("other.example"), answers, Tls(verify=False))


def test_a_server_whose_certificate_is_made_good_comes_back(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        wrong, right = authority.server("other.example"), authority.server("127.0.0.1")
        async with upstream(hello, tls=wrong) as theirs:
            url, port = theirs.url, int(theirs.url.rpartition(":")[2])
            tls = Tls(ca_file=authority.file)
            async with front([url], tls=tls, probe_interval=0.05) as here:
                await refuses(here)
                await theirs.stop()
                async with upstream(hello, port=port, tls=right), asyncio.timeout(60):
                    while (await here.chat()).status_code != 200:
                        await asyncio.sleep(0.05)
                await theirs.start()

    run(scenario())
    assert said(caplog)[1].startswith("its certificate is for another name (")
