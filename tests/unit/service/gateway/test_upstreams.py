"""A gateway in front of servers that are not ours, over real HTTP."""

import asyncio
import json
import re
from typing import Any

import pytest

from headway.core.route.breaker import BreakerSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Kind, Modality, Timeouts
from tests.unit.service.gateway.fakes import (
    COMPLETIONS,
    NATIVE,
    close,
    post,
    run,
    until,
)
from tests.upstreams import (
    CHAT,
    HI,
    FakeUpstream,
    Front,
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


async def settled(here: Front) -> None:
    """Wait until nothing is in flight by any count."""
    async with asyncio.timeout(5):
        while await here.in_flight():
            await asyncio.sleep(0.01)


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


@pytest.mark.parametrize("end", ["reset", "close", "silence"])
def test_streaming_sse_02_an_answer_that_breaks_off_ends_with_one_error_event(end: str) -> None:
    hold = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.events(*(chunk(text) for text in THREE))
        if end == "silence":
            await hold.wait()
        elif end == "reset":
            await asyncio.sleep(0.1)  # what was written has to leave before the reset
            pen.reset()
        else:
            await pen.end()
            pen.close()

    async def scenario() -> None:
        times = Timeouts(between_chunks=0.3)
        async with upstream(script) as one, upstream(script) as two:
            async with front([one, two], timeouts=times) as here:
                found = await here.chat(**STREAM)
                events = events_of(found.text)
                assert found.status_code == 200
                assert text_of(events) == "".join(THREE)
                assert len(events) == 4
                assert events[-1]["error"]["type"] == "server_error"
                finishes = [each["choices"][0]["finish_reason"] for each in events[:-1]]
                assert finishes == [None, None, None]
                await settled(here)
                assert await here.outcomes() == {"error": 1}
                assert len(one.seen) + len(two.seen) == 1
                assert here.parts.models.default.admitter.num_in_flight == 0
                hold.set()

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


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("variant", ["silent", "unhealthy"])
def test_keepalive_timeouts_02_a_request_that_one_server_never_answers_goes_on_at_another(
    variant: str, *, is_streamed: bool
) -> None:
    """The probes find a server that hangs as a whole; a stream's first token is waited for less."""

    async def silent(seen: Seen, pen: Pen) -> None:
        await pen.gone()

    async def scenario() -> None:
        times = Timeouts(first_token=0.4, total=5.0, probe=0.2)
        async with upstream(silent) as one, upstream(hello) as two:
            async with front([one, two], timeouts=times, probe_interval=0.1, max_skew=0) as here:
                asked = [asyncio.create_task(here.chat(stream=is_streamed)) for _ in range(20)]
                await until(lambda: bool(one.seen))
                if variant == "unhealthy" or not is_streamed:
                    one.health = 500
                async with asyncio.timeout(6):
                    answers = await asyncio.gather(*asked)
                assert {each.status_code for each in answers} == {200}
                await settled(here)
                assert await here.outcomes() == {"ok": 20}
                assert sum((await here.metric("headway_upstream_retries_total")).values()) > 0

    run(scenario())


def test_keepalive_timeouts_02_without_another_server_it_ends_with_a_504_in_time() -> None:
    async def silent(seen: Seen, pen: Pen) -> None:
        await pen.gone()

    async def scenario() -> None:
        async with upstream(silent) as theirs:
            async with front([theirs], timeouts=Timeouts(total=0.3)) as here:
                for streamed in (True, False):
                    found = await here.chat(stream=streamed)
                    assert found.status_code == 504
                    assert found.json()["error"]["code"] == "upstream_timeout"
                await settled(here)

    run(scenario())


def test_gateway_health_03_counts_of_running_requests_come_down_whatever_happens() -> None:
    """A tenth of each kind of end, over two servers; counts are never negative."""

    async def script(seen: Seen, pen: Pen) -> None:
        kind = seen.json["kind"]
        if kind == "busy":
            await pen.answer(429, {"error": {"message": "full"}}, "retry-after: 1")
        elif kind == "reset":
            pen.reset()
        elif kind == "silent":
            await pen.gone()
        elif kind == "half":
            await pen.begin()
            await pen.events(chunk("Hel"))
            await pen.gone()
        elif kind == "wrong":
            await pen.answer(400, {"error": {"message": "no"}})
        else:
            await hello(seen, pen)

    async def leave(here: Front, kind: str, number: int, of: tuple[FakeUpstream, ...]) -> None:
        body = {**HI, "kind": kind, "stream": True, "number": number}
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(post(CHAT, body, {}))
        if kind == "half":
            await reader.readuntil(b"Hel")
        else:
            await until(
                lambda: any(
                    (each.json.get("number"), each.json["kind"]) == (number, kind)
                    for fake in of
                    for each in fake.seen
                )
            )
        await close(writer)

    async def scenario() -> None:
        times = Timeouts(first_token=0.5, total=0.5)
        breaker = BreakerSettings(failures=10_000, window=10_000)
        async with upstream(script) as one, upstream(script) as two:
            async with front([one, two], timeouts=times, breaker=breaker) as here:
                kinds = ["busy", "reset", "wrong", "silent", *["well"] * 4]
                work = [
                    here.chat(kind=kind, stream=i % 2 == 0) for i in range(20) for kind in kinds
                ]
                kinds = ["silent", "half"]
                gone = [leave(here, k, i, (one, two)) for k in kinds for i in range(20)]
                lowest = [0.0]

                async def watch() -> None:
                    while True:
                        lowest.append(min((await here.metric(IN_FLIGHT)).values()))
                        await asyncio.sleep(0.02)

                watching = asyncio.create_task(watch())
                await asyncio.gather(*work, *gone)
                await settled(here)
                watching.cancel()
                assert min(lowest) == 0.0
                outcomes = await here.outcomes()
                assert sum(outcomes.values()) == len(work) + len(gone)
                assert outcomes["ok"] == 80
                assert outcomes["cancelled"] >= 30

    run(scenario())


@pytest.mark.spec("A8")
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_client_that_leaves_ends_its_request_upstream_at_once(*, has_begun: bool) -> None:
    gone = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        if seen.path == "/abort_request":
            return await pen.answer(200, {})
        if has_begun:
            await pen.begin()
            await pen.events(chunk("Hel"))
        await pen.gone()
        gone.set()

    async def scenario() -> None:
        async with upstream(script) as theirs, front([theirs], kind=Kind.SGLANG) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(post(CHAT, {**HI, **STREAM}, {}))
            await until(lambda: bool(theirs.seen))
            if has_begun:
                await reader.readuntil(b"Hel")
            await close(writer)
            async with asyncio.timeout(2):
                await gone.wait()
            await until(lambda: len(theirs.seen) == 2)
            assert theirs.seen[1].json == {"rid": theirs.seen[0].json["rid"]}
            await settled(here)
            assert await here.outcomes() == {"cancelled": 1}

    run(scenario())


@pytest.mark.parametrize(
    ("status", "headers", "wanted", "code"),
    [
        (401, (), 502, "upstream_misconfigured"),
        (404, (), 502, "upstream_misconfigured"),
        (302, ("location: http://127.0.0.1:1/",), 502, "upstream_misconfigured"),
        (429, ("retry-after: 9",), 503, "upstream_busy"),
        (503, ("retry-after: 9",), 503, "upstream_busy"),
        (400, (), 400, None),
        (500, (), 502, "upstream_error"),
    ],
)
def test_a_refusal_is_told_as_ours_or_as_the_clients(
    status: int, headers: tuple[str, ...], wanted: int, code: str | None
) -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(status, {"error": {"message": "no, their-model"}}, *headers)

    async def scenario() -> None:
        async with upstream(script) as theirs, front([theirs], model="their-model") as here:
            for streamed in (True, False):
                found = await here.chat(stream=streamed)
                assert found.status_code == wanted
                assert found.json()["error"]["code"] == code
                assert "their-model" not in found.text
                if code == "upstream_busy":
                    assert found.headers["retry-after"] == "9"
            await settled(here)

    run(scenario())


def test_a_redirect_is_never_followed() -> None:
    urls: list[str] = []

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(307, {}, f"location: {urls[0]}/v1/chat/completions")

    async def scenario() -> None:
        async with upstream(hello) as canary, upstream(script) as theirs:
            urls.append(canary.url)
            async with front([theirs]) as here:
                assert (await here.chat()).status_code == 502
                assert canary.num_connections == 0

    run(scenario())


def test_what_one_server_refuses_to_take_another_may() -> None:
    async def busy(seen: Seen, pen: Pen) -> None:
        await pen.answer(503, {}, "retry-after: 3")

    async def scenario() -> None:
        async with upstream(busy) as one, upstream(hello) as two, front([one, two]) as here:
            for _ in range(6):
                assert (await here.chat()).status_code == 200
            assert len(one.seen) > 0
            assert len(two.seen) == 6

    run(scenario())


def test_a_server_that_is_not_there_is_left_out_and_taken_back() -> None:
    async def scenario() -> None:
        async with upstream(hello) as one:
            two_port = int(one.url.rpartition(":")[2])
            async with upstream(hello) as two:
                two_port = int(two.url.rpartition(":")[2])
            async with front([one, f"http://127.0.0.1:{two_port}"], probe_interval=0.05) as here:
                for _ in range(5):
                    assert (await here.chat()).status_code == 200
                assert sorted((await here.metric("headway_upstream_up")).values()) == [0.0, 1.0]
                async with upstream(hello, two_port) as back:
                    async with asyncio.timeout(5):
                        while not back.seen:
                            assert (await here.chat()).status_code == 200
                assert (await here.client.get("/ready")).status_code == 200

    run(scenario())


def test_readiness_and_the_list_of_models_follow_the_upstream() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs:
            theirs.models = [{"id": "their-model", "max_model_len": 4096}]
            async with front([theirs], model="their-model", probe_interval=0.05) as here:
                assert (await here.client.get("/ready")).status_code == 200
                await until(lambda: here.pool.context_length() is not None)
                (model,) = (await here.client.get("/v1/models")).json()["data"]
                assert (model["id"], model["max_model_len"]) == ("m", 4096)
                assert "their-model" not in json.dumps(model)
                theirs.health = 500
                await until(lambda: here.pool.view().state.value != "ready")
                assert (await here.client.get("/ready")).status_code == 503
                assert (await here.client.get("/health")).status_code == 200
                refused = await here.chat()
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                assert await here.outcomes() == {"rejected_not_ready": 1}

    run(scenario())


def test_security_headers_auth_01_nothing_of_who_asks_goes_to_the_upstream() -> None:
    async def scenario() -> None:
        gateway = GatewaySettings(tenant=("a:standard:key-a", "b:vip:key-b"))
        async with upstream(hello) as theirs:
            made = front([theirs], gateway=gateway, key="ours", headers={"x-team": "t"})
            async with made as here:
                sent = {
                    "authorization": "Bearer key-a",
                    "x-tenant-id": "b",
                    "x-customer-id": "b",
                    "x-forwarded-user": "b",
                    "openai-organization": "b",
                    "api-key": "zzz",
                    "x_internal_auth": "1",
                    "cookie": "a=b",
                    "connection": "x-internal-auth",
                    "x-internal-auth": "1",
                }
                body = {
                    **HI,
                    "user": "b",
                    "priority": -5,
                    "api_base": "http://127.0.0.1:1",
                    "base_url": "http://127.0.0.1:1",
                    "model_list": [],
                    "extra_headers": {"authorization": "Bearer b"},
                    "extra_body": {"model": "b"},
                }
                found = await here.client.post(CHAT, json=body, headers=sent)
                assert found.status_code == 200
                (seen,) = theirs.seen
                names = {name.lower() for name, _ in seen.headers}
                assert names == {
                    *("host", "content-type", "accept", "accept-encoding", "user-agent"),
                    *("authorization", "x-team", "x-request-id", "connection", "content-length"),
                }
                assert seen.header("authorization") == ["Bearer ours"]
                assert seen.header("connection") == ["keep-alive"]
                assert set(seen.json) == {"model", "messages", "user"}
                classes = await here.metric("headway_class_requests_total")
                assert any("standard" in labels for labels in classes)
                assert not any("vip" in labels for labels in classes)
                double = await here.client.post(
                    CHAT,
                    json=HI,
                    headers=[("authorization", "Bearer key-a"), ("authorization", "Bearer key-b")],
                )
                assert double.status_code == 401
                assert len(theirs.seen) == 1

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Content-Length: 5\r\nContent-Length: 6",
        "Authorization: Bearer key-a\rX-Evil: 1\r\nContent-Length: 2",
        "Content-Length: 5\r\n X-Folded: 1",
    ],
)
def test_security_headers_auth_01_ambiguous_framing_never_reaches_the_upstream(head: str) -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            smuggled = post(CHAT, HI, {})
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n".encode())
            writer.write(b"0\r\n\r\n" + smuggled)
            async with asyncio.timeout(10):
                told = await reader.read()  # to its end: the connection is closed
            assert told.startswith(b"HTTP/1.1 400")
            assert len(re.findall(rb"HTTP/1.1 \d", told)) == 1
            assert theirs.seen == []
            await close(writer)

    run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://{canary}/x",
        "http://2130706433:{port}/x",
        "http://0x7f.1:{port}/",
        "http://169.254.169.254/",
        "file:///etc/hostname",
        "ftp://{canary}/x",
    ],
)
@pytest.mark.parametrize("takes_images", [True, False])
def test_security_ssrf_01_no_url_of_a_request_is_ever_fetched(
    url: str, *, takes_images: bool
) -> None:
    async def scenario() -> None:
        async with upstream(hello) as canary, upstream(hello) as theirs:
            modalities = (Modality.IMAGE,) if takes_images else ()
            async with front([theirs], modalities=modalities) as here:
                where = canary.url.removeprefix("http://")
                target = url.format(canary=where, port=where.rpartition(":")[2])
                part = {"type": "image_url", "image_url": {"url": target}}
                messages = [{"role": "user", "content": [part]}]
                found = await here.chat(messages=messages)
                assert found.status_code == 400
                assert found.json()["error"]["code"] == "unsupported_modality"
                schema = {"$ref": target}
                tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
                assert (await here.chat(tools=tools)).status_code == 200
                assert canary.num_connections == 0
                assert len(theirs.seen) == 1

    run(scenario())


def test_an_image_goes_to_the_model_that_takes_it() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs:
            async with front([theirs], modalities=(Modality.IMAGE,)) as here:
                part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
                messages = [{"role": "user", "content": [part]}]
                assert (await here.chat(messages=messages)).status_code == 200
                assert theirs.seen[0].json["messages"] == messages

    run(scenario())


def test_requests_wait_for_room_and_too_many_are_refused() -> None:
    release = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await release.wait()
        await hello(seen, pen)

    async def scenario() -> None:
        async with upstream(script) as theirs:
            async with front([theirs], max_concurrent=2, max_waiting=3) as here:
                asked = [asyncio.create_task(here.chat()) for _ in range(5)]
                waiting = "headway_upstream_waiting_requests"
                async with asyncio.timeout(5):
                    while sum((await here.metric(waiting)).values()) < 3:
                        await asyncio.sleep(0.01)
                assert len(theirs.seen) == 2
                refused = await here.chat()
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "queue_full"
                release.set()
                assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
                await settled(here)
                assert await here.outcomes() == {"ok": 5, "rejected_queue_full": 1}

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
