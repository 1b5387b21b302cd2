"""Sends a workload over HTTP as its classes' tenants, and keeps one record a request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import msgspec

from headway.app import bench_client
from headway.core.sim.report import Outcome, Record
from headway.core.sim.workload import Planned, Workload

DRAIN_S = 120.0  # after the last arrival; what has not ended then is lost


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """How requests reach a server; `keys` are bearer tokens by group."""

    base_url: str
    model: str
    keys: Mapping[str, str] = {}

    def body(self, planned: Planned) -> bytes:
        """The JSON of a request: token ids, so that lengths are exact for every model."""
        return msgspec.json.encode(
            {
                "model": self.model,
                "prompt": planned.prompt,
                "max_tokens": planned.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def headers(self, planned: Planned) -> dict[str, str]:
        """Whose request it is."""
        key = self.keys.get(planned.group)
        return {} if key is None else {"Authorization": f"Bearer {key}"}


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class Sender:
    """Sends requests and reads their answers to the end."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        wire: Wire,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._http = http
        self._wire = wire
        self._clock = clock

    async def send(self, planned: Planned, due: float, records: list[Record]) -> None:
        """Send one request, due at that time of the clock; its record is there from the start."""
        record = Record(planned.id, planned.group, due, planned.tenant, len(planned.prompt))
        records.append(record)
        try:
            await self._exchange(planned, record)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            record.reason = type(error).__name__  # nobody answered: it is lost
        record.finished = self._clock()

    async def _exchange(self, planned: Planned, record: Record) -> None:
        request = self._http.build_request(
            "POST",
            self._wire.base_url + "/v1/completions",
            content=self._wire.body(planned),
            headers=self._wire.headers(planned),
        )
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code == httpx.codes.OK:
                await self._read_stream(response, record)
            else:
                note_refusal(record, response.status_code, response.headers, await response.aread())
        finally:
            await response.aclose()

    async def _read_stream(self, response: httpx.Response, record: Record) -> None:
        seen = bench_client.Record(sent=record.arrived)
        async for line in _lines(response):
            bench_client.take_event(seen, line, self._clock())
        record.token_times = seen.text_times
        if seen.error is not None:
            record.outcome, record.reason = Outcome.REFUSED, "error_event"
        elif seen.finish_reason is not None:
            record.outcome = Outcome.ANSWERED
            record.token_times = seen.text_times or [self._clock()]
            record.output_tokens = seen.output_tokens
        else:
            record.reason = "the stream ended without a finish_reason"


async def send_workload(
    sender: Sender,
    workload: Workload,
    clock: Callable[[], float],
    on_end: Callable[[], object],
) -> list[Record]:
    """Send everything and wait for the ends, DRAIN_S at most after the last arrival."""
    start = clock()
    records: list[Record] = []

    async def one(planned: Planned, due: float) -> None:
        await asyncio.sleep(max(0.0, due - clock()))
        await sender.send(planned, due, records)
        on_end()

    queue = iter(workload.queue)

    async def client() -> None:
        for planned in queue:
            await one(planned, clock())

    tasks = [asyncio.create_task(one(p, start + when)) for when, p in workload.arrivals]
    tasks += [asyncio.create_task(client()) for _ in range(workload.num_clients)]
    last = workload.arrivals[-1][0] if workload.arrivals else 0.0
    timeout = None if workload.queue else last + DRAIN_S
    _, pending = await asyncio.wait(tasks, timeout=timeout)
    for task in pending:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return records


def note_refusal(record: Record, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """A status that is not 200: the server's code, and when it asks to come back."""
    record.outcome = Outcome.REFUSED
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        error = _Error()
    record.reason = f"{status} {error.code or error.type or 'unknown'}"
    retry = headers.get("retry-after")
    if retry is not None:
        try:
            record.retry_after_s = float(retry)
        except ValueError:
            record.reason += ", Retry-After is no number"


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in response.aiter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def counters(text: str, word: str) -> dict[str, float]:
    """Counters of a /metrics page whose name has `word` in it."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if word in name and not line.startswith("#") and not name.endswith("_created"):
            found[name] = float(value)
    return found


def model_of(listed: Any) -> str:
    """The first model of /v1/models."""
    return str(listed["data"][0]["id"])
