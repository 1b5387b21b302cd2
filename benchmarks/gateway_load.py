"""The client of gateway_overhead.py: streams in an open loop, as cheap as Python makes it.

It speaks just enough HTTP/1.1 for the servers at hand, so that its own work hardly counts on a
machine that it shares with them: a connection a request, and bytes searched instead of parsed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import NamedTuple
from urllib.parse import urlsplit

CONTENT, DONE, OK = b'"content":', b"[DONE]", b"200"


class Answer(NamedTuple):
    """One request as its client saw it."""

    started: float  # seconds after the run's begin
    first_s: float  # to the first token; from before the connection
    took_s: float
    num_tokens: int
    is_whole: bool  # 200, and [DONE] at the end


class Load(NamedTuple):
    """What is asked for."""

    rate: float  # arrivals a second, Poisson
    seconds: float
    num_tokens: int
    model: str
    key: str = ""


async def run(base_url: str, load: Load, seed: int) -> list[Answer]:
    """Send it and read every answer to its end."""
    draw, began = random.Random(seed), time.perf_counter()
    due, tasks = 0.0, []
    while True:
        due += draw.expovariate(load.rate)
        if due > load.seconds:
            return list(await asyncio.gather(*tasks))
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(base_url, load, began)))


async def closed(base_url: str, load: Load, num_clients: int, num_requests: int) -> list[Answer]:
    """So many requests, by clients that ask again at once."""
    began = time.perf_counter()
    left = iter(range(num_requests))

    async def client() -> list[Answer]:
        return [await ask(base_url, load, began) for _ in left]

    found = await asyncio.gather(*(client() for _ in range(num_clients)))
    return [answer for each in found for answer in each]


async def ask(base_url: str, load: Load, began: float) -> Answer:
    """One streamed chat completion."""
    url = urlsplit(base_url)
    body = json.dumps(
        {
            "model": load.model,
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": load.num_tokens,
            "stream": True,
        }
    ).encode()
    key = f"Authorization: Bearer {load.key}\r\n" if load.key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    start = time.perf_counter()
    first_s, seen = float("nan"), bytearray()
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            writer.write(head.encode() + body)
            while data := await reader.read(65536):
                seen += data
                if first_s != first_s and CONTENT in seen:
                    first_s = time.perf_counter() - start
        finally:
            writer.close()
    except OSError:
        seen.clear()
    return Answer(
        start - began,
        first_s,
        time.perf_counter() - start,
        bytes(seen).count(CONTENT),
        seen[9:12] == OK and DONE in seen[-64:],
    )
