"""Answers over real HTTP: whole and streamed, and errors in OpenAI's shape."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from headway.service.gateway.settings import GatewaySettings
from headway.service.openai.limits import ApiLimits
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    HI,
    NATIVE,
    CharTokenizer,
    FakeReplica,
    Site,
    close,
    run,
    say_hello,
    site,
    until,
)


def talking() -> FakeReplica:
    replica = FakeReplica()
    replica.script = say_hello
    return replica


def data_lines(text: str) -> list[Any]:
    """Payloads of a stream's events, comments left out; [DONE] as a string."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.spec("A6")
def test_a_chat_is_answered_whole_and_streamed_alike() -> None:
    async def scenario() -> None:
        async with site(replica=talking()) as here:
            whole = await here.client.post(CHAT, json=HI)
            assert whole.status_code == 200
            assert whole.json()["choices"][0]["message"]["content"] == "Hello"
            assert whole.json()["usage"]["completion_tokens"] == 3
            streamed = await here.client.post(
                CHAT, json=HI | {"stream": True, "stream_options": {"include_usage": True}}
            )
            assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert streamed.headers["cache-control"] == "no-cache"
            assert streamed.headers["x-accel-buffering"] == "no"
            events = data_lines(streamed.text)
            assert events[-1] == "[DONE]"
            assert events[-2]["usage"] == whole.json()["usage"]
            pieces = [c["delta"].get("content", "") for e in events[:-1] for c in e["choices"]]
            assert "".join(pieces) == "Hello"

    run(scenario())


@pytest.mark.spec("A6")
def test_the_native_endpoint_sends_the_briefs_events() -> None:
    async def scenario() -> None:
        async with site() as here:
            asking = asyncio.create_task(here.client.post(NATIVE + "?model=m", json=HI))
            (name,) = await here.calls(1)
            here.replica.say(name, "Hel")
            await here.read(name)
            here.replica.say(name, "lo")
            here.replica.finish(name)
            events = data_lines((await asking).text)
            assert events == [
                {"token": "Hel", "index": 0, "finish_reason": None},
                {"token": "lo", "index": 1, "finish_reason": "stop"},
                "[DONE]",
            ]
            wrong = await here.client.post(NATIVE + "?model=other", json=HI)
            assert wrong.status_code == 404

    run(scenario())


def test_several_prompts_become_several_engine_requests_and_one_answer() -> None:
    async def scenario() -> None:
        async with site(replica=talking()) as here:
            body = {"prompt": ["ab", "cde", "xy"], "n": 2, "max_tokens": 4}
            whole = await here.client.post(COMPLETIONS, json=body)
            choices = whole.json()["choices"]
            assert [c["index"] for c in choices] == [0, 1, 2, 3, 4, 5]
            assert {c["text"] for c in choices} == {"Hello"}
            assert whole.json()["usage"]["prompt_tokens"] == 7
            streamed = await here.client.post(COMPLETIONS, json=body | {"stream": True})
            texts = [""] * 6
            for event in data_lines(streamed.text)[:-1]:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
            assert texts == ["Hello"] * 6
            assert here.admitter.num_in_flight == 0

    run(scenario())


def test_an_answer_of_too_many_log_probabilities_is_refused_before_it_is_made() -> None:
    async def scenario() -> None:
        async with site(replica=talking(), limits=ApiLimits(max_answer_entries=1000)) as here:
            body = {"prompt": ["a" * 400, "b" * 400], "max_tokens": 9, "echo": True}
            answer = await here.client.post(COMPLETIONS, json=body | {"logprobs": 20})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "logprobs"
            assert str(2 * 409 * 21) in answer.json()["error"]["message"]
            assert (here.replica.ids, here.admitter.num_in_flight) == ([], 0)
            assert (await here.client.post(COMPLETIONS, json=body)).status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (COMPLETIONS, {"prompt": ["Hi", "x" * 5000]}, "prompt[1]"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    path: str, body: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = CharTokenizer.encode

    def noting(self: CharTokenizer, text: str, **options: bool) -> list[int]:
        encoded.append(len(text))
        return encode(self, text, **options)

    async def scenario() -> None:
        async with site(replica=talking()) as here:
            answer = await here.client.post(path, json=body)
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert (error["code"], error["param"]) == ("context_length_exceeded", name)
            assert "is 512 tokens" in error["message"]
            assert "at least 5000" in error["message"]
            assert here.admitter.num_in_flight == 0
        assert 5000 not in encoded

    monkeypatch.setattr(CharTokenizer, "encode", noting)
    run(scenario())


INVALID: list[tuple[dict[str, Any], int]] = [
    (HI | {"max_tokens": 4000}, 400),
    (HI | {"temperature": -1}, 400),
    (HI | {"model": "unknown"}, 404),
    ({"messages": "no list"}, 400),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, 400),
]


