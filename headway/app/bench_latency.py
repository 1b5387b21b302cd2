"""`headway bench latency`: how long one batch takes, in an engine without a server."""

import argparse
from collections.abc import Sequence
from random import Random
from statistics import fmean

from tqdm import tqdm

from headway.app.bench_model import (
    add_common,
    check_lengths,
    fill,
    guarded,
    load_here,
    open_here,
    random_token_ids,
    settings_of,
    write_json,
)
from headway.app.bench_offline import Batch, BatchResult, greedy_request, run_batches
from headway.app.bench_report import line, rule, series_of
from headway.service.observe.clock import SystemClock

USUAL = {
    "input_len": 32,
    "output_len": 128,
    "batch_size": 8,
    "num_iters": 30,
    "num_iters_warmup": 10,
}
QUICK = {"input_len": 16, "output_len": 8, "batch_size": 2, "num_iters": 3, "num_iters_warmup": 1}
PERCENTS = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options, with vLLM's names and defaults."""
    group = parser.add_argument_group("load")
    group.add_argument("--input-len", type=int, help="tokens of each prompt (default: 32)")
    group.add_argument("--output-len", type=int, help="tokens of each answer (default: 128)")
    group.add_argument("--batch-size", type=int, help="requests in the batch (default: 8)")
    group.add_argument("--num-iters", type=int, help="batches measured (default: 30)")
    group.add_argument("--num-iters-warmup", type=int, help="batches before them (default: 10)")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; the exit code."""
    return guarded("latency", lambda: _run(args))


def make_batches(args: argparse.Namespace, ids: Sequence[int]) -> list[Batch]:
    """All batches, those for warming up first; the same prompts in each, as vLLM has it."""
    rng = Random("latency")
    prompts = [rng.choices(ids, k=args.input_len) for _ in range(args.batch_size)]
    return [
        [
            greedy_request(f"{batch}-{index}", prompt, args.output_len)
            for index, prompt in enumerate(prompts)
        ]
        for batch in range(args.num_iters_warmup + args.num_iters)
    ]


def figures(results: Sequence[BatchResult]) -> dict[str, object]:
    """What is written as JSON: vLLM's keys (seconds), and rates."""
    seconds = [result.seconds for result in results]
    series = series_of(seconds, PERCENTS)
    total = sum(seconds)
    output = sum(result.output_tokens for result in results)
    prompt = sum(result.prompt_tokens for result in results)
    return {
        "avg_latency": fmean(seconds),
        "latencies": seconds,
        "percentiles": {f"{percent:g}": value / 1000 for percent, value in series.percentiles},
        "output_tokens_per_second": output / total if total else 0.0,
        "tokens_per_second": (prompt + output) / total if total else 0.0,
    }


def table(args: argparse.Namespace, results: Sequence[BatchResult]) -> str:
    """The result for people; latencies in milliseconds."""
    found = figures(results)
    series = series_of([result.seconds for result in results], PERCENTS)
    return "\n".join(
        [
            rule("Latency Benchmark Result"),
            line("Batch size:", args.batch_size),
            line("Input tokens of each:", args.input_len),
            line("Output tokens of each:", args.output_len),
            line("Batches measured:", len(results)),
            line("Mean latency (ms):", series.mean),
            line("Standard deviation (ms):", series.std),
            *(line(f"P{percent:g} latency (ms):", value) for percent, value in series.percentiles),
            line("Output token throughput (tok/s):", found["output_tokens_per_second"]),
            line("Total token throughput (tok/s):", found["tokens_per_second"]),
            rule(""),
        ]
    )


def _run(args: argparse.Namespace) -> int:
    fill(args, USUAL, QUICK)
    # Equal prompts again and again: with the prefix cache only the first batch would compute them.
    settings = settings_of(args, {"enable_prefix_caching": False, "log_level": "warning"})
    count = args.batch_size
    model_file = open_here(settings)
    loaded = load_here(settings, model_file, (count, count * args.input_len))
    check_lengths(loaded, args.input_len + args.output_len)
    batches = make_batches(args, random_token_ids(model_file.card.vocab_size))
    with tqdm(total=len(batches), disable=args.disable_tqdm, unit="batch") as bar:

        def tick() -> None:
            bar.update()

        results = run_batches(loaded, SystemClock(), batches, on_batch=tick)
    measured = results[args.num_iters_warmup :]
    print(table(args, measured))
    write_json(args.json, {name: getattr(args, name) for name in USUAL} | figures(measured))
    return 0
