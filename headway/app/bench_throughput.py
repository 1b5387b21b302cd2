"""`headway bench throughput`: how fast many requests at once are, in an engine without a server."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tqdm import tqdm

from headway.app.bench_dataset import (
    Prompt,
    RandomShape,
    random_ids,
    read_sharegpt,
    sharegpt_prompts,
)
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
from headway.app.bench_offline import BatchResult, greedy_request, run_batches
from headway.app.bench_report import line, rule
from headway.app.bench_tokenizer import ModelFileCodec
from headway.core.base.errors import InvalidSetting
from headway.core.messages.path import EngineRequest
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe.clock import SystemClock

USUAL = {"num_prompts": 1000, "input_len": 1024, "output_len": 128}
QUICK = {"num_prompts": 8, "input_len": 32, "output_len": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options, with vLLM's names and defaults."""
    group = parser.add_argument_group("load")
    group.add_argument("--dataset-name", choices=("random", "sharegpt"), default="random")
    group.add_argument("--dataset-path", type=Path, help="the ShareGPT JSON file")
    group.add_argument("--num-prompts", type=int, help="requests (default: 1000)")
    group.add_argument("--input-len", type=int, help="tokens of each random prompt (default: 1024)")
    group.add_argument(
        "--output-len",
        type=int,
        help="tokens of each answer (default: 128; of ShareGPT the recorded answer's)",
    )
    group.add_argument("--random-prefix-len", type=int, default=0, help="in front of all of them")
    group.add_argument("--random-range-ratio", type=float, default=0.0, help="lengths vary by it")
    group.add_argument("--seed", dest="prompt_seed", type=int, default=0, help="of the prompts")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; the exit code."""
    return guarded("throughput", lambda: _run(args))


def make_requests(args: argparse.Namespace, model_file: ModelFile) -> list[EngineRequest]:
    """The requests of a run; the same for the same options and model."""
    prompts = _prompts(args, model_file, Random(f"{args.prompt_seed}/prompts"))
    return [
        greedy_request(str(index), [int(token) for token in prompt.content], prompt.max_tokens)
        for index, prompt in enumerate(prompts)
    ]


def _prompts(args: argparse.Namespace, model_file: ModelFile, rng: Random) -> list[Prompt]:
    """Prompts of token ids."""
    if args.dataset_name == "random":
        shape = RandomShape(
            input_len=args.input_len,
            output_len=args.output_len,
            prefix_len=args.random_prefix_len,
            range_ratio=args.random_range_ratio,
        )
        ids = random_token_ids(model_file.card.vocab_size)
        return random_ids(shape, args.num_prompts, ids, rng)
    if args.dataset_path is None:
        raise InvalidSetting("--dataset-path", "is needed for --dataset-name sharegpt")
    codec = ModelFileCodec(build_tokenizer(model_file))
    texts = sharegpt_prompts(
        read_sharegpt(args.dataset_path), args.num_prompts, codec, args.recorded_len, rng
    )
    return [
        Prompt(
            content=tuple(codec.encode(str(text.content))),
            num_tokens=text.num_tokens,
            max_tokens=text.max_tokens,
        )
        for text in texts
    ]


def figures(result: BatchResult) -> dict[str, float]:
    """What is written as JSON: vLLM's keys, and output tokens by themselves."""
    total = result.prompt_tokens + result.output_tokens
    per_second = 1.0 / result.seconds if result.seconds > 0 else 0.0
    return {
        "elapsed_time": result.seconds,
        "num_requests": result.num_requests,
        "total_num_tokens": total,
        "total_input_tokens": result.prompt_tokens,
        "cached_input_tokens": result.cached_tokens,
        "total_output_tokens": result.output_tokens,
        "requests_per_second": result.num_requests * per_second,
        "tokens_per_second": total * per_second,
        "output_tokens_per_second": result.output_tokens * per_second,
    }


def table(result: BatchResult) -> str:
    """The result for people."""
    found = figures(result)
    return "\n".join(
        [
            rule("Throughput Benchmark Result"),
            line("Requests:", result.num_requests),
            line("Benchmark duration (s):", result.seconds),
            line("Total input tokens:", result.prompt_tokens),
            line("Of them from the prefix cache:", result.cached_tokens),
            line("Total generated tokens:", result.output_tokens),
            line("Request throughput (req/s):", found["requests_per_second"]),
            line("Output token throughput (tok/s):", found["output_tokens_per_second"]),
            line("Total token throughput (tok/s):", found["tokens_per_second"]),
            rule(""),
        ]
    )


def _longest(requests: Sequence[EngineRequest]) -> int:
    return max(len(request.prompt) + request.sampling.max_tokens for request in requests)


def _run(args: argparse.Namespace) -> int:
    args.recorded_len = args.output_len  # of ShareGPT: None takes the recorded answer's length
    fill(args, USUAL, QUICK)
    if not 0 <= args.random_range_ratio < 1:
        raise InvalidSetting("--random-range-ratio", "must be from 0 to below 1")
    settings = settings_of(args, {"log_level": "warning"})
    model_file = open_here(settings)
    requests = make_requests(args, model_file)
    tokens = sum(len(request.prompt) for request in requests)
    loaded = load_here(settings, model_file, (len(requests), tokens))
    check_lengths(loaded, _longest(requests))
    with tqdm(total=len(requests), disable=args.disable_tqdm, unit="req") as bar:

        def tick() -> None:
            bar.update()

        (result,) = run_batches(loaded, SystemClock(), [requests], on_request=tick)
    print(table(result))
    write_json(args.json, figures(result))
    return 0
