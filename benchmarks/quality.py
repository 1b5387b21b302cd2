#!/usr/bin/env python3
"""What a number format or an executor costs in quality.

    .venv/bin/python benchmarks/quality.py --name bf16 --candidate torch:dtype=bfloat16

Feeds texts to a reference A and to each candidate B, the text's own tokens at every
position, and compares the two distributions of each next token: KL(A || B), agreement of
the best token (also where A's best leads by more than 0.5), and perplexity. Prints a table
and writes benchmarks/results/quality-NAME.json.

An executor is NAME or NAME:OPTION=VALUE,...; its options are the fields of its settings.
Everything goes through `Executor.submit` and `collect`, so that what is measured is what is
served, in the chunks of a served prompt. Every log-probability of the vocabulary travels
as Python objects: allow a tenth of a second a token.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from divergence import Divergence, Float32s, Positions, compare, join, summarise
from run_workloads import cache_folder, commit, machine, plain, versions

from headway.compute.cpu import kernel_cache
from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import load_model as load_torch_model
from headway.compute.gpu.runner.settings import ExecutorSettings as TorchSettings
from headway.core.base.units import blocks_for
from headway.core.engine.executor import Executor
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.step import ScoreWork, StepPlan
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer

HERE = Path(__file__).resolve().parent
BLOCK_SIZE = 16
CHUNK = 32  # tokens a step; the objects of their log-probabilities take 170 MB
COLUMNS = (
    ("executor", 34, "{}"),
    ("text", 8, "{}"),
    ("positions", 9, "{}"),
    ("kl_mean", 9, "{:.6f}"),
    ("kl_max", 9, "{:.5f}"),
    ("top1", 7, "{:.2%}"),
    ("top1_clear", 10, "{:.2%}"),
    ("perplexity_a", 12, "{:.3f}"),
    ("perplexity_b", 12, "{:.3f}"),
    ("perplexity_ratio", 16, "{:.4f}"),
)


@dataclass(frozen=True, slots=True)
class Space:
    """Room for one sequence: what an executor is built over."""

    engine: ResolvedEngine
    grid: array[int]  # one line: the sequence's blocks, in no order
    width: int


@dataclass(frozen=True, slots=True)
class Built:
    """An executor and what it says of itself."""

    executor: Executor
    description: str


def build_torch(model_file: ModelFile, space: Space, options: dict[str, str]) -> Built:
    """The torch executor on the file's dequantized weights."""
    settings = msgspec.convert(options, TorchSettings, strict=False)
    model = load_torch_model(model_file.card, settings, lambda done, total: None)
    executor = GpuExecutor(model, space.engine, memoryview(space.grid), space.width)
    return Built(executor, model.description)


def build_cpu(model_file: ModelFile, space: Space, options: dict[str, str]) -> Built:
    """The CPU executor on the file's own numbers."""
    kernel_cache.prepare(cache_folder() / "kernels")
    # Imported here: kernels take their cache folder when they are imported.
    from headway.compute.cpu.executor import CpuExecutor
    from headway.compute.cpu.loading import load_model as load_cpu_model
    from headway.compute.cpu.settings import CpuSettings

    settings = msgspec.convert(options, CpuSettings, strict=False)
    model = load_cpu_model(model_file.card, settings, lambda done, total: None)
    executor = CpuExecutor(model, space.engine, memoryview(space.grid), space.width)
    return Built(executor, model.description)


# A new executor is one function like those above and one line here.
FACTORIES: dict[str, Callable[[ModelFile, Space, dict[str, str]], Built]] = {
    "cpu": build_cpu,
    "torch": build_torch,
}


@dataclass(frozen=True, slots=True)
class Text:
    """A text as tokens."""

    name: str
    ids: list[int]

    @property
    def targets(self) -> list[int]:
        """What follows each token but the last."""
        return self.ids[1:]


def main() -> int:
    """Measure, print and write."""
    options = parse_arguments()
    target = HERE / "results" / f"quality-{options.name}.json"
    if target.exists() and not options.overwrite:
        raise SystemExit(f"{target} exists; choose another --name, or --overwrite")
    path = options.model or Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    model_file = open_model(str(path))
    texts = read_texts(model_file, options.texts, options.max_tokens)
    reference, reference_says = run(model_file, options.reference, texts)
    results = []
    print_row({key: key for key, _, _ in COLUMNS}, plain_text=True)
    for spec in options.candidates or ["torch:dtype=bfloat16"]:
        candidate, candidate_says = run(model_file, spec, texts)
        figures = figures_of(texts, reference, candidate)
        results.append(
            {
                "executor": spec,
                "description": candidate_says,
                "texts": {name: each.as_dict() for name, each in figures.items()},
            }
        )
        for name, each in figures.items():
            print_row({"executor": spec, "text": name, **each.as_dict()})
    result = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions() | {"numba": version("numba")},
        "model": {"file": path.name, "bytes": path.stat().st_size, "name": model_file.card.name},
        "command": plain([sys.executable, "benchmarks/quality.py", *sys.argv[1:]]),
        "texts": {text.name: {"tokens": len(text.ids)} for text in texts},
        "reference": {"executor": options.reference, "description": reference_says},
        "candidates": results,
    }
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {target}")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--reference", default="torch:dtype=float32", metavar="EXECUTOR")
    parser.add_argument(
        "--candidate", dest="candidates", action="append", metavar="EXECUTOR",
        help="may be given several times (default: torch:dtype=bfloat16)",
    )  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=512, help="of each text")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument(
        "texts", nargs="*", type=Path, default=sorted((HERE / "texts").glob("*.txt"))
    )
    return parser.parse_args()


