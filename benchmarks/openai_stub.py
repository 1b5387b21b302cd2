"""A minimal OpenAI-compatible HTTP front for peers that are only Python libraries.

An engine has one method, `submit(prompt_text, max_tokens, ignore_eos, emit)`:
it returns at once, and its own thread calls `emit(text, new_tokens)` for every
new piece of text, then `emit(None, prompt_tokens)` at the end. Pieces cross
into the event loop in order.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

Emit = Callable[[str | None, int], None]


class Engine(Protocol):
    """What a peer has to offer."""

    def submit(self, prompt: str, max_tokens: int, ignore_eos: bool, emit: Emit) -> None:
        """Start one request and return at once; see the head of this file."""
        ...


def make_app(engine: Engine) -> web.Application:
    """The HTTP application around one engine."""

    async def completions(request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[str | None, int]] = asyncio.Queue()

        def emit(text: str | None, number: int) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (text, number))

        engine.submit(
            body["prompt"], int(body.get("max_tokens", 16)), bool(body.get("ignore_eos")), emit
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        output_tokens = 0
        while True:
            text, number = await pieces.get()
            if text is None:
                break
            output_tokens += number
            # A token that ends in the middle of a character still counts as a chunk.
            await response.write(event({"choices": [{"index": 0, "text": text or "\u200b"}]}))
        usage = {"prompt_tokens": number, "completion_tokens": output_tokens}
        await response.write(event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=16 * 2**20)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/health", health)
    return app


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def serve(engine: Engine, port: int) -> None:
    """Serves until SIGTERM or SIGINT, then ends at once, the engine's threads included."""
    web.run_app(make_app(engine), host="127.0.0.1", port=port, print=None, access_log=None)
    os._exit(0)
