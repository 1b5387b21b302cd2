"""Options of `headway bench serve`, with vLLM's names and defaults."""

import argparse
import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headway.app.bench_report import TITLES
from headway.core.base.errors import InvalidSetting

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, checked."""

    base_url: str
    url: str
    backend: str
    model: str | None  # None: the first that the server lists
    tokenizer: Path | None
    dataset_name: str
    dataset_path: Path | None
    sharegpt_output_len: int | None
    random_input_len: int
    random_output_len: int
    random_prefix_len: int
    random_range_ratio: float
    num_prompts: int
    request_rate: float  # infinity: all at once
    burstiness: float
    max_concurrency: int | None
    seed: int
    api_key: str | None
    common: dict[str, Any]  # fields of every request
    goodput_ms: dict[str, float]
    metrics: tuple[str, ...]
    percentiles: tuple[float, ...]
    show_progress: bool
    result_file: Path | None  # a folder while the name is still to be made up
    make_up_name: bool
    metadata: dict[str, str]

    @property
    def is_local(self) -> bool:
        """True when the server is reached over loopback."""
        return urlsplit(self.base_url).hostname in LOOPBACK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headway bench serve`."""
    _add_server(parser.add_argument_group("server"))
    _add_dataset(parser.add_argument_group("what is sent"))
    _add_load(parser.add_argument_group("how it is sent"))
    _add_result(parser.add_argument_group("result"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backend", choices=tuple(ENDPOINTS), default="openai")
    group.add_argument("--base-url", help="e.g. http://127.0.0.1:8000; instead of host and port")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--endpoint", help="path of the API (default: the backend's)")
    group.add_argument("--model", help="name sent with requests (default: the server's first)")
    group.add_argument("--api-key", help="bearer token (default: $OPENAI_API_KEY, if set)")
    group.add_argument(
        "--tokenizer",
        type=Path,
        help="tokenizer.json or GGUF file of the served model; needed for prompts of text",
    )


def _add_dataset(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset-name", choices=("random", "sharegpt"), default="random")
    group.add_argument("--dataset-path", type=Path, help="the ShareGPT JSON file")
    group.add_argument("--num-prompts", type=int, default=1000)
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--random-input-len", type=int, default=1024, help="tokens")
    group.add_argument("--random-output-len", type=int, default=128, help="tokens")
    group.add_argument(
        "--random-prefix-len", type=int, default=0, help="tokens that all prompts begin with"
    )
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, help="lengths vary by this share"
    )
    group.add_argument("--sharegpt-output-len", type=int, help="instead of the recorded answers'")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--request-rate", type=float, default=math.inf, help="requests a second (default: inf)"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, help="1: Poisson; less: bursts; more: steady"
    )
    group.add_argument("--max-concurrency", type=int, help="requests under way at once")
    group.add_argument("--ignore-eos", action="store_true", help="answers have their full length")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument(
        "--extra-body", type=json.loads, default={}, metavar="JSON", help="fields of every request"
    )


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", help="latencies shown")
    group.add_argument("--metric-percentiles", default="99", help="e.g. 50,90,99")
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="METRIC:MS", help="e.g. ttft:500 tpot:50"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    group.add_argument("--result-dir", type=Path, default=Path())
    group.add_argument("--result-filename")
    group.add_argument("--metadata", nargs="*", default=[], metavar="KEY=VALUE")


def resolve(args: argparse.Namespace, env_key: str | None) -> BenchOptions:
    """Check the parsed command line; raises InvalidSetting that names the option.

    env_key is the API key from the environment, used when no option gives one.
    """
    _check_numbers(args)
    if args.dataset_name == "sharegpt" and args.dataset_path is None:
        raise InvalidSetting("--dataset-path", "is needed for --dataset-name sharegpt")
    if not isinstance(args.extra_body, dict):
        raise InvalidSetting("--extra-body", f"must be a JSON object, got {args.extra_body!r}")
    host = f"[{args.host}]" if ":" in args.host else args.host
    base_url = (args.base_url or f"http://{host}:{args.port}").rstrip("/")
    common: dict[str, Any] = {"temperature": args.temperature}
    if args.ignore_eos:
        common["ignore_eos"] = True
    return BenchOptions(
        base_url=base_url,
        url=base_url + (args.endpoint or ENDPOINTS[args.backend]),
        backend=args.backend,
        model=args.model,
        tokenizer=args.tokenizer,
        dataset_name=args.dataset_name,
        dataset_path=args.dataset_path,
        sharegpt_output_len=args.sharegpt_output_len,
        random_input_len=args.random_input_len,
        random_output_len=args.random_output_len,
        random_prefix_len=args.random_prefix_len,
        random_range_ratio=args.random_range_ratio,
        num_prompts=args.num_prompts,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        seed=args.seed,
        api_key=args.api_key or env_key,
        common=common | args.extra_body,
        goodput_ms=dict(parse_goodput(item) for item in args.goodput),
        metrics=parse_metrics(args.percentile_metrics),
        percentiles=parse_percentiles(args.metric_percentiles),
        show_progress=not args.disable_tqdm,
        result_file=args.result_dir / (args.result_filename or "") if args.save_result else None,
        make_up_name=args.result_filename is None,
        metadata=dict(parse_metadata(item) for item in args.metadata),
    )


def _check_numbers(args: argparse.Namespace) -> None:
    least = {
        "num_prompts": 1,
        "random_input_len": 1,
        "random_output_len": 1,
        "random_prefix_len": 0,
        "sharegpt_output_len": 1,
        "max_concurrency": 1,
    }
    for name, bound in least.items():
        value = getattr(args, name)
        if value is not None and value < bound:
            raise InvalidSetting(_option(name), f"must be at least {bound}, got {value}")
    for name in ("request_rate", "burstiness"):
        if not getattr(args, name) > 0:
            raise InvalidSetting(_option(name), f"must be above 0, got {getattr(args, name)}")
    if not 0 <= args.random_range_ratio < 1:
        raise InvalidSetting(
            "--random-range-ratio", f"must be from 0 to below 1, got {args.random_range_ratio}"
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_goodput(item: str) -> tuple[str, float]:
    """`ttft:500` as a metric and a limit in milliseconds."""
    name, _, value = item.partition(":")
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if name not in GOODPUT_METRICS or not limit >= 0:
        raise InvalidSetting(
            "--goodput", f"takes METRIC:MILLISECONDS of {', '.join(GOODPUT_METRICS)}; got {item!r}"
        )
    return name, limit


def parse_metrics(text: str) -> tuple[str, ...]:
    """`ttft,itl` as names of latencies."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in TITLES]:
        raise InvalidSetting(
            "--percentile-metrics", f"has {unknown[0]!r}; there are {', '.join(TITLES)}"
        )
    return names


def parse_percentiles(text: str) -> tuple[float, ...]:
    """`50,99.9` as numbers from 0 to 100."""
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        values = (math.nan,)
    if not all(0 <= value <= 100 for value in values):
        raise InvalidSetting("--metric-percentiles", f"takes numbers from 0 to 100; got {text!r}")
    return values


def parse_metadata(item: str) -> tuple[str, str]:
    """`key=value` as a pair."""
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise InvalidSetting("--metadata", f"takes KEY=VALUE; got {item!r}")
    return key, value
