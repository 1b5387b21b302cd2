#!/usr/bin/env python3
"""Does the torch executor compute on this GPU what it computes on the CPU, and how fast?

    python -m benchmarks.gpu_check --json benchmarks/results/gpu-check.json

Two questions, in under five minutes, on the built-in model or on --model:

parity  the logits of one text, at every position, prompt in chunks and then token by token:
        CUDA in float32 and in bfloat16 against the CPU in float32
rate    tokens a second of batches of greedy answers, through the engine, without a server

Exit status: 0 all within the tolerances, 1 something is not, 2 the model cannot be had,
3 there is no CUDA device (nothing is measured and nothing written), 4 five minutes were not
enough. `--device cpu` rehearses the script where there is no GPU; its file says so, and its
figures are none of a GPU's.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from headway.app.bench_latency import make_batches
from headway.app.bench_model import load_here, open_here, random_token_ids, write_json
from headway.app.bench_offline import run_batches
from headway.app.bench_show import machine
from headway.app.settings import Settings, merge
from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import DeviceChoice, DtypeChoice, ExecutorSettings
from headway.core.base.errors import StartError
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe.clock import SystemClock
from tests.parity.paged import paged_logits

OK, DIFFERS, NO_MODEL, NO_CUDA, TOO_LONG = range(5)
LIMIT_S = 300
TEXT = Path(__file__).parent / "texts" / "prose.txt"
PROMPT, CHUNK, TOTAL = 224, 96, 256  # tokens of the text: by chunks, of this size, in all
# Root mean square of the difference of the logits over that of the logits, all positions together.
# bfloat16 on a CPU has about 0.01 with the built-in model, five times that at a single position.
TOLERANCE = {DtypeChoice.FLOAT32: 1e-4, DtypeChoice.BFLOAT16: 3e-2}
BATCHES = (1, 64)
INPUT_LEN = OUTPUT_LEN = 128
ITERATIONS, WARM_UPS = 3, 1


def main(arguments: list[str] | None = None) -> int:
    """Run both parts; the exit status."""
    options = _parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_check: torch finds no CUDA device here (torch.cuda.is_available() is false); "
            "nothing was measured",
            file=sys.stderr,
        )
        return NO_CUDA
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    began = time.monotonic()
    try:
        settings = _settings(options)
        model_file = open_here(settings)
        parity = compare(model_file, DeviceChoice(options.device), options.positions)
        rates = [rate(settings, model_file, size, options) for size in options.batches]
    except StartError as error:
        print(f"gpu_check: {' '.join(error.message.split())}", file=sys.stderr)
        return NO_MODEL
    except TimeoutError:
        print(f"gpu_check: not done after {LIMIT_S} s; nothing was written", file=sys.stderr)
        return TOO_LONG
    finally:
        signal.alarm(0)
    is_right = all(each["passed"] for each in parity)
    result = {
        "command": " ".join(["python -m benchmarks.gpu_check", *(arguments or sys.argv[1:])]),
        "is_rehearsal_without_gpu": options.device == "cpu",
        "machine": machine() | device_facts(options.device),
        "model": model_file.card.name,
        "parity_against_cpu_float32": parity,
        "rates": rates,
        "passed": is_right,
        "seconds": round(time.monotonic() - began, 1),
    }
    for line in (*parity, *rates):
        print(line)
    write_json(options.json, result)
    return OK if is_right else DIFFERS


def compare(model_file: ModelFile, device: DeviceChoice, positions: int) -> list[dict[str, Any]]:
    """Figures of each type of numbers on the device, against float32 on the CPU."""
    tokenizer = build_tokenizer(model_file)
    ids = list(tokenizer.encode(TEXT.read_text(), add_special=True, parse_special=False))[
        :positions
    ]
    prompt = len(ids) * PROMPT // TOTAL
    full, rest = divmod(prompt, CHUNK)
    chunks = [CHUNK] * full + [rest] * bool(rest) + [1] * (len(ids) - prompt)
    want = logits_of(model_file, DeviceChoice.CPU, DtypeChoice.FLOAT32, ids, chunks)
    found = []
    for dtype, most in TOLERANCE.items():
        got = logits_of(model_file, device, dtype, ids, chunks)
        found.append({"dtype": str(dtype), "tolerance": most} | differences(got, want, most))
    return found


def logits_of(
    model_file: ModelFile,
    device: DeviceChoice,
    dtype: DtypeChoice,
    ids: list[int],
    chunks: list[int],
) -> torch.Tensor:
    """[len(ids), V] float32 on the CPU."""
    settings = ExecutorSettings(device=device, dtype=dtype)
    model = load_model(model_file.card, settings, lambda done, total: None)
    return paged_logits(model, ids, chunks, block_size=16).float().cpu()


def differences(got: torch.Tensor, want: torch.Tensor, most: float) -> dict[str, Any]:
    """How far two sets of logits [positions, V] are apart."""
    error = (got - want).square().mean(-1).sqrt() / want.square().mean(-1).sqrt()
    mine, theirs = got.log_softmax(-1), want.log_softmax(-1)
    divergence = (theirs.exp() * (theirs - mine)).sum(-1)
    whole = ((got - want).square().mean().sqrt() / want.square().mean().sqrt()).item()
    return {
        "positions": len(want),
        "relative_rms": whole,
        "relative_rms_worst_position": error.max().item(),
        "kl_mean_nats": divergence.mean().item(),
        "top1_equal": (got.argmax(-1) == want.argmax(-1)).float().mean().item(),
        # A NaN is in no order to anything, and so does not pass.
        "passed": whole <= most,
    }


def rate(
    settings: Settings, model_file: ModelFile, size: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Output tokens a second of one batch size; whole batches, their prefill in it."""
    loaded = load_here(settings, model_file, (size, size * INPUT_LEN))
    shape = argparse.Namespace(
        input_len=INPUT_LEN,
        output_len=options.output_len,
        batch_size=size,
        num_iters=ITERATIONS,
        num_iters_warmup=WARM_UPS,
    )
    batches = make_batches(shape, random_token_ids(model_file.card.vocab_size))
    took = sorted(
        result.seconds for result in run_batches(loaded, SystemClock(), batches)[WARM_UPS:]
    )
    tokens = size * options.output_len
    return {
        "batch": size,
        "input_len": INPUT_LEN,
        "output_len": options.output_len,
        "executor": loaded.hello.executor,
        "dtype": loaded.hello.dtype,
        "seconds_of_each": [round(each, 4) for each in took],
        "output_tok_s_median": tokens / took[len(took) // 2],
    }


def device_facts(device: str) -> dict[str, Any]:
    """What computed."""
    facts: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": about.name,
            "gpu_bytes": about.total_memory,
            "gpu_capability": f"{about.major}.{about.minor}",
            "cuda": torch.version.cuda,
        }
    return facts


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        "device": options.device,
        "executor": "torch",
        "enable_prefix_caching": False,  # equal prompts again and again
        "log_level": "warning",
        "max_model_len": INPUT_LEN + max(OUTPUT_LEN, options.output_len),
    }
    return merge(given | ({"model": options.model} if options.model else {}), os.environ, None)


def _too_long(*_: object) -> None:
    raise TimeoutError


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="as for headway serve (default: the built-in model)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--positions", type=int, default=TOTAL, help="tokens compared")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--output-len", type=int, default=OUTPUT_LEN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
