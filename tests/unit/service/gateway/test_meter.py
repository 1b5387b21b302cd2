"""One outcome a request, one first token a request, and tokens that agree with the usage."""

import asyncio
import re
import time
from typing import Any

import pytest

from headway.core.base.metrics import CATALOGUE, Outcome
from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import CacheMiss, Finished, FinishReason, Started, Tokens, Usage
from headway.core.tenancy.metrics import CLASS_CATALOGUE
from headway.service.gateway.settings import GatewaySettings
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
    until,
)

STREAMED = HI | {"stream": True}


async def total(here: Site, name: str) -> float:
    return sum((await here.metric(name)).values())


@pytest.mark.spec("J1")
def test_counts_add_up_over_every_kind_of_end_metrics_01() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(replica=replica) as here:
            usage = 0
            for body in (HI, HI | {"n": 2}):
                for path in (CHAT, COMPLETIONS):
                    sent = body if path == CHAT else {"prompt": "ab", "n": body.get("n", 1)}
                    whole = (await here.client.post(path, json=sent)).json()
                    usage += whole["usage"]["completion_tokens"]
            await here.client.post(CHAT, json=STREAMED)
            await here.client.post(NATIVE, json=HI)
            for _ in range(5):
                assert (await here.client.post(CHAT, json={"messages": 5})).status_code == 400
            replica.script = None
            for count, started in ((7, True), (8, False)):
                _, writer = await here.send(CHAT, STREAMED)
                name = (await here.calls(count))[-1]
                if started:
                    replica.start(name)
                    replica.say(name, "x")
                    await here.read(name)
                await close(writer)
                await until(lambda: here.admitter.num_in_flight == 0)
            await here.counted(ok=6, invalid=5, cancelled=2)
            for name in ("inference_first_token_latency_ms", "vllm:time_to_first_token_seconds"):
                assert await total(here, name + "_count") == 7
            assert await total(here, "inference_e2e_latency_ms_count") == 6
            assert await total(here, "headway_requests_in_flight") == 0
            tokens = await total(here, "vllm:generation_tokens_total")
            assert tokens == usage + 3 + 3 + 1

    run(scenario())


def test_the_first_token_time_includes_waiting_and_agrees_with_the_client_metrics_01() -> None:
    async def scenario() -> None:
        async with site() as here:
            began = time.monotonic()
            asking = asyncio.create_task(here.client.post(CHAT, json=STREAMED))
            (name,) = await here.calls(1)
            await asyncio.wait((asking,), timeout=0.3)  # it waits in the queue
            here.replica.start(name)
            here.replica.say(name, "x")
            here.replica.finish(name)
            await asking
            took = time.monotonic() - began
            measured = await total(here, "inference_first_token_latency_ms_sum")
            assert 290 <= measured <= took * 1000
            seconds = await total(here, "vllm:time_to_first_token_seconds_sum")
            assert seconds * 1000 == pytest.approx(measured)

    run(scenario())


def test_times_of_the_engine_and_gaps_between_tokens_are_kept() -> None:
    def script(replica: FakeReplica, request: Any) -> None:
        miss = CacheMiss.EVICTED
        replica.put(
            Started(request_id=request.id, at=Seconds(0.0), cached_tokens=1, miss_reason=miss)
        )

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = script
        async with site(replica=replica) as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI))
            (name,) = await here.calls(1)
            replica.say(name, "a", at=1.0)
            await here.read(name)
            two = Tokens(request_id=name, choice=0, token_ids=(1, 2), text="b", at=Seconds(2.0))
            replica.put(two)
            await here.read(name)
            replica.end_choice(name)
            usage = Usage(
                prompt_tokens=2,
                completion_tokens=4,
                cached_tokens=1,
                queue_s=1.0,
                prefill_s=2.0,
                decode_s=3.0,
            )
            replica.put(Finished(request_id=name, reason=FinishReason.LENGTH, usage=usage))
            await asking
            assert await total(here, "vllm:inter_token_latency_seconds_count") == 2
            assert await total(here, "vllm:inter_token_latency_seconds_sum") == pytest.approx(1.0)
            assert await total(here, "vllm:request_queue_time_seconds_sum") == 1.0
            assert await total(here, "vllm:request_prefill_time_seconds_sum") == 2.0
            assert await total(here, "vllm:request_decode_time_seconds_sum") == 3.0
            (missed,) = (await here.metric("headway_prefix_cache_misses_total")).items()
            assert 'reason="evicted"' in missed[0]
            assert missed[1] == 1
            assert await total(here, "vllm:generation_tokens_total") == 4
            assert await total(here, "vllm:prompt_tokens_total") == 2
            assert await total(here, "headway_cached_prompt_tokens_total") == 1
            success = await here.metric("vllm:request_success_total")
            assert [key for key in success if "length" in key]

    run(scenario())


