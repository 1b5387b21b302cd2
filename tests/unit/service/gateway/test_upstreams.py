"""A gateway in front of servers that are not ours, over real HTTP."""

import pytest

from headway.service.upstream.settings import Modality
from tests.unit.service.gateway.fakes import (
    COMPLETIONS,
    NATIVE,
    run,
    until,
)
from tests.upstreams import (
    CHAT,
    HI,
    Pen,
    Seen,
    answer,
    chunk,
    event,
    events_of,
    front,
    hello,
    text_of,
    upstream,
    usage_chunk,
)

IN_FLIGHT = "headway_upstream_in_flight_requests"
STREAM = {"stream": True}
THREE = ("Zwei 你好 ", "🙂 ", "drei")


@pytest.mark.spec("A6")
def test_an_answer_of_another_server_is_ours_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs], model="their-model") as here:
            whole = await here.chat()
            assert whole.status_code == 200
            told = whole.json()
            assert told["choices"][0]["message"]["content"] == "Hello"
            assert told["model"] == "m"
            assert told["id"].startswith("chatcmpl-")
            assert told["id"] != "theirs-1"
            streamed = await here.chat(**STREAM, stream_options={"include_usage": True})
            assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert streamed.headers["x-accel-buffering"] == "no"
            events = events_of(streamed.text)
            assert text_of(events) == "Hello"
            assert events[-1] == "[DONE]"
            assert events[-2]["usage"]["total_tokens"] == 10
            assert {each["model"] for each in events[:-1]} == {"m"}
            assert [seen.json["model"] for seen in theirs.seen] == ["their-model"] * 2
            plain = events_of((await here.chat(**STREAM)).text)
            assert not any("usage" in each for each in plain[:-1])
            assert theirs.seen[-1].json["stream_options"] == {"include_usage": True}
            assert await here.outcomes() == {"ok": 3}

    run(scenario())


def test_the_other_endpoints_are_forwarded_too() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        if seen.path.endswith("/chat/completions"):
            return await hello(seen, pen)
        choice = {"index": 0, "text": "Hello", "finish_reason": "length"}
        await pen.answer(200, {**answer(), "object": "text_completion", "choices": [choice]})

    async def scenario() -> None:
        async with upstream(script) as theirs, front([theirs]) as here:
            found = await here.client.post(COMPLETIONS, json={"model": "m", "prompt": "Hi"})
            assert found.json()["choices"][0]["text"] == "Hello"
            assert found.json()["id"].startswith("cmpl-")
            native = await here.client.post(NATIVE, params={"model": "m"}, json=HI)
            events = events_of(native.text)
            assert [each["token"] for each in events[:-1]] == ["Hel", "lo", ""]
            assert events[-2]["finish_reason"] == "stop"
            assert events[-1] == "[DONE]"
            assert [seen.path for seen in theirs.seen] == [COMPLETIONS, CHAT]

    run(scenario())


def test_streaming_sse_03_how_the_upstream_writes_changes_nothing() -> None:
    datas = [chunk(text) for text in THREE] + [chunk(finish="stop"), usage_chunk(7, 9), "[DONE]"]
    recorded = b"".join(event(data) for data in datas)
    crlf = recorded.replace(b"\n", b"\r\n")
    ways = [
        [recorded[i : i + 1] for i in range(len(recorded))],
        [recorded[i : i + 7] for i in range(0, len(recorded), 7)],
        [crlf[i : i + 50] for i in range(0, len(crlf), 50)],
        [event(datas[0]) + event(datas[1]), b"".join(event(data) for data in datas[2:])],
    ]

    async def scenario() -> None:
        found = []
        for way in ways:

            async def script(seen: Seen, pen: Pen, pieces: list[bytes] = way) -> None:
                await pen.begin()
                for piece in pieces:
                    await pen.piece(piece)
                await pen.end()

            async with upstream(script) as theirs, front([theirs]) as here:
                body = {**STREAM, "stream_options": {"include_usage": True}}
                events = events_of((await here.chat(**body)).text)
                found.append(
                    [
                        {k: v for k, v in each.items() if k not in ("id", "created")}
                        if isinstance(each, dict)
                        else each
                        for each in events
                    ]
                )
        assert text_of(found[0]) == "".join(THREE)
        assert "\ufffd" not in text_of(found[0])
        assert found[0][-2]["usage"]["completion_tokens"] == 9
        assert found[1:] == found[:1] * 3

    run(scenario())


def test_an_image_goes_to_the_model_that_takes_it() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs], modalities=(Modality.IMAGE,)) as here:
            part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
            messages = [{"role": "user", "content": [part]}]
            assert (await here.chat(messages=messages)).status_code == 200
            assert theirs.seen[0].json["messages"] == messages

    run(scenario())


def test_tokens_and_times_of_a_forwarded_request_are_counted_like_our_own() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            await here.chat(**STREAM)
            await here.chat()
            total = {
                name: sum((await here.metric(name)).values())
                for name in (
                    "vllm:prompt_tokens_total",
                    "vllm:generation_tokens_total",
                    "inference_first_token_latency_ms_count",
                    "inference_e2e_latency_ms_count",
                    "vllm:inter_token_latency_seconds_count",
                )
            }
            assert list(total.values()) == [14, 6, 1, 2, 1]
            attempts = await here.metric("headway_upstream_attempts_total")
            assert list(attempts.values()) == [2]

    run(scenario())


def test_a_connection_is_used_again_also_behind_a_stream() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs], probe_interval=60) as here:
            before = theirs.num_connections
            for i in range(6):
                assert (await here.chat(stream=i % 2 == 0)).status_code == 200
            assert theirs.num_connections == before

    run(scenario())


def test_who_reads_late_gets_all_of_a_long_stream_in_order() -> None:
    texts = [f"{number} " + 1000 * "word " for number in range(600)]  # more than buffers hold
    sent: list[str] = []

    async def long(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        for text in texts:
            sent.append(text)
            await pen.events(chunk(text))
        await pen.events(chunk(finish="stop"), usage_chunk(), "[DONE]")
        await pen.end()

    async def scenario() -> None:
        async with (
            upstream(long) as theirs,
            front([theirs]) as here,
            here.client.stream("POST", CHAT, json={**HI, **STREAM}) as streamed,
        ):
            await until(lambda: len(sent) > 60)
            events = events_of((await streamed.aread()).decode())
            assert text_of(events) == "".join(texts)
            assert events[-1] == "[DONE]"
            assert await here.outcomes() == {"ok": 1}

    run(scenario())


def test_a_body_that_only_an_upstream_understands_is_still_checked_for_our_own_use() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            assert (await here.chat(messages=[])).status_code == 400
            assert (await here.chat(n=0.5)).status_code == 400
            assert (await here.chat(model="unknown")).status_code == 404
            found = await here.client.post(CHAT, content=b"{")
            assert found.status_code == 400
            assert theirs.seen == []

    run(scenario())
