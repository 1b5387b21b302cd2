#!/usr/bin/env python3
"""Load client for OpenAI-compatible LLM servers.

It sends five fixed workloads to a running server, over streaming HTTP, and
prints what a user of that server would see: throughput, time to first token
(TTFT), gaps between streamed chunks (ITL), whole-request latency and errors.

    w1  single stream      1 client, prompt 128, output 128, 5 requests
    w2  batch              16 concurrent, prompt 256, output 128, 48 requests
    w3  shared prefix      16 concurrent, 1,000 shared + 64 own prompt tokens,
                           output 64, 64 requests (the prefix starts uncached)
    w4  interference       8 streams of 256 tokens, and a 4,000-token prompt every 3 s
    w5  overload           Poisson arrivals at twice the capacity for 60 s, a
                           share of 'vip' (--vip-share), the rest 'free'; requests
                           shaped as in w2

Prompts are built from a fixed word list, so they depend only on the seed, the
repetition and the tokenizer; each has the exact length asked for. Every
repetition uses new prompts. Against a server that is still running from an
earlier call, change --seed, or its prefix cache answers from memory.

w5 needs the capacity in requests per second: --capacity, or else the figure
that w2 measured in the same call.

Needs: aiohttp, tokenizers.

    python load.py --base-url http://127.0.0.1:8000 --model smol \
        --tokenizer models/hf-bf16/tokenizer.json --workloads w1,w2,w3 \
        --repetitions 2 --server-pid 1234 --json out.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

WORD_LIST = (
    "the of and to in that was for with his had not but from they which have were "
    "their would there been when who more will no out said what up its about into "
    "than them can only other new some could time these two may then do first any "
    "my now such like our over man me even most made after also did many before "
    "must through years where much your way well down should because each just "
    "those people how too little state good very make world still own see men work "
    "long get here between both life being under never day same another know while "
    "last might us great old year off come since against go came right used take "
    "three house water place small large river city paper letter music garden "
    "window table morning evening winter summer horse ship stone road bridge field"
)
WORDS = WORD_LIST.split()


class PromptFactory:
    """Makes prompts of an exact token length, the same for the same seed."""

    def __init__(self, tokenizer_file: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._seed = seed
        self._words = [word for word in WORDS if self.count(" " + word) == 1]
        if len(self._words) < 20:
            raise SystemExit("this tokenizer splits nearly every word of the list")

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def exact(self, length: int, label: str, prefix: str = "") -> str:
        """A prompt of `length` tokens; with a prefix, `length` tokens after it."""
        rng = random.Random(f"{self._seed}/{label}")
        target = length + (self.count(prefix) if prefix else 0)
        lead = prefix + " " if prefix else ""
        words = [rng.choice(self._words) for _ in range(length)]
        for _ in range(200):
            text = lead + " ".join(words)
            missing = target - self.count(text)
            if missing == 0:
                return text
            if missing > 0:
                words += [rng.choice(self._words) for _ in range(missing)]
            else:
                del words[missing:]
                # A word that takes several tokens at the very start can make the
                # length jump over the target for ever: change that word then.
                words[0] = rng.choice(self._words)
        raise RuntimeError(f"no prompt of exactly {length} tokens found")


@dataclass
class Request:
    """What is sent: a prompt, and whose figures the answer counts among."""

    prompt: str
    max_tokens: int
    group: str = "all"
    tenant: str | None = None


@dataclass
class Record:
    """What happened to one request. Times are seconds on the monotonic clock."""

    group: str
    tenant: str | None
    due: float
    chunk_times: list[float] = field(default_factory=list)
    finished: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.chunk_times)

    @property
    def ttft(self) -> float:
        return self.chunk_times[0] - self.due

    @property
    def latency(self) -> float:
        assert self.finished is not None
        return self.finished - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text."""
        times = self.chunk_times
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds a token after the first; None for answers of one."""
        if self.output_tokens < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)


class Client:
    """Sends requests to one server and records how the answers stream back."""

    def __init__(self, session: aiohttp.ClientSession, options: argparse.Namespace) -> None:
        self._session = session
        self._options = options
        self._extra_body = json.loads(options.extra_body)
        self._tenant_keys = dict(pair.split("=", 1) for pair in options.tenant_key)

    async def send(self, request: Request, due: float | None = None) -> Record:
        """Send one request and read its answer; failures are in the record."""
        record = Record(request.group, request.tenant, time.monotonic() if due is None else due)
        try:
            await self._stream(request, record)
        except asyncio.CancelledError:
            record.error = "unfinished at the end of the run"
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            record.error = f"{type(error).__name__}: {error}"[:300]
        record.finished = time.monotonic()
        if record.error is None and not record.chunk_times:
            record.error = "no token received"
        return record

    def _url_and_body(self, request: Request) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._options.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra_body,
        }
        if self._options.min_tokens:
            body["min_tokens"] = request.max_tokens
        if self._options.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": request.prompt}]
            return self._options.base_url + "/v1/chat/completions", body
        body["prompt"] = request.prompt
        return self._options.base_url + "/v1/completions", body

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {}
        key = self._tenant_keys.get(request.tenant or "", self._options.api_key)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if request.tenant and self._options.tenant_header:
            headers[self._options.tenant_header] = request.tenant
        return headers

    async def _stream(self, request: Request, record: Record) -> None:
        url, body = self._url_and_body(request)
        async with self._session.post(url, json=body, headers=self._headers(request)) as response:
            if response.status != 200:
                text = (await response.text())[:200]
                record.error = f"HTTP {response.status}: {text}"
                return
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                self._take_chunk(json.loads(data), record)
        if record.output_tokens == 0:  # a server that reports no usage
            record.output_tokens = len(record.chunk_times)

    @staticmethod
    def _take_chunk(chunk: dict[str, Any], record: Record) -> None:
        if "error" in chunk:
            record.error = str(chunk["error"])[:300]
        for choice in chunk.get("choices") or []:
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                record.chunk_times.append(time.monotonic())
        usage = chunk.get("usage")
        if usage:
            record.prompt_tokens = usage.get("prompt_tokens") or 0
            record.output_tokens = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            record.cached_tokens = details.get("cached_tokens") or 0


async def closed_loop(
    client: Client, requests: Iterable[Request], concurrency: int
) -> list[Record]:
    """Keeps `concurrency` requests in flight until all have been answered."""
    queue = iter(list(requests))
    records: list[Record] = []

    async def worker() -> None:
        for request in queue:
            records.append(await client.send(request))

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return records


async def open_loop(
    client: Client, arrivals: Iterable[tuple[float, Request]], drain_seconds: float
) -> list[Record]:
    """Sends each request at its own time, whether or not the server keeps up."""
    start = time.monotonic()
    tasks = []
    for offset, request in arrivals:
        await asyncio.sleep(max(0.0, start + offset - time.monotonic()))
        tasks.append(asyncio.create_task(client.send(request, due=start + offset)))
    if not tasks:
        return []
    _, pending = await asyncio.wait(tasks, timeout=drain_seconds)
    for task in pending:
        task.cancel()
    return list(await asyncio.gather(*tasks))


@dataclass
class Run:
    """What a workload gets: the client, the prompts and the settings."""

    client: Client
    prompts: PromptFactory
    repetition: int
    capacity: float | None
    options: argparse.Namespace

    def prompt(self, length: int, label: str, prefix: str = "") -> str:
        """A prompt of this repetition; see PromptFactory.exact."""
        return self.prompts.exact(length, f"{self.repetition}/{label}", prefix)


async def w1_single_stream(run: Run) -> list[Record]:
    """One client: single-stream decoding."""
    requests = [Request(run.prompt(128, f"w1/{i}"), 128) for i in range(5)]
    return await closed_loop(run.client, requests, concurrency=1)


async def w2_batch(run: Run) -> list[Record]:
    """Sixteen clients: batching."""
    requests = [Request(run.prompt(256, f"w2/{i}"), 128) for i in range(48)]
    return await closed_loop(run.client, requests, concurrency=16)


async def w3_shared_prefix(run: Run) -> list[Record]:
    """Sixteen clients with one long prefix: the prefix cache."""
    shared = run.prompt(1000, "w3/shared")
    requests = [Request(run.prompt(64, f"w3/{i}", prefix=shared), 64) for i in range(64)]
    return await closed_loop(run.client, requests, concurrency=16)


async def w4_interference(run: Run) -> list[Record]:
    """Eight decoding streams, and a long prompt every 3 s until they are done."""
    streams = [Request(run.prompt(64, f"w4/stream/{i}"), 256, "stream") for i in range(8)]
    numbers = range(run.options.long_prompts)
    long_prompts = [Request(run.prompt(4000, f"w4/long/{i}"), 16, "long") for i in numbers]
    long_tasks: list[asyncio.Task[Record]] = []

    async def send_long_prompts() -> None:
        await asyncio.sleep(1.0)
        for request in long_prompts:
            long_tasks.append(asyncio.create_task(run.client.send(request)))
            await asyncio.sleep(3.0)

    arrivals = asyncio.create_task(send_long_prompts())
    records = await closed_loop(run.client, streams, concurrency=8)
    arrivals.cancel()
    if long_tasks:
        _, pending = await asyncio.wait(long_tasks, timeout=run.options.drain_seconds)
        for task in pending:
            task.cancel()
        records += await asyncio.gather(*long_tasks)
    return records


async def w5_overload(run: Run) -> list[Record]:
    """Twice as much as the server can do, from two tenants."""
    if run.capacity is None:
        raise SystemExit("w5 needs --capacity, or w2 in the same call before it")
    rng = random.Random(f"{run.options.seed}/{run.repetition}/w5")
    arrivals: list[tuple[float, Request]] = []
    at = rng.expovariate(2 * run.capacity)
    while at < run.options.overload_seconds:
        number = len(arrivals)
        tenant = (
            "vip" if random.Random(f"tenant/{number}").random() < run.options.vip_share else "free"
        )
        request = Request(run.prompt(256, f"w5/{number}"), 128, tenant, tenant)
        arrivals.append((at, request))
        at += rng.expovariate(2 * run.capacity)
    return await open_loop(run.client, arrivals, run.options.drain_seconds)


WORKLOADS: dict[str, Callable[[Run], Awaitable[list[Record]]]] = {
    "w1": w1_single_stream,
    "w2": w2_batch,
    "w3": w3_shared_prefix,
    "w4": w4_interference,
    "w5": w5_overload,
}


class ProcessWatch:
    """Samples the server's memory, and how much CPU others took meanwhile."""

    def __init__(self, server_pid: int | None) -> None:
        self._pid = server_pid
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.peak_rss_bytes = 0

    def _tree(self) -> list[int]:
        if self._pid is None:
            return []
        found, todo = [], [self._pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # the process has ended meanwhile
                    todo += [int(child) for child in children.read_text().split()]
        return found

    def _rss(self) -> int:
        total = 0
        for pid in self._tree():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * self._page
        return total

    def _cpu_seconds(self, pids: Iterable[int]) -> float:
        ticks = 0
        for pid in pids:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(stat[11]) + int(stat[12])
            except OSError:
                pass
        return ticks / self._tick

    def _machine_busy_seconds(self) -> float:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        return (user + nice + system + irq + softirq + steal) / self._tick

    def _snapshot(self) -> tuple[float, float, float, float]:
        return (
            time.monotonic(),
            self._machine_busy_seconds(),
            self._cpu_seconds(self._tree()),
            self._cpu_seconds([os.getpid()]),
        )

    async def watch(self, work: Awaitable[list[Record]]) -> tuple[list[Record], dict[str, float]]:
        """Run a workload; its records, and what CPU and memory it took."""

        async def sample() -> None:
            while True:
                self.peak_rss_bytes = max(self.peak_rss_bytes, self._rss())
                await asyncio.sleep(0.25)

        sampler = asyncio.create_task(sample())
        before = self._snapshot()
        records = await work
        after = self._snapshot()
        sampler.cancel()
        wall, busy, server, client = (b - a for a, b in zip(before, after, strict=True))
        figures = {
            "server_cores_used": server / wall,
            "client_cores_used": client / wall,
            "other_cores_used": max(0.0, busy - server - client) / wall,
            "server_rss_peak_mib": self.peak_rss_bytes / 2**20,
        }
        return records, figures if self._pid is not None else {}


def percentile(values: list[float], share: float) -> float | None:
    """Linear interpolation between the two nearest ranks; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def latency_figures(records: list[Record]) -> dict[str, float | None]:
    """Median, P99 and maximum of each latency, in milliseconds."""
    good = [record for record in records if record.ok]
    series = {
        "ttft": [record.ttft for record in good],
        "itl": [gap for record in good for gap in record.gaps],
        "tpot": [t for record in good if (t := record.time_per_output_token) is not None],
        "e2e": [record.latency for record in good],
    }
    figures: dict[str, float | None] = {}
    for name, seconds in series.items():
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            value = percentile(seconds, share)
            figures[f"{name}_{label}_ms"] = None if value is None else value * 1000
    return figures


def summarize(records: list[Record]) -> dict[str, Any]:
    """All figures of one workload, and of each of its groups."""
    good = [record for record in records if record.ok]
    ends = [record.finished for record in records if record.finished is not None]
    wall = max(ends) - min(record.due for record in records)
    output = sum(record.output_tokens for record in good)
    prompt = sum(record.prompt_tokens for record in good)
    summary: dict[str, Any] = {
        "requests": len(records),
        "errors": len(records) - len(good),
        "wall_s": wall,
        "output_tok_s": output / wall,
        "total_tok_s": (output + prompt) / wall,
        "requests_s": len(good) / wall,
        "prompt_tokens_mean": prompt / len(good) if good else None,
        "output_tokens_mean": output / len(good) if good else None,
        "cached_prompt_share": sum(r.cached_tokens for r in good) / prompt if prompt else None,
        **latency_figures(records),
    }
    groups = sorted({record.group for record in records})
    if len(groups) > 1:
        summary["groups"] = {
            group: {
                "requests": sum(record.group == group for record in records),
                "errors": sum(record.group == group and not record.ok for record in records),
                **latency_figures([record for record in records if record.group == group]),
            }
            for group in groups
        }
    first_errors = [record.error for record in records if record.error][:3]
    if first_errors:
        summary["first_errors"] = first_errors
    return summary


def median_of(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number over the repetitions, groups included."""
    merged: dict[str, Any] = {}
    for key in repetitions[0]:
        values = [repetition.get(key) for repetition in repetitions]
        if all(isinstance(value, dict) for value in values):
            merged[key] = median_of(values)
        elif numbers := [value for value in values if isinstance(value, (int, float))]:
            merged[key] = statistics.median(numbers)
    return merged


def show(title: str, figures: dict[str, Any]) -> None:
    """Print the figures of one workload."""

    def text(key: str, unit: str = "", digits: int = 1) -> str:
        value = figures.get(key)
        return "-" if value is None else f"{value:.{digits}f}{unit}"

    print(f"== {title}")
    if "output_tok_s" in figures:
        print(
            f"   output {text('output_tok_s')} tok/s   total {text('total_tok_s')} tok/s   "
            f"{text('requests_s', digits=2)} req/s   wall {text('wall_s', ' s')}   "
            f"errors {text('errors', digits=0)}/{text('requests', digits=0)}"
        )
        print(
            f"   prompt tokens {text('prompt_tokens_mean')}   output tokens "
            f"{text('output_tokens_mean')}   cached share {text('cached_prompt_share', digits=2)}"
        )
    for name in ("ttft", "itl", "tpot", "e2e"):
        print(
            f"   {name:<5} p50 {text(name + '_p50_ms', ' ms'):>12}   "
            f"p99 {text(name + '_p99_ms', ' ms'):>12}   max {text(name + '_max_ms', ' ms'):>12}"
        )
    if "server_cores_used" in figures:
        print(
            f"   cores: server {text('server_cores_used', digits=2)}, client "
            f"{text('client_cores_used', digits=2)}, others {text('other_cores_used', digits=2)}"
            f"   server RSS peak {text('server_rss_peak_mib', ' MiB', 0)}"
        )
    for error in figures.get("first_errors", []):
        print(f"   error: {error}")
    for group, group_figures in figures.get("groups", {}).items():
        show(f"{title} / {group}", group_figures)
    sys.stdout.flush()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the workloads asked for; what main() writes as JSON."""
    prompts = PromptFactory(options.tokenizer, options.seed)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in options.workloads}
    capacity = options.capacity
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    # A new connection for each request: some servers close theirs after a stream.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = Client(session, options)
        warm_up = [Request(prompts.exact(64, f"warm-up/{i}"), 16) for i in range(16)]
        for record in await closed_loop(client, warm_up, concurrency=8):
            if not record.ok:
                raise SystemExit(f"the warm-up failed: {record.error}")
        for repetition in range(options.repetitions):
            for name in options.workloads:
                if name == "w5" and repetition >= options.overload_repetitions:
                    continue
                run = Run(client, prompts, repetition, capacity, options)
                watch = ProcessWatch(options.server_pid)
                records, process_figures = await watch.watch(WORKLOADS[name](run))
                figures = {**summarize(records), **process_figures}
                if name == "w2" and options.capacity is None:
                    capacity = figures["requests_s"]
                if name == "w5":
                    figures["offered_requests_s"] = 2 * capacity
                measured[name].append(figures)
                show(f"{name} repetition {repetition + 1}", figures)
                await asyncio.sleep(1.0)
    return {
        "label": options.label,
        "model": options.model,
        "endpoint": options.endpoint,
        "seed": options.seed,
        "workloads": {
            name: {"median": median_of(runs), "repetitions": runs}
            for name, runs in measured.items()
            if runs
        },
    }


def parse_arguments() -> argparse.Namespace:
    """The command line; prefill.py has the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", required=True, help="without /v1, e.g. http://127.0.0.1:8000")
    parser.add_argument("--model", default="model", help="the name sent as 'model'")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the model's tokenizer.json")
    parser.add_argument("--workloads", default="w1,w2,w3,w4,w5", help="in the order to run")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--overload-repetitions", type=int, default=2, help="cap for w5 alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument(
        "--extra-body",
        default='{"ignore_eos": true}',
        help="JSON merged into each request (default: %(default)s)",
    )
    parser.add_argument("--min-tokens", action="store_true", help="send min_tokens = max_tokens")
    parser.add_argument("--capacity", type=float, help="requests/s for w5; default: from w2")
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--long-prompts", type=int, default=10, help="at most so many in w4")
    parser.add_argument("--vip-share", type=float, default=0.2, help="of w5: sent as 'vip'")
    parser.add_argument(
        "--drain-seconds", type=float, default=120.0, help="wait after the last arrival"
    )
    parser.add_argument("--api-key", help="bearer token for every request")
    parser.add_argument(
        "--tenant-key",
        action="append",
        default=[],
        metavar="TENANT=KEY",
        help="bearer token for one",
    )
    parser.add_argument("--tenant-header", help="header that carries the tenant's name, if any")
    parser.add_argument("--server-pid", type=int, help="for its memory and CPU (children included)")
    parser.add_argument("--label", default="", help="copied into the JSON")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    options.base_url = options.base_url.rstrip("/")
    options.workloads = [name.strip() for name in options.workloads.split(",")]
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workloads: {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Measure, print, and write the JSON."""
    options = parse_arguments()
    result = asyncio.run(measure(options))
    if options.repetitions > 1:
        for name, figures in result["workloads"].items():
            show(f"{name} MEDIAN", figures["median"])
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
