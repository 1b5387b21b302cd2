#!/usr/bin/env python3
"""What a form of the weights or an executor costs in quality.

    .venv/bin/python benchmarks/quality.py --name forms

Feeds texts to a reference A (torch in float32, on the file's own weights) and to each
candidate B, the text's own tokens at every position, and compares the two distributions of
each next token: KL(A || B), agreement of the best token (also where A's best leads by more
than 0.5), and perplexity, whose ratio has its 95 % interval. Prints a table and writes
benchmarks/results/quality-NAME.json.

A candidate is FORM/EXECUTOR:OPTION=VALUE,... FORM is "file" (as it is), a GGUF type (Q8_0,
BF16), or "float": BF16 weights that 4 bits do not happen to hold (see quality_models.py). The
options are the fields of the executor's settings. Everything goes through
`Executor.submit` and `collect`, in the chunks of a served prompt; logits are taken where
log-probabilities are made of them.

The reference's logits are kept in a folder of the system's temporary one (2.5 GB), by the
contents of model and texts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from divergence import Divergence, Float32s, Positions, compare, join, summarise
from quality_models import SPREAD, write_form
from run_workloads import cache_folder, commit, machine, plain, versions

from headway.compute.cpu import kernel_cache
from headway.compute.gpu.runner import executor as torch_executor
from headway.compute.gpu.runner.loading import load_model as load_torch_model
from headway.compute.gpu.runner.settings import ExecutorSettings as TorchSettings
from headway.core.base.units import blocks_for
from headway.core.engine.executor import Executor
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import TokenLogprob
from headway.core.messages.step import ScoreWork, StepPlan
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer

HERE = Path(__file__).resolve().parent
BLOCK_SIZE = 16
FORMS = [
    "file/cpu",
    "Q8_0/cpu",
    "float/cpu:quantization=none",
    "float/cpu:quantization=int8",
    "float/cpu:quantization=int4",
    "file/torch:dtype=bfloat16",
]
COLUMNS = (
    ("candidate", 30, "{}"),
    ("text", 9, "{}"),
    ("positions", 9, "{}"),
    ("kl_mean", 8, "{:.5f}"),
    ("kl_p99", 7, "{:.4f}"),
    ("top1", 7, "{:.2%}"),
    ("top1_clear", 10, "{:.2%}"),
    ("perplexity_ratio", 16, "{:.4f}"),
    ("ratio_low", 9, "{:.4f}"),
    ("ratio_high", 10, "{:.4f}"),
)


@dataclass(frozen=True, slots=True)
class Space:
    """Room for one sequence: what an executor is built over."""

    engine: ResolvedEngine
    grid: array[int]  # one line: the sequence's blocks, in no order
    width: int


@dataclass(frozen=True, slots=True)
class Built:
    """An executor, what it says of itself, and the module whose `score_tokens` it calls."""

    executor: Executor
    description: str
    module: Any


def build_torch(model_file: ModelFile, space: Space, options: dict[str, str]) -> Built:
    """The torch executor on the file's dequantized weights."""
    settings = msgspec.convert(options, TorchSettings, strict=False)
    model = load_torch_model(model_file.card, settings, lambda done, total: None)
    executor = torch_executor.GpuExecutor(model, space.engine, memoryview(space.grid), space.width)
    return Built(executor, model.description, torch_executor)


def build_cpu(model_file: ModelFile, space: Space, options: dict[str, str]) -> Built:
    """The CPU executor on the file's own numbers."""
    kernel_cache.prepare(cache_folder() / "kernels")
    # Imported here: kernels take their cache folder when they are imported.
    from headway.compute.cpu import executor as cpu_executor
    from headway.compute.cpu.loading import load_model as load_cpu_model
    from headway.compute.cpu.settings import CpuSettings

    settings = msgspec.convert(options, CpuSettings, strict=False)
    model = load_cpu_model(model_file.card, settings, lambda done, total: None)
    executor = cpu_executor.CpuExecutor(model, space.engine, memoryview(space.grid), space.width)
    return Built(executor, model.description, cpu_executor)