def read_texts(model_file: ModelFile, paths: Sequence[Path], max_tokens: int) -> list[Text]:
    """The beginnings of the files as tokens."""
    tokenizer = build_tokenizer(model_file)
    texts = []
    for path in paths:
        ids = tokenizer.encode(path.read_text(), add_special=True, parse_special=False)
        if len(ids) < 2:
            raise SystemExit(f"{path} has {len(ids)} tokens; at least 2 are needed")
        texts.append(Text(path.stem, ids[:max_tokens]))
    return texts


def run(model_file: ModelFile, spec: str, texts: Sequence[Text]) -> tuple[list[Float32s], str]:
    """Log-probabilities [T, V] of each text, and what the executor says of itself."""
    space = make_space(max(len(text.ids) for text in texts))
    began = time.monotonic()
    built = build(model_file, spec, space)
    try:
        found = [score(built.executor, text, model_file.card.vocab_size) for text in texts]
    finally:
        built.executor.close()
    print(f"{spec}: {built.description}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found, built.description


def build(model_file: ModelFile, spec: str, space: Space) -> Built:
    """The executor that a NAME:OPTION=VALUE,... stands for."""
    name, _, words = spec.partition(":")
    pairs = [word.partition("=") for word in words.split(",") if word]
    if name not in FACTORIES:
        raise SystemExit(f"no executor is named {name!r}; there are {', '.join(FACTORIES)}")
    try:
        return FACTORIES[name](model_file, space, {key: value for key, _, value in pairs})
    except msgspec.ValidationError as error:
        raise SystemExit(f"{spec}: {error}") from None


def make_space(length: int) -> Space:
    """Room for so many tokens, in scattered blocks."""
    width = blocks_for(length, BLOCK_SIZE)
    engine = ResolvedEngine(
        max_model_len=width * BLOCK_SIZE,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK,
        block_size=BLOCK_SIZE,
        num_blocks=2 * width,
        enable_prefix_caching=False,
        max_waiting_requests=1,
        max_waiting_tokens=length,
    )
    return Space(engine, array("i", random.Random(1).sample(range(2 * width), width)), width)


def score(executor: Executor, text: Text, vocab_size: int) -> Float32s:
    """Log-probabilities [len(ids) - 1, V] of what follows each token but the last."""
    found = np.full((len(text.targets), vocab_size), np.nan, dtype=np.float32)
    for step, start in enumerate(range(0, len(text.targets), CHUNK)):
        targets = array("i", text.targets[start : start + CHUNK])
        executor.submit(
            StepPlan(
                step=step,
                tables=array("i", [0]),
                starts=array("i", [start]),
                num_tokens=array("i", [len(targets)]),
                token_ids=array("i", text.ids[start : start + len(targets)]),
                sequence_ids=(0,),
                scores=(ScoreWork(0, targets, vocab_size),),
            )
        )
        (scored,) = executor.collect().scores
        for place, each in enumerate(scored, start):
            pairs = np.array(each.top)
            found[place, pairs[:, 0].astype(np.int64)] = pairs[:, 1]
    if not np.isfinite(found).all():
        raise SystemExit(f"{text.name}: the executor left out log-probabilities of some tokens")
    return found


def figures_of(
    texts: Sequence[Text], a: Sequence[Float32s], b: Sequence[Float32s]
) -> dict[str, Divergence]:
    """Of each text, and of all together."""
    positions: dict[str, Positions] = {
        text.name: compare(ours, theirs, np.array(text.targets))
        for text, ours, theirs in zip(texts, a, b, strict=True)
    }
    figures = {name: summarise(each) for name, each in positions.items()}
    if len(texts) > 1:
        figures["all"] = summarise(join(list(positions.values())))
    return figures


def print_row(values: dict[str, Any], *, plain_text: bool = False) -> None:
    """One line of the table; names left, figures right."""
    cells = []
    for key, width, form in COLUMNS:
        text = str(values[key]) if plain_text else form.format(values[key])
        cells.append(text.ljust(width) if key in ("executor", "text") else text.rjust(width))
    print("  ".join(cells))


if __name__ == "__main__":
    sys.exit(main())
