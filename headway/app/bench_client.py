"""Sends a benchmark's requests over HTTP and notes when the answers stream back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from headway.app.bench_dataset import Prompt

CONNECT_TIMEOUT_S = 30.0
MAX_ERROR_CHARS = 300  # of an error's text kept in a record


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests go, and what all of them have in common."""

    url: str
    model: str
    chat: bool  # messages instead of a prompt
    headers: dict[str, str] = {}
    common: dict[str, Any] = {}  # fields of every body

    def body(self, prompt: Prompt) -> bytes:
        """The JSON of one request; streamed, with usage in the last event."""
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.common,
        }
        if self.chat:
            fields["messages"] = [{"role": "user", "content": prompt.content}]
        else:
            fields["prompt"] = prompt.content
        return msgspec.json.encode(fields)


@dataclass(slots=True)
class Record:
    """What happened to one request; times in seconds on one monotonic clock."""

    sent: float
    text_times: list[float] = field(default_factory=list)  # arrival of each piece of text
    finished: float = 0.0
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # as the server counted them
    output_tokens: int | None = None
    error: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_text(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content)))


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


def take_event(record: Record, data: bytes, now: float) -> None:
    """Note one `data:` line of a stream in the record of its request."""
    if data == b"[DONE]":
        return
    event = _decode_event(data)
    if event.error is not None:
        record.error = f"error event: {event.error}"[:MAX_ERROR_CHARS]
    for choice in event.choices:
        if choice.has_text():
            record.text_times.append(now)
        record.finish_reason = choice.finish_reason or record.finish_reason
    if event.usage is not None:
        record.prompt_tokens = event.usage.prompt_tokens
        record.output_tokens = event.usage.completion_tokens


class Client:
    """One benchmark's connections to one server."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        target: Target,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._http = http
        self._target = target
        self._clock = clock

    async def send(self, prompt: Prompt) -> Record:
        """Send one request and read its answer to the end; failures are in the record."""
        body = self._target.body(prompt)
        record = Record(sent=self._clock())
        try:
            await self._stream(body, record)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            record.error = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        record.finished = self._clock()
        if record.error is None and record.finish_reason is None:
            record.error = "the stream ended without a finish_reason"
        if record.error is None and not record.text_times:
            # All of the answer was half characters or an end token: it came with the end.
            record.text_times.append(record.finished)
        return record

    async def _stream(self, body: bytes, record: Record) -> None:
        request = self._http.build_request(
            "POST", self._target.url, content=body, headers=self._target.headers
        )
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                record.error = f"HTTP {response.status_code}: {text}"[:MAX_ERROR_CHARS]
                return
            rest = b""
            # Raw bytes, because decoding and splitting in httpx costs more than all else here;
            # the request asks for no compression.
            async for piece in response.aiter_raw():
                now = self._clock()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        take_event(record, line[5:].strip(), now)
        finally:
            await response.aclose()


def make_http(local: bool) -> httpx.AsyncClient:
    """A client without limits of its own; `local` keeps loopback out of proxies."""
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
        trust_env=not local,
    )


async def send_all(
    client: Client,
    prompts: Sequence[Prompt],
    offsets: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[], None],
) -> list[Record]:
    """Send each prompt at its offset, in seconds from now; records in the prompts' order.

    With `max_concurrency` a request that is due waits for a free place, and its times count
    from when it is sent: this is a closed loop of that many users.
    """
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(max_concurrency or max(1, len(prompts)))
    start = loop.time()

    async def one(prompt: Prompt, offset: float) -> Record:
        await asyncio.sleep(max(0.0, start + offset - loop.time()))
        async with places:
            record = await client.send(prompt)
        on_done()
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(prompt, offset))
            for prompt, offset in zip(prompts, offsets, strict=True)
        ]
    return [task.result() for task in tasks]