# A new executor is one function like those above and one line here.
FACTORIES: dict[str, Callable[[ModelFile, Space, dict[str, str]], Built]] = {
    "cpu": build_cpu,
    "torch": build_torch,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text as tokens: a sequence of its own."""

    text: str
    ids: list[int]

    @property
    def targets(self) -> list[int]:
        """What follows each token but the last."""
        return self.ids[1:]


class Reference:
    """Logits [T, V] of each piece, on disk."""

    def __init__(self, path: Path, pieces: Sequence[Piece], vocab_size: int) -> None:
        self._path = path
        self._offsets = np.cumsum([0, *(len(piece.targets) for piece in pieces)])
        self._shape = (int(self._offsets[-1]), vocab_size)

    def fill(self, logits: Iterator[Float32s]) -> None:
        """Write them; the file gets its name once it is whole."""
        unfinished = self._path.with_suffix(".part")
        held = np.memmap(unfinished, np.float32, "w+", shape=self._shape)
        for start, each in zip(self._offsets, logits, strict=False):
            held[start : start + len(each)] = each
        held.flush()
        unfinished.rename(self._path)

    @property
    def is_there(self) -> bool:
        """Whether an earlier run has left it."""
        return self._path.exists()

    def of(self, index: int) -> Float32s:
        """Those of one piece."""
        held = np.memmap(self._path, np.float32, "r", shape=self._shape)
        return np.array(held[self._offsets[index] : self._offsets[index + 1]])


def main() -> int:
    """Measure, print and write."""
    options = parse_arguments()
    target = HERE / "results" / f"quality-{options.name}.json"
    if target.exists() and not (options.overwrite or options.add):
        raise SystemExit(f"{target} exists; choose another --name, --overwrite or --add")
    path = options.model or Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    model_file = open_model(str(path))
    pieces = cut_texts(model_file, options.texts, options.piece_tokens)
    folder = Path(tempfile.gettempdir()) / "headway-quality"
    folder.mkdir(mode=0o700, exist_ok=True)
    reference, said = the_reference(model_file, pieces, folder)
    facts = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "machine": machine(),
        "versions": versions() | {"numba": version("numba")},
        "model": {"file": path.name, "bytes": path.stat().st_size, "name": model_file.card.name},
        "command": plain([sys.executable, "benchmarks/quality.py", *sys.argv[1:]]),
        "texts": digests(options.texts),
        "reference": said,
    }
    results = kept_results(target, options) if options.add else []
    print_row({key: key for key, _, _ in COLUMNS}, plain_text=True)
    for spec in options.candidates or FORMS:
        results = [each for each in results if each["candidate"] != spec]
        results.append(result_of(spec, path, pieces, reference, folder))
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(facts | {"candidates": results}, indent=1) + "\n")
    print(f"wrote {target}")
    return 0


def result_of(
    spec: str, path: Path, pieces: Sequence[Piece], reference: Reference, folder: Path
) -> dict[str, Any]:
    """Measure and print one candidate."""
    began = time.monotonic()
    figures, description = measure(spec, path, pieces, reference, folder)
    took = time.monotonic() - began
    print(f"{spec}: {description}, {took:.0f} s", file=sys.stderr)
    for name, each in figures.items():
        print_row({"candidate": spec, "text": name, **each.as_dict()})
    return {
        "candidate": spec,
        "description": description,
        "commit": commit(),
        "took_s": took,
        "texts": {name: each.as_dict() for name, each in figures.items()},
    }


def kept_results(target: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Candidates of earlier runs on the same texts; none when there was no run."""
    if not target.exists():
        return []
    earlier = json.loads(target.read_text())
    if earlier["texts"] != digests(options.texts):
        raise SystemExit(f"{target} is of other texts; choose another --name or --overwrite")
    found: list[dict[str, Any]] = earlier["candidates"]
    return found


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument(
        "--candidate", dest="candidates", action="append", metavar="FORM/EXECUTOR",
        help=f"may be given several times (default: {' '.join(FORMS)})",
    )  # fmt: skip
    parser.add_argument("--piece-tokens", type=int, default=512, help="of each sequence")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument(
        "--add", action="store_true", help="to the candidates that the file holds; replaces equals"
    )
    parser.add_argument(
        "texts", nargs="*", type=Path, default=sorted((HERE / "texts").glob("*.txt"))
    )
    return parser.parse_args()


def cut_texts(model_file: ModelFile, paths: Sequence[Path], size: int) -> list[Piece]:
    """The files as sequences of at most `size` tokens."""
    tokenizer = build_tokenizer(model_file)
    pieces = []
    for path in paths:
        ids = tokenizer.encode(path.read_text(), add_special=True, parse_special=False)
        cut = [ids[start : start + size] for start in range(0, len(ids), size)]
        pieces += [Piece(path.stem, each) for each in cut if len(each) >= 2]
    if not pieces:
        raise SystemExit("the texts have no tokens; give others")
    return pieces


def the_reference(
    model_file: ModelFile, pieces: Sequence[Piece], folder: Path
) -> tuple[Reference, str]:
    """torch's float32 logits, from an earlier run where there was one."""
    state = blake2b(Path(model_file.path).read_bytes(), digest_size=12)
    state.update(json.dumps([piece.ids for piece in pieces]).encode())
    state.update(version("torch").encode())
    held = Reference(folder / f"{state.hexdigest()}.f32", pieces, model_file.card.vocab_size)
    if not held.is_there:
        began = time.monotonic()
        built = build_torch(model_file, make_space(pieces), {"dtype": "float32"})
        try:
            held.fill(logits_of(built, piece) for piece in pieces)
        finally:
            built.executor.close()
        print(f"reference: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return held, "torch, float32 weights and KV, on the same weights"


def measure(
    spec: str, path: Path, pieces: Sequence[Piece], reference: Reference, folder: Path
) -> tuple[dict[str, Divergence], str]:
    """Figures of each text and of all, and what the candidate says of itself."""
    form, _, executor = spec.partition("/")
    if form != "file":
        is_float = form == "float"
        file = folder / f"{path.stem}.{form}{SPREAD if is_float else ''}.gguf"
        if not file.exists():
            write_form(path, file, "BF16" if is_float else form, off_grid=is_float)
        path = file
    built = build(open_model(str(path)), executor, make_space(pieces))
    found: dict[str, list[Positions]] = {}
    try:
        for index, piece in enumerate(pieces):
            ours, theirs = log_softmax(reference.of(index)), log_softmax(logits_of(built, piece))
            compared = compare(ours, theirs, np.array(piece.targets))
            found.setdefault(piece.text, []).append(compared)
    finally:
        built.executor.close()
    figures = {name: summarise(join(parts)) for name, parts in found.items()}
    if len(figures) > 1:
        figures["all"] = summarise(join([part for parts in found.values() for part in parts]))
    return figures, built.description


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


def make_space(pieces: Sequence[Piece]) -> Space:
    """Room for the longest piece, in scattered blocks."""
    length = max(len(piece.ids) for piece in pieces)
    width = blocks_for(length, BLOCK_SIZE)
    engine = ResolvedEngine(
        max_model_len=width * BLOCK_SIZE,
        max_num_seqs=1,
        max_num_batched_tokens=width * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        num_blocks=2 * width,
        enable_prefix_caching=False,
        max_waiting_requests=1,
        max_waiting_tokens=length,
    )
    return Space(engine, array("i", random.Random(1).sample(range(2 * width), width)), width)


def logits_of(built: Built, piece: Piece) -> Float32s:
    """Logits [len(ids) - 1, V] of what follows each token but the last, in one chunk."""
    count = len(piece.targets)
    plan = StepPlan(
        step=0,
        tables=array("i", [0]),
        starts=array("i", [0]),
        num_tokens=array("i", [count]),
        token_ids=array("i", piece.ids[:count]),
        sequence_ids=(0,),
        scores=(ScoreWork(0, array("i", piece.targets), 0),),
    )
    with tapped(built.module) as taken:
        built.executor.submit(plan)
        built.executor.collect()
    found = np.concatenate(taken)
    if len(found) != count or not np.isfinite(found).all():
        raise SystemExit(f"{piece.text}: logits are missing or not finite")
    return found


@contextmanager
def tapped(module: Any) -> Iterator[list[Float32s]]:
    """Copies of the logits that an executor would make log-probabilities of."""
    taken: list[Float32s] = []

    def take(logits: Any, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
        taken.append(np.from_dlpack(logits).copy())
        return []

    usual = module.score_tokens
    module.score_tokens = take
    try:
        yield taken
    finally:
        module.score_tokens = usual


def log_softmax(logits: Float32s) -> Float32s:
    """Log-probabilities of each row, in float32 with a float64 sum; overwrites its argument."""
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(
        np.float32
    )
    return logits


def digests(texts: Sequence[Path]) -> dict[str, str]:
    """A short name of each text's bytes."""
    return {each.name: blake2b(each.read_bytes(), digest_size=8).hexdigest() for each in texts}


def print_row(values: dict[str, Any], *, plain_text: bool = False) -> None:
    """One line of the table; names left, figures right."""
    cells = []
    for key, width, form in COLUMNS:
        text = str(values[key]) if plain_text else form.format(values[key])
        cells.append(text.ljust(width) if key in ("candidate", "text") else text.rjust(width))
    print("  ".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
