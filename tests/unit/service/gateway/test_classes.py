"""Tenants at the gateway: whose a request is decides its class, its share and its promise."""

import asyncio
from typing import Any

import pytest

from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Usage
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, say_hello, site

TENANTS = ("acme:vip*2:sk-acme", "batch:internal:sk-batch")


async def asked(
    key: str | None, settings: GatewaySettings, **fields: Any
) -> tuple[int, EngineRequest | None]:
    replica = FakeReplica()
    replica.script = say_hello
    async with site(settings=settings, replica=replica) as here:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        answer = await here.client.post(CHAT, json=HI | fields, headers=headers)
        return answer.status_code, next(iter(replica.requests.values()), None)


def sent(key: str | None, settings: GatewaySettings, **fields: Any) -> EngineRequest:
    async def scenario() -> None:
        found.append((await asked(key, settings, **fields))[1])

    found: list[EngineRequest | None] = []
    run(scenario())
    assert found[0] is not None
    return found[0]


def test_a_tenants_requests_have_its_class_weight_and_promise() -> None:
    made = sent("sk-acme", GatewaySettings(tenant=TENANTS))
    assert (made.slo_class, made.tenant, made.tenant_weight) == (0, "acme", 2.0)
    assert made.first_token_budget_s == 0.5
    batch = sent("sk-batch", GatewaySettings(tenant=TENANTS, slo_ttft=("vip=0.2",)))
    assert (batch.slo_class, batch.first_token_budget_s) == (2, None)


def test_a_request_may_only_lower_its_own_class() -> None:
    settings = GatewaySettings(tenant=TENANTS)
    lowered = sent("sk-acme", settings, service_tier="flex", priority=4)
    assert (lowered.slo_class, lowered.tenant, lowered.priority) == (2, "acme", 4)
    assert lowered.first_token_budget_s is None
    assert sent("sk-batch", settings, service_tier="priority").slo_class == 2


def test_without_tenants_everybody_is_standard_and_promised_nothing() -> None:
    made = sent(None, GatewaySettings())
    assert (made.slo_class, made.tenant, made.first_token_budget_s) == (1, "", None)
    promised = sent(None, GatewaySettings(slo_ttft=("standard=2",)))
    assert (promised.slo_class, promised.first_token_budget_s) == (1, 2.0)


def test_tenants_share_no_blocks_whatever_salt_they_send() -> None:
    settings = GatewaySettings(tenant=(*TENANTS, "b2:internal:sk-b2"))
    salts = {
        sent(key, settings, **fields).cache_salt
        for key in ("sk-acme", "sk-batch", "sk-b2")
        for fields in ({}, {"cache_salt": "acme"}, {"cache_salt": "x"})
    }
    assert len(salts) == 9
    assert sent(None, GatewaySettings()).cache_salt == b""


@pytest.mark.parametrize("key", [None, "sk-other"])
def test_with_tenants_a_key_is_needed(key: str | None) -> None:
    async def scenario() -> None:
        assert await asked(key, GatewaySettings(tenant=TENANTS)) == (401, None)

    run(scenario())


def test_a_refusal_for_time_is_a_503_with_the_engines_time_and_its_own_outcome() -> None:
    def refuse(replica: FakeReplica, request: EngineRequest) -> None:
        replica.put(
            Finished(
                request_id=request.id,
                reason=FinishReason.ERROR,
                usage=Usage(prompt_tokens=1, completion_tokens=0),
                error="the line takes 9 s",
                error_code="deadline_unmeetable",
                retry_after_s=6.2,
            )
        )

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = refuse
        async with site(replica=replica) as here:
            for stream in (False, True):
                answer = await here.client.post(CHAT, json=HI | {"stream": stream})
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "7"
                assert answer.json()["error"]["code"] == "deadline_unmeetable"
            assert await here.outcomes() == {"rejected_deadline": 2}

    run(scenario())


def test_a_vip_is_taken_while_best_effort_fills_the_line() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        engine = EngineSettings(max_num_seqs=2, max_waiting_requests=4)
        settings = GatewaySettings(tenant=TENANTS)
        async with site(settings=settings, replica=replica, engine=engine) as here:
            limit = here.admitter.limits.max_choices
            batch = {"Authorization": "Bearer sk-batch"}
            asking = [
                asyncio.create_task(here.client.post(CHAT, json=HI, headers=batch))
                for _ in range(limit)
            ]
            await here.calls(limit)
            assert (await here.client.post(CHAT, json=HI, headers=batch)).status_code == 503
            replica.script = say_hello
            acme = {"Authorization": "Bearer sk-acme"}
            assert (await here.client.post(CHAT, json=HI, headers=acme)).status_code == 200
            for name in list(replica.ids)[:limit]:
                replica.start(name)
                replica.say(name, "x")
                replica.finish(name)
            answers = await asyncio.gather(*asking)
            assert {answer.status_code for answer in answers} == {200}

    run(scenario())