@pytest.mark.parametrize(("body", "status"), INVALID)
def test_an_invalid_body_gets_the_same_error_with_and_without_stream_streaming_sse_01(
    body: dict[str, Any], status: int
) -> None:
    async def scenario() -> None:
        async with site(replica=talking()) as here:
            answers = [
                await here.client.post(CHAT, json=body | {"stream": stream})
                for stream in (True, False)
            ]
            for answer in answers:
                assert answer.status_code == status
                assert answer.headers["content-type"] == "application/json"
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answers[0].content == answers[1].content
            assert not here.replica.requests

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_error_before_the_first_token_is_a_plain_http_error(stream: bool) -> None:
    def give_up(replica: FakeReplica, request: Any) -> None:
        replica.start(request.id)
        replica.fail(request.id, "the queue is full", "queue_full")

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = give_up
        async with site(replica=replica) as here:
            answer = await here.client.post(CHAT, json=HI | {"stream": stream})
            assert answer.status_code == 503
            assert answer.headers["retry-after"].isdigit()
            assert answer.json()["error"]["code"] == "queue_full"

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_lost_engine_is_a_503_with_retry_after_while_nothing_was_sent(stream: bool) -> None:
    async def scenario() -> None:
        async with site() as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": stream}))
            (name,) = await here.calls(1)
            here.replica.start(name)
            here.replica.lose(name)
            answer = await asking
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "3"
            assert answer.json()["error"]["code"] == "engine_lost"

    run(scenario())


def test_a_lost_engine_ends_an_open_stream_with_one_error_event_and_no_done() -> None:
    async def scenario() -> None:
        async with site() as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": True}))
            (name,) = await here.calls(1)
            here.replica.say(name, "Hel")
            await here.read(name)
            here.replica.lose(name)
            answer = await asking
            assert answer.status_code == 200
            events = data_lines(answer.text)
            assert events[-1]["error"]["code"] == "engine_lost"
            assert sum("error" in event for event in events) == 1
            assert "[DONE]" not in events
            assert await here.outcomes() == {"error": 1}

    run(scenario())


def test_unknown_paths_and_methods_are_refused_in_openais_shape() -> None:
    async def scenario() -> None:
        async with site() as here:
            missing = await here.client.get("/v1/nothing")
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "not_found"
            for method, path, allowed in [
                ("GET", CHAT, "POST"),
                ("DELETE", CHAT, "POST"),
                ("POST", "/v1/models", "GET"),
                ("PUT", "/health", "GET"),
            ]:
                answer = await here.client.request(method, path)
                assert answer.status_code == 405
                assert answer.headers["allow"] == allowed
                assert answer.json()["error"]["code"] == "method_not_allowed"

    run(scenario())


def test_the_request_id_is_echoed_cleaned_or_made_and_on_every_answer() -> None:
    async def scenario() -> None:
        async with site(replica=talking()) as here:
            for path in ("/health", "/nothing", "/v1/models"):
                assert (await here.client.get(path)).headers["x-request-id"]
            echoed = await here.client.post(CHAT, json=HI, headers={"X-Request-Id": "abc-1"})
            assert echoed.headers["x-request-id"] == "abc-1"
            cleaned = await here.client.post(
                CHAT, json={}, headers={"X-Request-Id": "a b\"<>'" + "x" * 500}
            )
            assert cleaned.status_code == 400
            assert cleaned.headers["x-request-id"].startswith("abx")
            assert len(cleaned.headers["x-request-id"]) == 128

    run(scenario())


def test_two_live_requests_with_one_client_id_keep_their_own_answers_concurrency_01() -> None:
    async def scenario() -> None:
        async with site() as here:
            dup = {"X-Request-Id": "dup"}
            first = asyncio.create_task(here.client.post(CHAT, json=HI, headers=dup))
            await here.calls(1)
            second = asyncio.create_task(here.client.post(CHAT, json=HI, headers=dup))
            one, two = await here.calls(2)
            assert one != two
            for name, text in ((two, "second"), (one, "first")):
                here.replica.say(name, text)
                here.replica.finish(name)
            for task, text in ((first, "first"), (second, "second")):
                answer = await task
                assert answer.json()["choices"][0]["message"]["content"] == text
                assert answer.headers["x-request-id"] == "dup"

    run(scenario())


