"""What classes are promised at models behind other servers: order, deadlines, priorities."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from headway.core.route.table import RoutesSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Kind
from tests.unit.service.gateway.fakes import run, until
from tests.unit.service.gateway.test_routing import told
from tests.upstreams import CHAT, HI, Front, Pen, Seen, answer, front, upstream

GATEWAY = GatewaySettings(
    tenant=("v:vip:key-v", "s:standard:key-s", "i:internal:key-i", "t:standard*1:key-t"),
    slo_ttft=("vip=0.4", "standard=0.5"),
)
UNHURRIED = GatewaySettings(tenant=GATEWAY.tenant, slo_ttft=("vip=20", "standard=30"))


class Held:
    """A server that answers its requests one by one, when it is told to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._going: list[asyncio.Event] = []

    async def __call__(self, seen: Seen, pen: Pen) -> None:
        self.names.append(seen.json["messages"][0]["content"])
        event = asyncio.Event()
        self._going.append(event)
        await event.wait()
        await pen.answer(200, answer())

    async def go(self) -> None:
        """End the one that it has."""
        await until(lambda: bool(self._going))
        self._going.pop(0).set()


def ask(here: Front, key: str, text: str, **fields: Any) -> "asyncio.Task[httpx.Response]":
    body = {**HI, "messages": [{"role": "user", "content": text}], **fields}
    headers = {"authorization": f"Bearer key-{key}"}
    return asyncio.create_task(here.client.post(CHAT, json=body, headers=headers))


async def waiting(here: Front, count: int) -> None:
    await until(lambda: len(here.pool.line) == count)


@pytest.mark.spec("C3")
def test_requests_wait_here_in_the_order_of_their_classes_and_share_by_tenant() -> None:
    async def scenario() -> None:
        held = Held()
        made: dict[str, Any] = {"gateway": UNHURRIED, "max_concurrent": 1}
        async with upstream(held) as theirs, front([theirs], **made) as here:
            asked = [ask(here, "s", "running")]
            await until(lambda: held.names == ["running"])
            for number, (key, text) in enumerate(
                [("i", "internal"), ("s", "s1"), ("s", "s2"), ("t", "t1"), ("v", "vip")], 1
            ):
                asked.append(ask(here, key, text))
                await waiting(here, number)
            for _ in asked:
                await held.go()
            answers = await asyncio.gather(*asked)
            assert [each.status_code for each in answers] == [200] * 6
            # "s" had its turn already: the other tenant of its class goes before it.
            assert held.names == ["running", "vip", "t1", "s1", "s2", "internal"]

    run(scenario())


@pytest.mark.spec("C3")
@pytest.mark.parametrize("stream", [False, True])
def test_who_cannot_have_a_place_in_time_is_refused_before_its_target_has_passed(
    stream: bool,
) -> None:
    async def scenario() -> None:
        held = Held()
        made: dict[str, Any] = {"gateway": GATEWAY, "max_concurrent": 1}
        async with upstream(held) as theirs, front([theirs], **made) as here:
            first, best_effort = ask(here, "i", "running"), None
            await until(lambda: held.names == ["running"])
            best_effort = ask(here, "i", "waits")
            loop = asyncio.get_running_loop()
            began = loop.time()
            refused = await ask(here, "v", "vip", stream=stream)
            assert loop.time() - began < 2.0
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "deadline_unmeetable"
            assert int(refused.headers["retry-after"]) >= 1
            assert not best_effort.done()  # it is promised nothing, and waits on
            for each in (first, best_effort):
                await held.go()
                assert (await each).status_code == 200
            assert held.names == ["running", "waits"]
            outcomes = await here.outcomes()
            assert outcomes == {"rejected_deadline": 1, "ok": 2}

    run(scenario())


def test_a_refusal_for_time_may_be_made_good_by_the_fixed_answer() -> None:
    async def scenario() -> None:
        held = Held()
        degrade = {"answer": "Later.", "answer_after_s": 30.0, "classes": ["standard"]}
        table = msgspec.convert({"degrade": degrade}, RoutesSettings)
        made: dict[str, Any] = {"gateway": GATEWAY, "max_concurrent": 1, "routes": table}
        async with upstream(held) as theirs, front([theirs], **made) as here:
            first = ask(here, "i", "running")
            await until(lambda: held.names == ["running"])
            found = await ask(here, "s", "mine")
            assert found.json()["choices"][0]["message"]["content"] == "Later."
            assert told(found)["degraded"] == "answer"
            await held.go()
            assert (await first).status_code == 200

    run(scenario())


@pytest.mark.parametrize(("kind", "sent"), [(Kind.VLLM, [0, 1, 2]), (Kind.SGLANG, [2, 1, 0])])
def test_a_server_that_schedules_by_priority_is_told_the_class(kind: Kind, sent: list[int]) -> None:
    async def at_once(seen: Seen, pen: Pen) -> None:
        await pen.answer(200, answer())

    async def scenario() -> None:
        made: dict[str, Any] = {"gateway": UNHURRIED, "kind": kind}
        async with upstream(at_once) as theirs, front([theirs], priority=True, **made) as here:
            for key in "vsi":
                assert (await ask(here, key, "x", priority=-9)).status_code == 200
            assert [each.json["priority"] for each in theirs.seen] == sent
            flex = await ask(here, "v", "x", service_tier="flex")
            assert flex.status_code == 200
            assert theirs.seen[-1].json["priority"] == sent[2]
        async with upstream(at_once) as theirs, front([theirs], **made) as here:
            await ask(here, "v", "x", priority=-9)
            assert "priority" not in theirs.seen[0].json

    run(scenario())
