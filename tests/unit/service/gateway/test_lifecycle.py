"""The listening socket, signals, and the drain as the gateway does it."""

import asyncio
import socket

import pytest

from headway.core.base.errors import InvalidSetting
from headway.service.gateway.lifecycle import StopSignals, bind, url_of
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import CHAT, HI, run, site


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidSetting, match=f"^--port: {port} is in use on 127.0.0.1; stop"):
            bind(GatewaySettings(port=port))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^--host: .*{host}"):
        bind(GatewaySettings(host=host, port=0))


def test_nobody_can_connect_before_there_is_a_server() -> None:
    with bind(GatewaySettings(port=0)) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname()[:2], timeout=5)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")]
)
def test_the_url_is_one_that_works_from_this_machine(host: str, shown: str) -> None:
    if host == "::" and not socket.has_ipv6:
        host, shown = "0.0.0.0", "127.0.0.1"
    with bind(GatewaySettings(host=host, port=0)) as listener:
        assert url_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"


def test_the_first_signal_asks_and_the_second_insists() -> None:
    async def scenario() -> None:
        signals = StopSignals()
        signals.take()
        assert signals.asked.is_set()
        assert not signals.insisted.is_set()
        signals.take()
        assert signals.insisted.is_set()

    run(scenario())


def test_a_draining_gateway_is_not_ready_refuses_and_finishes_what_it_has() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(shutdown_timeout=20)) as here:
            running = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": True}))
            queued = asyncio.create_task(here.client.post(CHAT, json=HI))
            names = await here.calls(2)
            here.gateway.drain()
            ready = await here.client.get("/ready")
            assert (ready.status_code, ready.json()["state"]) == (503, "draining")
            assert (await here.client.get("/health")).status_code == 200
            refused = await here.client.post(CHAT, json=HI)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert 1 <= int(refused.headers["retry-after"]) <= 20
            for name in names:
                here.replica.say(name, "Hello")
                here.replica.finish(name)
            assert (await running).text.endswith("data: [DONE]\n\n")
            assert (await queued).status_code == 200
            await here.gateway.landed()

    run(scenario())


def test_what_does_not_finish_in_time_ends_with_an_error_never_a_bare_close() -> None:
    async def scenario() -> None:
        async with site() as here:
            begun = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": True}))
            (first,) = await here.calls(1)
            here.replica.say(first, "Hel")
            await here.read(first)
            silent = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": True}))
            whole = asyncio.create_task(here.client.post(CHAT, json=HI))
            names = await here.calls(3)
            here.gateway.drain()
            here.gateway.abort()
            await here.gateway.landed()
            text = (await begun).text
            assert text.count('"error"') == 1
            assert '"shutting_down"' in text
            assert "[DONE]" not in text
            for task in (silent, whole):
                assert (await task).status_code == 503
                assert (await task).headers["retry-after"] == "1"
            assert sorted(here.replica.cancelled) == sorted(names)
            assert await here.outcomes() == {"error": 3}

    run(scenario())
