"""A stand-in with SGLang's own forms, from its source: no SGLang runs here without a GPU."""

import asyncio
import json
from typing import Any

import pytest

from headway.core.tenancy.tenant import SloClass
from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Kind
from tests.unit.service.gateway.fakes import run, until
from tests.upstreams import CHAT, HI, FakeUpstream, Pen, Seen, chunk, front, upstream

TOLD = "headway_upstream_told_running_requests"


def sglang_chunk(content: str | None = None, finish: str | None = None) -> dict[str, Any]:
    """As SGLang streams: fields that it has none of are null, a matched stop is told."""
    made = chunk(content, finish)
    made["choices"][0]["matched_stop"] = None if finish is None else 2
    made["choices"][0]["delta"] |= {"reasoning_content": None, "tool_calls": None}
    return {**made, "usage": None}


async def sglang(seen: Seen, pen: Pen) -> None:
    """A script: an answer, or whatever else SGLang has at that path."""
    if seen.path == "/abort_request":
        return await pen.answer(200, b"", "content-type: text/plain")
    if seen.json.get("temperature") == -1:
        problem = {"object": "error", "message": "temperature must be non-negative, got -1.0."}
        return await pen.answer(
            400, {**problem, "type": "BadRequestError", "param": None, "code": 400}
        )
    await pen.begin()
    first = sglang_chunk("")
    first["choices"][0]["delta"]["role"] = "assistant"
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    last = {**sglang_chunk(), "choices": []}
    last["usage"] = {**usage, "prompt_tokens_details": None}
    await pen.events(first, sglang_chunk("Hel"), sglang_chunk("lo"), sglang_chunk(finish="stop"))
    await pen.events(last, "[DONE]")
    await pen.end()


@pytest.mark.spec("A6")
def test_its_stream_and_its_errors_are_read() -> None:
    async def scenario() -> None:
        async with upstream(sglang) as theirs, front([theirs], kind=Kind.SGLANG) as here:
            found = await here.chat(stream=True, stream_options={"include_usage": True})
            lines = [line[6:] for line in found.text.splitlines() if line.startswith("data: ")]
            assert lines[-1] == "[DONE]"
            usage = json.loads(lines[-2])["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 2)
            assert "is_estimated" not in usage
            wrong = await here.chat(temperature=-1)
            assert wrong.status_code == 400
            assert "must be non-negative" in wrong.json()["error"]["message"]

    run(scenario())


@pytest.mark.parametrize("has_metrics", [False, True])
def test_its_load_is_read_from_its_metrics_or_without_them_from_its_loads(
    has_metrics: bool,
) -> None:
    async def scenario() -> None:
        async with upstream(sglang) as theirs:
            rank = {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.5}
            theirs.loads = [rank, {**rank, "dp_rank": 1}]
            if has_metrics:
                theirs.metrics = (
                    'sglang:num_running_reqs{priority=""} 6.0\n'
                    'sglang:num_running_reqs{priority="2"} 6.0\n'
                )
            async with front([theirs], kind=Kind.SGLANG) as here:
                while sum((await here.metric(TOLD)).values()) != 6.0:
                    await asyncio.sleep(0.005)
            assert any(each.path == "/v1/loads?include=core" for each in theirs.probes) is not (
                has_metrics
            )

    run(scenario())


def test_a_client_that_leaves_is_told_by_the_id_that_the_request_had() -> None:
    async def endless(seen: Seen, pen: Pen) -> None:
        if seen.path == "/abort_request":
            return await pen.answer(200, b"", "content-type: text/plain")
        await pen.begin()
        await pen.events(sglang_chunk("a"))
        await pen.gone()

    def aborted(by: FakeUpstream) -> list[Seen]:
        return [each for each in by.seen if each.path == "/abort_request"]

    async def scenario() -> None:
        async with upstream(endless) as theirs, front([theirs], kind=Kind.SGLANG) as here:
            body = {**HI, "stream": True, "rid": "mine"}
            async with here.client.stream("POST", CHAT, json=body) as answer:
                async for _ in answer.aiter_lines():
                    break
            await until(lambda: bool(aborted(theirs)))
            (told,) = aborted(theirs)
            assert told.json == {"rid": theirs.seen[0].json["rid"]}
            assert told.json["rid"] != "mine"

    run(scenario())


def test_its_largest_priority_is_that_of_the_most_important_class() -> None:
    async def scenario() -> None:
        gateway = GatewaySettings(tenant=("v:vip:key-v", "i:internal:key-i"))
        made: dict[str, Any] = {"kind": Kind.SGLANG, "priority": True, "gateway": gateway}
        async with upstream(sglang) as theirs, front([theirs], **made) as here:
            for key in "vi":
                headers = {"authorization": f"Bearer key-{key}"}
                body = {**HI, "stream": True}
                assert (await here.client.post(CHAT, json=body, headers=headers)).is_success
            first, second = (each.json["priority"] for each in theirs.seen)
            assert first - second == SloClass.INTERNAL - SloClass.VIP

    run(scenario())
