#!/usr/bin/env python3
"""What a gateway adds: the same streams direct, through Headway, and through LiteLLM's proxy.

    .venv/bin/python benchmarks/gateway_overhead.py --name gateway-overhead \
        --litellm ~/litellm/bin/litellm

The model server behind all of them is fake_upstream.py: 20 tokens a second and stream, 200 tokens
an answer. Arrivals are Poisson, so that no two streams beat together. Ways and loads take turns in
each repetition:

full   20 arrivals a second, 200 streams open at a time: direct, then Headway. LiteLLM only in the
       first --litellm-full repetitions: it does not keep up with this load, and takes minutes.
light  --light-rate arrivals a second, which LiteLLM keeps up with: Headway, then LiteLLM.

Each gateway is started anew for each run. Of a run, requests that began after the streams had
filled up count for the percentiles of the time to the first token, and all of them for CPU
milliseconds a request, of the gateway's processes. Overhead is the difference of the percentiles
to direct's in the same repetition. Then --flat requests of 5 tokens in a closed loop through
Headway: memory after each tenth of them. About 17 minutes with LiteLLM; results are written after
each run.

Settings are those for production: Headway's defaults, one tenant with a key, log level warning;
LiteLLM as its page on production says, without its database: a worker a core, a master key,
LITELLM_MODE=PRODUCTION, LITELLM_LOG=ERROR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gateway_load
import httpx
import psutil
from gateway_load import Answer, Load
from run_workloads import HERE, commit, free_port, machine, plain, versions
from servers import started

DIRECT, HEADWAY, LITELLM = "direct", "headway", "litellm"
FULL, LIGHT = "full", "light"
SEED = 1  # the same arrivals in every run
WARM_REQUESTS = 10
LATE = 1.2  # times as long as the model server takes: such an answer was held up
FULL_RATE = 20.0  # arrivals a second; with TOKENS at PACE, 200 streams are open
TOKENS, PACE = 200, 20.0  # of an answer; a second
MODEL, KEY = "fake", "sk-benchmark"
PERCENTILES = (50, 90, 99)
FLAT_TOKENS, FLAT_CLIENTS, FLAT_PARTS = 5, 16, 10
LITELLM_ENV = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched at its start
}


def main() -> int:
    """Run all ways in turn, print and write."""
    options = parse_arguments()
    target = HERE / "results" / f"{options.name}.json"
    result: dict[str, Any] = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "load_average": os.getloadavg(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions() | litellm_version(options.litellm),
        "command": plain([sys.executable, *sys.argv]),
        "load": {
            "full_rate": FULL_RATE,
            "light_rate": options.light_rate,
            "tokens": TOKENS,
            "tokens_s": PACE,
        },
        "summary": {},
        "memory": None,
        "runs": [],
    }
    runs: list[dict[str, Any]] = result["runs"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        upstream = stack.enter_context(fake_upstream(Path(folder), {}))
        for repetition in range(options.repetitions):
            for load, way in turns(repetition, options):
                run = one_run(load, way, upstream, Path(folder), options)
                runs.append({"load": load, "way": way, "repetition": repetition, **run})
                print(json.dumps(runs[-1]), flush=True)
                result["summary"] = summary(runs)
                target.write_text(json.dumps(result, indent=1) + "\n")
        if options.flat:
            result["memory"] = memory_over(options.flat, Path(folder))
    print(json.dumps({"summary": result["summary"], "memory": result["memory"]}, indent=1))
    target.write_text(json.dumps(result, indent=1) + "\n")
    failed = sum(run["failed"] for run in runs if run["way"] != LITELLM)
    return 1 if failed or (result["memory"] or {}).get("failed") else 0


def turns(repetition: int, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Loads and ways of one repetition, in order."""
    yield from ((FULL, DIRECT), (FULL, HEADWAY))
    if options.litellm:
        yield from ((LIGHT, HEADWAY), (LIGHT, LITELLM))
        if repetition < options.litellm_full:
            yield FULL, LITELLM


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of arrivals once the streams have filled up"
    )
    parser.add_argument("--litellm", type=Path, help="its executable; without it, it is left out")
    parser.add_argument(
        "--litellm-full", type=int, default=1, help="repetitions of it at the full load"
    )
    parser.add_argument("--light-rate", type=float, default=4.0, help="arrivals a second")
    parser.add_argument(
        "--flat", type=int, default=50_000, help="requests of the memory run; 0: none"
    )
    options = parser.parse_args()
    if options.litellm and not options.litellm.exists():
        parser.error(f"there is no {options.litellm}")
    return options


