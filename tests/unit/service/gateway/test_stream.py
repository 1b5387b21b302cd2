"""When a stream begins, how it is kept alive, and how it ends."""

import asyncio
import json

import openai
import pytest

from headway.core.base.units import Seconds
from headway.core.messages.path import Tokens
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    DEADLINE_S,
    HI,
    FakeReplica,
    close,
    run,
    say_hello,
    site,
)

STREAMED = HI | {"stream": True}


async def read_until(reader: asyncio.StreamReader, mark: bytes) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        return await reader.readuntil(mark)


def test_the_header_waits_for_the_first_event_and_leaves_with_it() -> None:
    async def scenario() -> None:
        async with site() as here:
            reader, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            here.replica.start(name)
            await here.read(name)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read(1)
            here.replica.say(name, "Hel")
            head = await read_until(reader, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert b"Hel" in await read_until(reader, b"Hel")
            await close(writer)

    run(scenario())


def test_each_token_leaves_as_its_own_event_as_soon_as_it_is_known() -> None:
    def begin(replica: FakeReplica, request: object) -> None:
        replica.say(replica.ids[-1], "zero")

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = begin
        async with (
            site(replica=replica) as here,
            here.client.stream("POST", CHAT, json=STREAMED) as answer,
        ):
            lines = answer.aiter_lines()
            (name,) = replica.ids
            for word in ("one", "two", "three"):
                replica.say(name, word)
                async for line in lines:
                    if word in line:
                        break
            replica.finish(name)
            rest = [line async for line in lines]
            assert "data: [DONE]" in rest

    run(scenario())


def test_a_silent_stream_gets_comments_before_and_between_tokens_keepalive_timeouts_01() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(keepalive_interval=0.02)) as here:
            reader, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            head = await read_until(reader, b"\r\n\r\n")  # with the first comment
            assert b"text/event-stream" in head
            for _ in range(3):
                assert b": keepalive\n\n" in await read_until(reader, b": keepalive\n\n")
            here.replica.say(name, "Hel")
            await read_until(reader, b"Hel")
            between = await read_until(reader, b": keepalive\n\n")
            for event in between.split(b"\n\n"):
                assert event.count(b"keepalive") == 0 or event.endswith(b": keepalive")
            here.replica.finish(name)
            assert b"[DONE]" in await read_until(reader, b"[DONE]\n\n")
            await close(writer)

    run(scenario())


def test_a_whole_answer_carries_no_comment_keepalive_timeouts_01() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(keepalive_interval=0.01)) as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI))
            (name,) = await here.calls(1)
            await asyncio.wait((asking,), timeout=0.1)
            here.replica.say(name, "Hello")
            here.replica.finish(name)
            answer = await asking
            assert b"keepalive" not in answer.content
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"

    run(scenario())


def test_interval_zero_sends_no_comments_keepalive_timeouts_01() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(keepalive_interval=0)) as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=STREAMED))
            (name,) = await here.calls(1)
            await asyncio.wait((asking,), timeout=0.1)
            here.replica.say(name, "Hello")
            here.replica.finish(name)
            assert b"keepalive" not in (await asking).content

    run(scenario())


def test_openais_client_ignores_the_comments_keepalive_timeouts_01() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(keepalive_interval=0.01)) as here:
            client = openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{here.port}/v1", api_key="none", max_retries=0
            )
            async with client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
                )
                (name,) = await here.calls(1)
                here.replica.say(name, "Hel")
                got = ""
                async for chunk in stream:
                    got += chunk.choices[0].delta.content or ""
                    if got == "Hel":
                        await asyncio.sleep(0.05)  # a decode gap of some intervals
                        here.replica.say(name, "lo")
                        here.replica.finish(name)
                assert got == "Hello"

    run(scenario())


def test_an_error_after_a_comment_is_one_event_and_no_done() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(keepalive_interval=0.02)) as here:
            reader, writer = await here.send(CHAT, STREAMED)
            (name,) = await here.calls(1)
            await read_until(reader, b": keepalive\n\n")
            here.replica.fail(name, "no memory", "overloaded")
            rest = await read_until(reader, b"\r\n0\r\n\r\n")
            assert rest.count(b'data: {"error"') == 1
            assert b"[DONE]" not in rest
            assert b"no memory" in rest
            await close(writer)

    run(scenario())


def test_a_reader_that_fell_behind_gets_merged_tokens_and_misses_nothing() -> None:
    async def scenario() -> None:
        async with site() as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=STREAMED))
            (name,) = await here.calls(1)
            for _ in range(100):
                here.replica.say(name, "ab")
            here.replica.finish(name, tokens=100)
            text = (await asking).text
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
            chunks = [json.loads(line) for line in lines if line != "[DONE]"]
            pieces = [c["choices"][0]["delta"].get("content", "") for c in chunks]
            assert "".join(pieces) == "ab" * 100

    run(scenario())


def test_one_failing_prompt_ends_the_whole_answer_and_cancels_the_others() -> None:
    async def scenario() -> None:
        async with site() as here:
            body = {"prompt": ["ab", "cd", "ef"], "stream": True}
            asking = asyncio.create_task(here.client.post(COMPLETIONS, json=body))
            one, two, three = await here.calls(3)
            here.replica.say(one, "x")
            await here.read(one)
            here.replica.lose(two)
            text = (await asking).text
            assert text.count('"error"') == 1
            assert "[DONE]" not in text
            assert set(here.replica.cancelled) >= {one, three}
            assert here.admitter.num_in_flight == 0

    run(scenario())


def test_prompts_of_one_request_are_merged_as_they_come() -> None:
    async def scenario() -> None:
        async with site() as here:
            body = {"prompt": ["ab", "cd"], "stream": True}
            asking = asyncio.create_task(here.client.post(COMPLETIONS, json=body))
            one, two = await here.calls(2)
            for name, text in ((two, "B"), (one, "A"), (two, "b"), (one, "a")):
                here.replica.say(name, text)
                await here.read(name)
            for name in (one, two):
                here.replica.finish(name)
            lines = (await asking).text.splitlines()
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            got = [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks]
            assert [item for item in got if item[1]] == [(1, "B"), (0, "A"), (1, "b"), (0, "a")]
            assert lines[-2] == "data: [DONE]"

    run(scenario())


def test_a_stream_is_counted_before_its_last_bytes_can_be_read() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(replica=replica) as here:
            for count in range(1, 6):
                await here.client.post(CHAT, json=STREAMED)
                assert here.admitter.num_in_flight == 0
                assert await here.outcomes() == {"ok": count}

    run(scenario())


def test_tokens_without_text_send_nothing_until_there_is_some() -> None:
    async def scenario() -> None:
        async with site() as here:
            reader, writer = await here.send(COMPLETIONS, {"prompt": "ab", "stream": True})
            (name,) = await here.calls(1)
            half = Tokens(
                request_id=name, choice=0, token_ids=(9,), text="", at=Seconds(0.0)
            )  # half a character: nothing may leave
            here.replica.put(half)
            await here.read(name)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read(1)
            here.replica.say(name, "é")
            here.replica.finish(name, tokens=2)
            assert "é".encode() in await read_until(reader, b"[DONE]\n\n")
            await close(writer)

    run(scenario())


def test_http_1_0_clients_get_a_stream_that_ends_with_the_connection() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(replica=replica) as here:
            reader, writer = await here.connect()
            body = json.dumps(STREAMED).encode()
            writer.write(
                f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            answer = await reader.read()
            assert b"[DONE]" in answer
            await close(writer)

    run(scenario())
