"""A model server that computes nothing: it streams tokens at a fixed pace, for load tests.

    .venv/bin/uvicorn --app-dir benchmarks --port 9100 fake_upstream:app

POST /v1/chat/completions (streamed or whole) with `max_tokens` tokens, the first after
FAKE_FIRST_MS, each next one FAKE_TOKEN_MS later; GET /health and /v1/models. Every stream has a
phase of its own, as its request came at a moment of its own. No token is like the one before it:
LiteLLM's proxy ends an answer whose chunks repeat themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FIRST_S = float(os.environ.get("FAKE_FIRST_MS", "50")) / 1000
TOKEN_S = float(os.environ.get("FAKE_TOKEN_MS", "50")) / 1000
MODEL = os.environ.get("FAKE_MODEL", "fake")
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        return await _lifespan(receive, send)
    if scope["path"] != "/v1/chat/completions":
        body = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        return await _whole(send, body if scope["path"] == "/v1/models" else {"status": "ok"})
    asked = json.loads(await _read(receive))
    num_tokens = int(asked.get("max_tokens") or 16)
    usage = {
        "prompt_tokens": 8,
        "completion_tokens": num_tokens,
        "total_tokens": 8 + num_tokens,
    }
    if not asked.get("stream"):
        await asyncio.sleep(FIRST_S + TOKEN_S * (num_tokens - 1))
        message = {"role": "assistant", "content": "word " * num_tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return await _whole(send, _head("chat.completion") | {"choices": [choice], "usage": usage})
    has_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    await _stream(send, num_tokens, usage if has_usage else None)


async def _stream(send: Send, num_tokens: int, usage: dict[str, int] | None) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": SSE})
    loop = asyncio.get_running_loop()
    due = loop.time() + FIRST_S
    for number in range(num_tokens):
        await asyncio.sleep(max(0.0, due - loop.time()))
        due += TOKEN_S
        last = number == num_tokens - 1
        delta = {"content": f"word{number} "} | ({"role": "assistant"} if number == 0 else {})
        choice = {"index": 0, "delta": delta, "finish_reason": "length" if last else None}
        await _event(send, _head("chat.completion.chunk") | {"choices": [choice]})
    if usage is not None:
        await _event(send, _head("chat.completion.chunk") | {"choices": [], "usage": usage})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _event(send: Send, content: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(content).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-fake", "object": kind, "created": 1, "model": MODEL}


async def _whole(send: Send, body: dict[str, Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": JSON})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def _read(receive: Receive) -> bytes:
    parts = bytearray()
    while True:
        message = await receive()
        parts += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
