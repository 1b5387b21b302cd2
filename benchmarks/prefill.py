#!/usr/bin/env python3
"""Prefill speed of an OpenAI-compatible server: one client, one output token.

    python prefill.py --base-url http://127.0.0.1:8100 --tokenizer tokenizer.json

For each prompt length it sends new prompts one after the other, the first one
uncounted, and prints prompt tokens per second from the whole request time
(so HTTP and the one decoding step are in it). Takes the options of load.py.
"""

from __future__ import annotations

import asyncio
import statistics

import aiohttp
from load import Client, PromptFactory, Request, parse_arguments

LENGTHS_AND_COUNTS = ((512, 6), (4096, 3))


async def main() -> None:
    """Measure each prompt length and print a line for it."""
    options = parse_arguments()
    prompts = PromptFactory(options.tokenizer, options.seed)
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = Client(session, options)
        for length, count in LENGTHS_AND_COUNTS:
            records = [
                await client.send(Request(prompts.exact(length, f"prefill/{length}/{i}"), 1))
                for i in range(count + 1)
            ]
            if errors := [record.error for record in records if record.error]:
                raise SystemExit(errors[0])
            seconds = [record.latency for record in records[1:]]
            took = statistics.median(seconds)
            print(
                f"prompt {length}: {length / took:7.0f} tok/s   "
                f"median {took * 1000:.0f} ms of {count}, "
                f"{min(seconds) * 1000:.0f}-{max(seconds) * 1000:.0f}   "
                f"tokens reported {records[-1].prompt_tokens}, "
                f"cached {records[-1].cached_tokens}"
            )


if __name__ == "__main__":
    asyncio.run(main())