@contextmanager
def fake_upstream(folder: Path, pace: Mapping[str, str]) -> Iterator[str]:
    """The model server behind all of them."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "--port", str(port)]
    command += ["--log-level", "warning", "--no-access-log", "fake_upstream:app"]
    url = f"http://127.0.0.1:{port}"
    with started(command, url, "/health", folder / "upstream.log", 30.0, os.environ | dict(pace)):
        yield url


@contextmanager
def gateway(
    way: str, upstream: str, folder: Path, litellm: Path | None
) -> Iterator[tuple[str, int]]:
    """The gateway in front of it, with one tenant's key: its address, its process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    if way == HEADWAY:
        file = folder / "headway.yaml"
        file.write_text(headway_file(upstream))
        headway = str(Path(sys.executable).with_name("headway"))
        command = [headway, "serve", "--config", str(file), "--port", str(port)]
        health, env = "/ready", dict(os.environ)
    else:
        file = folder / "litellm.yaml"
        file.write_text(litellm_file(upstream))
        command = [str(litellm), "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
        command += ["--num_workers", str(os.cpu_count() or 1)]
        health = "/health/liveliness"
        env = os.environ | LITELLM_ENV
    with started(command, url, health, folder / f"{way}.log", 120.0, env) as server:
        yield url, server.process.pid


def headway_file(upstream: str) -> str:
    """One upstream model, and a tenant."""
    return (
        f"log_level: warning\ntenants:\n  - {{name: acme, keys: [{KEY}]}}\n"
        f"models:\n  - upstream: {{name: {MODEL}, url: '{upstream}/v1', max_concurrent: 1024}}\n"
    )


def litellm_file(upstream: str) -> str:
    """The same for LiteLLM."""
    return (
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n"
        f"      model: openai/{MODEL}\n      api_base: {upstream}/v1\n      api_key: none\n"
        f"general_settings: {{master_key: {KEY}}}\nlitellm_settings: {{telemetry: false}}\n"
    )


def one_run(
    load: str, way: str, upstream: str, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """One way under one load, once: its percentiles, and what its processes used."""
    fill_s = TOKENS / PACE
    rate = FULL_RATE if load == FULL else options.light_rate
    asked = Load(rate, fill_s + options.seconds, TOKENS, MODEL, KEY)
    with ExitStack() as stack:
        url, pid = upstream, None
        if way != DIRECT:
            url, pid = stack.enter_context(gateway(way, upstream, folder, options.litellm))
        for _ in range(WARM_REQUESTS):  # of several workers each has to load what it loads late
            wait_for_answer(url)
        used, began = cpu_of(pid), time.monotonic()
        answers = asyncio.run(gateway_load.run(url, asked, SEED))
        used, memory = cpu_of(pid) - used, memory_of(pid)
    return {
        "requests": len(answers),
        "failed": sum(not is_good(each) for each in answers),
        "late": sum(each.took_s > LATE * TOKENS / PACE for each in answers),
        "took_s": time.monotonic() - began,
        "first_token_ms": percentiles(answers, fill_s),
        "cpu_ms_a_request": used * 1000.0 / len(answers),
        "memory_mib": memory / 2**20,
    }


def is_good(answer: Answer) -> bool:
    """Whole, and every token there."""
    return answer.is_whole and answer.num_tokens == TOKENS


def wait_for_answer(url: str) -> None:
    """One short request, which also loads what is loaded late."""
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    httpx.post(
        f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60.0
    ).raise_for_status()


def percentiles(answers: Sequence[Answer], after_s: float) -> dict[str, float]:
    """Milliseconds to the first token of those that came once the streams had filled up."""
    times = sorted(each.first_s * 1000.0 for each in answers if each.started >= after_s)
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {f"p{each}": cuts[each - 1] for each in PERCENTILES}


def cpu_of(pid: int | None) -> float:
    """Seconds of CPU that a process and its children have used."""
    return sum_over(pid, lambda process: sum(process.cpu_times()[:2]))


def memory_of(pid: int | None) -> int:
    """Resident bytes of a process and its children."""
    return int(sum_over(pid, lambda process: process.memory_info().rss))


def sum_over(pid: int | None, value: Callable[[psutil.Process], float]) -> float:
    """A value summed over a process and all below it; 0 for none."""
    if pid is None:
        return 0.0
    top = psutil.Process(pid)
    return sum(value(each) for each in (top, *top.children(recursive=True)))


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the repetitions by load and way; overheads within each repetition first."""
    direct = {run["repetition"]: run for run in runs if run["way"] == DIRECT}
    found: dict[str, Any] = {}
    for load, way in dict.fromkeys((run["load"], run["way"]) for run in runs):
        own = [run for run in runs if (run["load"], run["way"]) == (load, way)]
        each = {
            "first_token_ms": median_of(own, lambda run: run["first_token_ms"]),
            "cpu_ms_a_request": statistics.median(run["cpu_ms_a_request"] for run in own),
            "memory_mib": statistics.median(run["memory_mib"] for run in own),
            "requests": sum(run["requests"] for run in own),
            "failed": sum(run["failed"] for run in own),
            "late": sum(run["late"] for run in own),
        }
        if load == FULL and way != DIRECT:
            each["overhead_ms"] = median_of(own, lambda run: over(run, direct[run["repetition"]]))
        found.setdefault(load, {})[way] = each
    for ways in found.values():
        if LITELLM in ways and HEADWAY in ways:
            theirs, ours = ways[LITELLM]["cpu_ms_a_request"], ways[HEADWAY]["cpu_ms_a_request"]
            ways["cpu_ratio"] = theirs / ours
    return found


def over(run: Mapping[str, Any], direct: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by which the run's percentiles are above direct's."""
    base = direct["first_token_ms"]
    return {name: value - base[name] for name, value in run["first_token_ms"].items()}


def median_of(
    runs: Sequence[Mapping[str, Any]], figures: Callable[[Mapping[str, Any]], Mapping[str, float]]
) -> dict[str, float]:
    """The median of each figure."""
    each = [figures(run) for run in runs]
    return {name: statistics.median(run[name] for run in each) for name in each[0]}


def memory_over(num_requests: int, folder: Path) -> dict[str, Any]:
    """Headway's memory after each tenth of so many short requests."""
    load = Load(0.0, 0.0, FLAT_TOKENS, MODEL, KEY)
    at_once = {"FAKE_FIRST_MS": "0", "FAKE_TOKEN_MS": "0"}
    with (
        fake_upstream(folder, at_once) as upstream,
        gateway(HEADWAY, upstream, folder, None) as (url, pid),
    ):
        wait_for_answer(url)
        resident, failed, began, used = list[float](), 0, time.monotonic(), cpu_of(pid)
        for _ in range(FLAT_PARTS):
            part = num_requests // FLAT_PARTS
            answers = asyncio.run(gateway_load.closed(url, load, FLAT_CLIENTS, part))
            failed += sum(not each.is_whole for each in answers)
            resident.append(memory_of(pid) / 2**20)
            print(f"{len(resident)} tenths: {resident[-1]:.1f} MiB", flush=True)
        used = cpu_of(pid) - used
    return {
        "requests": num_requests,
        "tokens": FLAT_TOKENS,
        "failed": failed,
        "took_s": time.monotonic() - began,
        "cpu_ms_a_request": used * 1000.0 / num_requests,
        "mib_after_each_tenth": resident,
        "growth": resident[-1] / resident[0] - 1.0,
        "largest_change": max(abs(each / resident[0] - 1.0) for each in resident),
    }


def litellm_version(executable: Path | None) -> dict[str, str]:
    """Its version, if it takes part."""
    if executable is None:
        return {}
    python = executable.with_name("python")
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return {"litellm": found.stdout.strip()}


if __name__ == "__main__":
    raise SystemExit(main())
