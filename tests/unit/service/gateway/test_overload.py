"""What the gateway does with more than it can take."""

import asyncio
import json
import threading
from typing import Any

import pytest

from headway.core.engine.settings import EngineSettings
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway import fakes
from tests.unit.service.gateway.fakes import CHAT, DEADLINE_S, HI, Site, close, run, site, until

SMALL = EngineSettings(max_num_seqs=2, max_waiting_requests=8, max_waiting_tokens=400)


async def finish_all(here: Site) -> None:
    for name in here.replica.ids:
        if name not in here.replica.cancelled:
            here.replica.start(name)
            here.replica.say(name, "x")
            here.replica.finish(name)


def test_at_most_running_plus_eight_are_taken_and_the_rest_refused_overload_01() -> None:
    async def scenario() -> None:
        async with site(engine=SMALL) as here:
            asking = [asyncio.create_task(here.client.post(CHAT, json=HI)) for _ in range(50)]
            await until(lambda: sum(task.done() for task in asking) == 40)
            refused = [task.result() for task in asking if task.done()]
            for answer in refused:
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "queue_full"
            assert len(here.replica.requests) == 10
            await finish_all(here)
            answers = await asyncio.gather(*asking)
            assert sum(answer.status_code == 200 for answer in answers) == 10
            assert await here.outcomes() == {"ok": 10, "rejected_queue_full": 40}
            limits = await here.metric("headway_queue_limit_sequences")
            assert list(limits.values()) == [10]

    run(scenario())


def test_n_4_counts_as_four_and_the_token_limit_triggers_on_the_second_overload_01() -> None:
    async def scenario() -> None:
        async with site(engine=SMALL) as here:
            four = [
                asyncio.create_task(here.client.post(CHAT, json=HI | {"n": 4})) for _ in range(2)
            ]
            await here.calls(2)
            assert (await here.client.post(CHAT, json=HI | {"n": 4})).status_code == 503
            await finish_all(here)
            assert [(await task).status_code for task in four] == [200, 200]
            long = {"messages": [{"role": "user", "content": "x" * 300}], "max_tokens": 4}
            first = asyncio.create_task(here.client.post(CHAT, json=long))
            await here.calls(3)
            second = await here.client.post(CHAT, json=long)
            assert second.status_code == 503
            assert "300 prompt tokens are waiting" in second.json()["error"]["message"]
            assert here.admitter.num_in_flight == 1
            await finish_all_new(here)
            assert (await first).status_code == 200

    run(scenario())


def test_prompts_that_could_never_wait_together_are_a_400_as_waiting_would_not_help() -> None:
    async def scenario() -> None:
        async with site(engine=SMALL) as here:
            body = {"prompt": ["x" * 300] * 2, "max_tokens": 4}
            answer = await here.client.post("/v1/completions", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "prompt"
            assert not here.replica.requests
            assert here.admitter.num_in_flight == 0

    run(scenario())


async def finish_all_new(here: Site) -> None:
    name = here.replica.ids[-1]
    here.replica.say(name, "x")
    here.replica.finish(name)


def test_refused_requests_are_never_tokenized_overload_02(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    encoded: list[str] = []
    encode = fakes.JoiningTemplate.encode

    def slow(self: Any, messages: Any, tokenizer: Any, **options: Any) -> list[int]:
        encoded.append("one")
        assert gate.wait(DEADLINE_S)
        return encode(self, messages, tokenizer, **options)

    monkeypatch.setattr(fakes.JoiningTemplate, "encode", slow)

    async def scenario() -> None:
        engine = EngineSettings(max_num_seqs=2, max_waiting_requests=4)
        async with site(engine=engine) as here:
            asking = [asyncio.create_task(here.client.post(CHAT, json=HI)) for _ in range(40)]
            await until(lambda: sum(task.done() for task in asking) == 34)
            assert not here.replica.requests
            gate.set()
            await here.calls(6)
            await finish_all(here)
            answers = await asyncio.gather(*asking)
            assert sum(answer.status_code == 200 for answer in answers) == 6
            assert len(encoded) == 6

    try:
        run(scenario())
    finally:
        gate.set()


def test_a_client_that_leaves_while_its_prompt_is_encoded_never_reaches_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, begun = threading.Event(), threading.Event()

    def slow(self: Any, messages: Any, tokenizer: Any, **options: Any) -> list[int]:
        begun.set()
        assert gate.wait(DEADLINE_S)
        return [5]

    monkeypatch.setattr(fakes.JoiningTemplate, "encode", slow)

    async def scenario() -> None:
        async with site() as here:
            _, writer = await here.send(CHAT, HI)
            await until(begun.is_set)
            await close(writer)
            await until(lambda: here.admitter.num_in_flight == 0)
            gate.set()
            await here.counted(cancelled=1)
            assert not here.replica.requests

    try:
        run(scenario())
    finally:
        gate.set()


def test_connections_over_the_limit_are_told_so_and_places_come_free_again() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_connections=3)) as here:
            held = [await here.connect() for _ in range(3)]
            reader, writer = await here.connect()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            body = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert body["error"]["code"] == "too_many_connections"
            for _, other in [*held, (reader, writer)]:
                await close(other)
            async with asyncio.timeout(DEADLINE_S):
                while (await here.client.get("/health")).status_code != 200:
                    await asyncio.sleep(0.01)

    run(scenario())
