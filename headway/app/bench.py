"""`headway bench serve`: load a running server and report what its clients see.

Any server with OpenAI's API will do. Options, figures and their names are those of vLLM's
`bench serve`, so that results can be laid side by side.
"""

import argparse
import asyncio
import json
import math
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import httpx
import msgspec
from tqdm import tqdm

from headway.app.bench_arrivals import arrival_offsets
from headway.app.bench_client import Client, Record, Target, make_http, send_all
from headway.app.bench_dataset import (
    DEFAULT_IDS,
    Prompt,
    RandomShape,
    random_ids,
    random_text,
    read_sharegpt,
    sharegpt_prompts,
)
from headway.app.bench_options import BenchOptions, add_arguments, resolve
from headway.app.bench_report import LoadShape, as_json, summarize, table
from headway.app.bench_tokenizer import load_codec
from headway.core.base.errors import InvalidSetting, StartError

__all__ = ["add_arguments", "run"]

EXIT_FAILED, EXIT_NOT_STARTED, EXIT_INTERRUPTED = 1, 2, 130


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; 0 when every request was answered, 1 when one failed, 2 at bad options."""
    try:
        options = resolve(args, os.environ.get("OPENAI_API_KEY"))
        return asyncio.run(_bench(options))
    except StartError as error:
        print(f"headway bench serve: {error.message}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except KeyboardInterrupt:
        print("headway bench serve: interrupted; nothing is reported", file=sys.stderr)
        return EXIT_INTERRUPTED


def make_prompts(options: BenchOptions, count: int) -> list[Prompt]:
    """The prompts of a run; the same for the same options, seed and tokenizer."""
    rng = Random(f"{options.seed}/prompts")
    codec = None if options.tokenizer is None else load_codec(options.tokenizer)
    if options.dataset_name == "sharegpt":
        assert options.dataset_path is not None, "resolve() has checked this"
        pairs = read_sharegpt(options.dataset_path)
        return sharegpt_prompts(pairs, count, codec, options.sharegpt_output_len, rng)
    shape = RandomShape(
        input_len=options.random_input_len,
        output_len=options.random_output_len,
        prefix_len=options.random_prefix_len,
        range_ratio=options.random_range_ratio,
    )
    if options.backend == "openai":
        return random_ids(shape, count, DEFAULT_IDS if codec is None else codec.plain_ids(), rng)
    if codec is None:
        raise InvalidSetting(
            "--tokenizer", "is needed for random prompts of text; --backend openai needs none"
        )
    return random_text(shape, count, codec, rng)


async def _bench(options: BenchOptions) -> int:
    # One more than asked for: the first is sent alone and is not counted, so that a wrong model
    # or field ends the run at once, and no counted prompt is in the server's cache.
    trial, *prompts = make_prompts(options, options.num_prompts + 1)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    async with make_http(options.is_local) as http:
        model = options.model or await first_model(http, options.base_url, headers)
        target = Target(
            url=options.url,
            model=model,
            chat=options.backend == "openai-chat",
            headers=headers,
            common=options.common,
        )
        client = Client(http, target)
        if error := (await client.send(trial)).error:
            raise StartError(f"the trial request to {options.url} failed: {error}")
        records = await _measure(client, prompts, options)
    return _report(records, prompts, options, model)


async def _measure(client: Client, prompts: list[Prompt], options: BenchOptions) -> list[Record]:
    rng = Random(f"{options.seed}/arrivals")
    offsets = arrival_offsets(len(prompts), options.request_rate, options.burstiness, rng)
    print(f"Traffic request rate: {options.request_rate:g} requests/s")
    print(f"Burstiness factor: {options.burstiness:g}")
    print(f"Maximum request concurrency: {options.max_concurrency or 'no limit'}")
    with tqdm(total=len(prompts), disable=not options.show_progress, unit="req") as bar:

        def tick() -> None:
            bar.update()

        return await send_all(client, prompts, offsets, options.max_concurrency, tick)


async def first_model(http: httpx.AsyncClient, base_url: str, headers: dict[str, str]) -> str:
    """The first model that the server lists; raises StartError when there is none to ask."""
    url = base_url + "/v1/models"
    try:
        response = await http.get(url, headers=headers, timeout=30.0)
        response.raise_for_status()
        models = msgspec.json.decode(response.content, type=_Models).data
    except httpx.HTTPError as error:
        raise StartError(f"no server answers at {url}: {error}") from error
    except msgspec.DecodeError as error:
        raise StartError(f"{url} gives no list of models ({error}); give --model") from error
    if not models:
        raise StartError(f"{url} lists no model; give --model")
    return models[0].id


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


def _report(records: list[Record], prompts: list[Prompt], options: BenchOptions, model: str) -> int:
    summary = summarize(records, prompts, options.percentiles, options.goodput_ms)
    load = LoadShape(request_rate=options.request_rate, max_concurrency=options.max_concurrency)
    print(table(summary, load, options.metrics))
    if options.result_file is not None:
        now = datetime.now(UTC)
        result = _heading(options, model, now) | as_json(summary, options.metrics)
        path = options.result_file
        if options.make_up_name:
            path = path / _file_name(options, model, now)
        _save(path, result)
        print(f"Saved {path}")
    return EXIT_FAILED if summary.failed else 0


def _heading(options: BenchOptions, model: str, now: datetime) -> dict[str, object]:
    rate = options.request_rate
    return {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "model_id": model,
        "tokenizer_id": None if options.tokenizer is None else str(options.tokenizer),
        "dataset_name": options.dataset_name,
        "num_prompts": options.num_prompts,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        "seed": options.seed,
        **options.metadata,
    }


def _file_name(options: BenchOptions, model: str, now: datetime) -> str:
    users = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    name = model.rsplit("/", 1)[-1]
    return f"{options.backend}-{options.request_rate}qps{users}-{name}-{now:%Y%m%d-%H%M%S}.json"


def _save(path: Path, result: dict[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise StartError(f"--result-dir: cannot write {path}: {error.strerror}") from error
