"""`headway bench startup`: how long `headway serve` takes until it is ready and has answered."""

import argparse
import tempfile
import time
from collections.abc import Sequence

import httpx
import msgspec
from tqdm import tqdm

from headway.app.bench_model import add_common, fill, guarded, path_of, settings_of, write_json
from headway.app.bench_report import line, rule, series_of
from headway.app.option_flags import flags_of
from headway.app.served import FREE_PORT, KEEPS_NOTHING, SERVE, running_server
from headway.core.base.errors import StartError

USUAL = {"num_iters": 5, "num_iters_warmup": 1}
QUICK = {"num_iters": 1, "num_iters_warmup": 0}
PERCENTS = (50, 90, 99)
ANSWER_S = 60.0
PROMPT = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0, "stream": True}


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start, in seconds since the process was made."""

    ready_s: float
    first_token_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("load")
    group.add_argument("--num-iters", type=int, help="starts measured (default: 5)")
    group.add_argument("--num-iters-warmup", type=int, help="starts before them (default: 1)")
    group.add_argument(
        "--cold", action="store_true", help="first one start that must compile its kernels"
    )
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; the exit code."""
    return guarded("startup", lambda: _run(args))


def time_start(command: Sequence[str]) -> Start:
    """Start a server, ask it for one token, and end it.

    Raises StartError with the last line of its stderr when it does not get that far.
    """
    began = time.perf_counter()
    with running_server(command) as served:
        ready_s = time.perf_counter() - began
        _first_token(served.base_url)
        return Start(ready_s=ready_s, first_token_s=time.perf_counter() - began)


def _first_token(url: str) -> None:
    with httpx.Client(trust_env=False, timeout=ANSWER_S) as client:
        try:
            with client.stream("POST", f"{url}/v1/completions", json=PROMPT) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise StartError(f"the server answered {answer.status_code} to a completion")
                if not any(text.startswith("data:") for text in answer.iter_lines()):
                    raise StartError("the server's answer had no event")
        except httpx.HTTPError as error:
            raise StartError(f"the server did not answer a completion: {error}") from error


def figures(starts: Sequence[Start]) -> dict[str, object]:
    """What is written as JSON for a series of starts, in seconds."""
    found: dict[str, object] = {}
    for name in ("ready_s", "first_token_s"):
        values = [getattr(start, name) for start in starts]
        series = series_of(values, PERCENTS)
        found[name] = {
            "mean": series.mean / 1000,
            "percentiles": {f"{percent:g}": value / 1000 for percent, value in series.percentiles},
            "values": values,
        }
    return found


def table(cold: Start | None, warm: Sequence[Start]) -> str:
    """The result for people."""
    lines = [rule("Startup Benchmark Result")]
    if cold is not None:
        lines.append(line("Cold: ready (s):", cold.ready_s))
        lines.append(line("Cold: first token (s):", cold.first_token_s))
    lines.append(line("Warm starts measured:", len(warm)))
    for title, name in (("ready", "ready_s"), ("first token", "first_token_s")):
        series = series_of([getattr(start, name) for start in warm], PERCENTS)
        lines.append(line(f"Mean time to {title} (s):", series.mean / 1000))
        for percent, value in series.percentiles:
            lines.append(line(f"P{percent:g} time to {title} (s):", value / 1000))
    return "\n".join([*lines, rule("")])


def _run(args: argparse.Namespace) -> int:
    fill(args, USUAL, QUICK)
    model = path_of(settings_of(args))
    start = (*SERVE, *FREE_PORT, *KEEPS_NOTHING, "--model", model)
    rest = flags_of(vars(args), ("model", "port"))
    warm: list[Start] = []
    cold = None
    total = args.cold + args.num_iters_warmup + args.num_iters
    with tqdm(total=total, disable=args.disable_tqdm, unit="start") as bar:
        if args.cold:
            with tempfile.TemporaryDirectory(prefix="headway-cold-") as folder:
                others = flags_of(vars(args), ("model", "port", "cache_dir"))
                cold = time_start([*start, "--cache-dir", folder, *others])
            bar.update()
        for _ in range(args.num_iters_warmup + args.num_iters):
            warm.append(time_start([*start, *rest]))
            bar.update()
    measured = warm[args.num_iters_warmup :]
    print(table(cold, measured))
    result: dict[str, object] = {"num_iters": args.num_iters, "warm": figures(measured)}
    if cold is not None:
        result["cold"] = msgspec.structs.asdict(cold)
    write_json(args.json, result)
    return 0
