#!/usr/bin/env python3
"""Runs one workload against a running server and writes its figures: the client of versus_peers.py.

    python measure.py --workload w2 --base-url http://127.0.0.1:8100 --tokenizer tokenizer.json \
        --server-pid PID --seed 3 --json out.json

Besides W1-W4 of load.py:

    prefill   one client, prompts of 512 and of 4,096 tokens, one token out
    w3cold    half of W3, with a prefix of its own for each request: what a miss costs
    w3hit     one client: a prompt of 1,064 tokens that nobody sent before (a miss), then
              three with the same first 1,000 (hits); one token out
    w4quiet   W4's eight streams without the long prompts

Figures are those of load.py, and: tokens and events, an event being a chunk with text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from load import (
    WORKLOADS,
    Client,
    ProcessWatch,
    PromptFactory,
    Record,
    Request,
    Run,
    closed_loop,
    percentile,
    summarize,
)

PREFILL = ((512, 6), (4096, 3))  # prompt tokens, counted requests
HITS_FOR_A_MISS = 3
MISSES = 5


async def prefill(run: Run) -> list[Record]:
    """New prompts one after the other; the first of each length is not counted."""
    records: list[Record] = []
    for length, count in PREFILL:
        requests = [
            Request(
                run.prompt(length, f"prefill/{length}/{i}"),
                1,
                f"{length}" if i else f"first {length}",
            )
            for i in range(count + 1)
        ]
        records += await closed_loop(run.client, requests, concurrency=1)
    return records


async def w3cold(run: Run) -> list[Record]:
    """W3 where no prefix is shared."""
    requests = [Request(run.prompt(1064, f"w3cold/{i}"), 64) for i in range(32)]
    return await closed_loop(run.client, requests, concurrency=16)


async def w3hit(run: Run) -> list[Record]:
    """Misses and hits of one client."""
    requests = []
    for i in range(MISSES):
        shared = run.prompt(1000, f"w3hit/shared/{i}")
        for k in range(1 + HITS_FOR_A_MISS):
            prompt = run.prompt(64, f"w3hit/{i}/{k}", prefix=shared)
            requests.append(Request(prompt, 1, "hit" if k else "miss"))
    return await closed_loop(run.client, requests, concurrency=1)


async def w4quiet(run: Run) -> list[Record]:
    """The streams of W4 alone."""
    streams = [Request(run.prompt(64, f"w4quiet/{i}"), 256) for i in range(8)]
    return await closed_loop(run.client, streams, concurrency=8)


ALL: dict[str, Callable[[Run], Awaitable[list[Record]]]] = {
    **{name: WORKLOADS[name] for name in ("w1", "w2", "w3", "w4")},
    "prefill": prefill,
    "w3cold": w3cold,
    "w3hit": w3hit,
    "w4quiet": w4quiet,
}


def more_figures(workload: str, records: list[Record]) -> dict[str, float | None]:
    """What load.py does not sum up."""
    good = [record for record in records if record.ok]
    figures: dict[str, float | None] = {
        "tokens": sum(record.output_tokens for record in good),
        "events": sum(len(record.chunk_times) for record in good),
    }
    if workload == "prefill":
        for length, _ in PREFILL:
            took = [record.latency for record in good if record.group == str(length)]
            figures[f"prefill_{length}_tok_s"] = length / statistics.median(took) if took else None
    if workload == "w3hit":
        for group in ("hit", "miss"):
            ttfts = [record.ttft for record in good if record.group == group]
            middle = percentile(ttfts, 0.5)
            figures[f"{group}_ttft_p50_ms"] = None if middle is None else middle * 1000
    return figures


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the workload; its figures."""
    prompts = PromptFactory(options.tokenizer, options.seed)
    # A new connection for each request: some servers close theirs after a stream.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=options.timeout, sock_connect=30)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = Client(session, options)
        if options.warm_up:
            warm_up = [Request(prompts.exact(64, f"warm-up/{i}"), 16) for i in range(16)]
            for record in await closed_loop(client, warm_up, concurrency=8):
                if not record.ok:
                    raise SystemExit(f"the warm-up failed: {record.error}")
        run = Run(client, prompts, 0, None, options)
        watch = ProcessWatch(options.server_pid)
        records, process_figures = await watch.watch(ALL[options.workload](run))
    return {**summarize(records), **more_figures(options.workload, records), **process_figures}


def parse_arguments() -> argparse.Namespace:
    """The command line, and what load.py's client wants to know besides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", required=True, choices=ALL)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", default="model")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server-pid", type=int)
    parser.add_argument("--warm-up", action="store_true", help="send a few short requests before")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    options.extra_body, options.endpoint = '{"ignore_eos": true}', "completions"
    options.min_tokens, options.api_key, options.tenant_header = False, None, None
    options.tenant_key, options.drain_seconds = [], 300.0
    return options


def main() -> int:
    """Measure and write."""
    options = parse_arguments()
    figures = asyncio.run(measure(options))
    options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