def test_every_entry_of_the_catalogue_is_written() -> None:
    async def scenario() -> None:
        async with site() as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI | {"unheard_of": 1}))
            (name,) = await here.calls(1)
            here.replica.start(name)
            for at in (1.0, 2.0):
                here.replica.say(name, "x", at=at)
                await here.read(name)
            here.replica.finish(name, tokens=2)
            await asking
            text = (await here.client.get("/metrics")).text
            written = {line.partition("{")[0] for line in text.splitlines() if line[0] != "#"}
            for metric in (*CATALOGUE, *CLASS_CATALOGUE):
                assert written & {metric.name, metric.name + "_count"}, metric.name

    run(scenario())


@pytest.mark.spec("C1")
def test_first_tokens_and_ends_are_counted_by_class() -> None:
    async def scenario() -> None:
        settings = GatewaySettings(tenant=("gold:vip:k",), shutdown_timeout=5)
        async with site(settings=settings) as here:
            key = {"Authorization": "Bearer k"}
            for count in (1, 2):
                asking = asyncio.create_task(here.client.post(CHAT, json=HI, headers=key))
                name = (await here.calls(count))[-1]
                here.replica.start(name)
                here.replica.say(name, "x")
                here.replica.finish(name, tokens=1)
                await asking
            here.gateway.drain()
            await here.client.post(CHAT, json=HI, headers=key)
            name = "headway_class_time_to_first_token_seconds_count"
            assert [*(await here.metric(name)).values()] == [2]
            ends = await here.metric("headway_class_requests_total")
            assert all('slo_class="vip"' in labels for labels in ends)
            outcome = re.compile('outcome="([a-z_]+)"')
            counted = {outcome.findall(labels)[0]: count for labels, count in ends.items()}
            assert counted == {"ok": 2, "rejected_shutting_down": 1}

    run(scenario())


def test_refusals_are_counted_by_their_reason() -> None:
    async def scenario() -> None:
        engine = EngineSettings(max_num_seqs=1, max_waiting_requests=1)
        settings = GatewaySettings(api_key=("k",), shutdown_timeout=5)
        async with site(engine=engine, settings=settings) as here:
            key = {"Authorization": "Bearer k"}
            held = [await here.send(CHAT, HI, key) for _ in range(2)]
            await here.calls(2)
            assert (await here.client.post(CHAT, json=HI)).status_code == 401
            full = await here.client.post(CHAT, json=HI, headers=key)
            here.gateway.drain()
            stopping = await here.client.post(CHAT, json=HI, headers=key)
            assert [full.status_code, stopping.status_code] == [503, 503]
            assert int(stopping.headers["retry-after"]) <= 5
            for _, writer in held:
                await close(writer)
            await until(lambda: here.admitter.num_in_flight == 0)
            outcomes = {
                Outcome.UNAUTHORIZED.value: 1,
                Outcome.REJECTED_QUEUE_FULL.value: 1,
                Outcome.REJECTED_SHUTTING_DOWN.value: 1,
                Outcome.CANCELLED.value: 2,
            }
            await here.counted(**outcomes)

    run(scenario())
