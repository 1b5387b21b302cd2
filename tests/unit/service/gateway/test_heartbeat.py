"""Clients that promise to beat: their requests end when they fall silent."""

import asyncio

import pytest

from headway.core.base.clock import ManualClock
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, say_hello, site, until

NAME = "0123456789abcdef-ab"
STREAMED = HI | {"stream": True}
NAMED = {"X-Headway-Connection-Id": NAME}
KEYED = GatewaySettings(tenant=("a:standard:key-a", "b:standard:key-b"), heartbeat_timeout=0.05)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.spec("A8")
def test_a_silent_client_ends_its_request_at_the_engine() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(heartbeat_timeout=0.2)) as here:
            asked = asyncio.ensure_future(here.client.post(CHAT, json=HI, headers=NAMED))
            (name,) = await here.calls(1)
            await until(lambda: name in here.replica.cancelled)
            answer = await asked
            assert answer.status_code == 408
            assert answer.json()["error"]["code"] == "client_silent"
            assert await here.outcomes() == {"cancelled": 1}

    run(scenario())


@pytest.mark.spec("A8")
def test_beats_keep_a_request_for_longer_than_the_limit() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with site(settings=KEYED, clock=clock) as here:
            headers = NAMED | bearer("key-a")
            asked = asyncio.ensure_future(here.client.post(CHAT, json=HI, headers=headers))
            (name,) = await here.calls(1)
            path = f"/v1/connections/{NAME}/heartbeat"
            for _ in range(8):
                clock.advance(0.04)
                await asyncio.sleep(0.02)  # time to look at the clock
                beat = await here.client.post(path, headers=bearer("key-a"))
                assert (beat.status_code, beat.content) == (204, b"")
            other = await here.client.post(path, headers=bearer("key-b"))
            assert other.status_code == 404
            assert name not in here.replica.cancelled
            say_hello(here.replica, here.replica.requests[name])
            assert (await asked).status_code == 200
            late = await here.client.post(path, headers=bearer("key-a"))
            assert late.status_code == 404

    run(scenario())


@pytest.mark.parametrize("name", ["short", "x" * 129, "with space in the name!"])
def test_an_unfit_name_is_refused(name: str) -> None:
    async def scenario() -> None:
        async with site() as here:
            answer = await here.client.post(
                CHAT, json=HI, headers={"X-Headway-Connection-Id": name}
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "x-headway-connection-id"

    run(scenario())


def test_two_requests_may_not_share_a_name() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        async with site(replica=replica) as here:
            asked = asyncio.ensure_future(here.client.post(CHAT, json=HI, headers=NAMED))
            (name,) = await here.calls(1)
            second = await here.client.post(CHAT, json=HI, headers=NAMED)
            assert second.status_code == 400
            say_hello(replica, replica.requests[name])
            assert (await asked).status_code == 200
            replica.script = say_hello
            third = await here.client.post(CHAT, json=HI, headers=NAMED)
            assert third.status_code == 200

    run(scenario())