def test_cancelling_one_of_two_equal_client_ids_leaves_the_other_concurrency_01() -> None:
    async def scenario() -> None:
        async with site() as here:
            dup = {"X-Request-Id": "dup"}
            _, writer = await here.send(CHAT, HI, dup)
            (gone,) = await here.calls(1)
            stays = asyncio.create_task(here.client.post(CHAT, json=HI, headers=dup))
            _, kept = await here.calls(2)
            await close(writer)
            await until(lambda: here.replica.cancelled == [gone])
            here.replica.say(kept, "fine")
            here.replica.finish(kept)
            assert (await stays).json()["choices"][0]["message"]["content"] == "fine"

    run(scenario())


async def refused(here: Site, status: int, **request: Any) -> httpx.Response:
    answer = await here.client.post(CHAT, **request)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    return answer


def test_three_bodies_of_27_mb_are_refused_while_health_answers_gateway_health_02() -> None:
    async def scenario() -> None:
        big = json.dumps({"messages": [{"role": "user", "content": "x" * 27_000_000}]}).encode()
        async with site(replica=talking()) as here:
            asking = [asyncio.create_task(refused(here, 413, content=big)) for _ in range(3)]
            asked = 0
            while not all(task.done() for task in asking):
                assert (await here.client.get("/health")).status_code == 200
                asked += 1
            await asyncio.gather(*asking)
            assert asked > 0
            assert not here.replica.requests
            assert (await here.client.post(CHAT, json=HI)).status_code == 200

    run(scenario())


def test_a_body_in_chunks_is_counted_too() -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * 1000

    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_body_bytes=20_000)) as here:
            await refused(here, 413, content=chunks())

    run(scenario())


def test_a_body_within_the_servers_limit_is_read_whatever_its_size() -> None:
    async def scenario() -> None:
        settings = GatewaySettings(max_body_bytes=9_000_000)
        async with site(settings=settings, replica=talking()) as here:
            body = HI | {"padding": "x" * 8_000_000}
            assert (await here.client.post(CHAT, json=body)).status_code == 200

    run(scenario())


def test_security_headers_auth_02_a_compressed_body_is_refused_unread() -> None:
    async def scenario() -> None:
        async with site() as here:
            await refused(here, 415, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    run(scenario())


def test_a_slow_body_is_a_408() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(body_timeout=0.05)) as here:
            reader, writer = await here.connect()
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n{{".encode())
            assert b" 408 " in await reader.readline()
            await close(writer)
            assert await here.outcomes() == {"invalid": 1}

    run(scenario())


def test_a_large_but_allowed_body_is_parsed_off_the_loop_with_the_same_answer() -> None:
    async def scenario() -> None:
        async with site(replica=talking()) as here:
            body = HI | {"user": None, "padding": "x" * 100_000}
            assert (await here.client.post(CHAT, json=body)).status_code == 200
            assert sum((await here.metric("headway_unknown_request_fields_total")).values()) == 1
            wrong = await here.client.post(CHAT, json=body | {"top_p": 7})
            assert wrong.json()["error"]["param"] == "top_p"

    run(scenario())


def test_nothing_is_sent_to_an_engine_that_is_not_ready() -> None:
    async def scenario() -> None:
        replica = talking()
        replica.state, replica.reason = ReplicaState.STARTING, "loading weights 40 %"
        replica.hello = None
        async with site(replica=replica) as here:
            answer = await refused(here, 503, json=HI)
            assert answer.headers["retry-after"] == "7"
            assert "loading weights 40 %" in answer.json()["error"]["message"]
            assert await here.outcomes() == {"rejected_not_ready": 1}

    run(scenario())


def test_an_error_of_our_own_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    def break_(replica: FakeReplica, request: Any) -> None:
        raise RuntimeError("PROMPT-7Q")

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = break_
        async with site(replica=replica) as here:
            for stream in (True, False):
                answer = await refused(here, 500, json=HI | {"stream": stream})
                assert "PROMPT-7Q" not in answer.text
            assert await here.outcomes() == {"error": 2}
            assert here.admitter.num_in_flight == 0

    run(scenario())


def test_limits_of_one_request_come_from_the_settings() -> None:
    async def scenario() -> None:
        async with site(replica=talking(), limits=ApiLimits(max_choices=2)) as here:
            assert (await here.client.post(CHAT, json=HI | {"n": 2})).status_code == 200
            await refused(here, 400, json=HI | {"n": 3})

    run(scenario())
