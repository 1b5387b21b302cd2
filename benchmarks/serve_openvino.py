#!/usr/bin/env python3
"""Serves OpenVINO GenAI's continuous batching over HTTP, for side-by-side runs.

python serve_openvino.py IR_DIR TOKENIZER_JSON PORT [--precision bf16|f32]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from openai_stub import Emit, serve
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

BLOCK_TOKENS = 32  # of the CPU plugin's paged attention
FINISHED = {
    genai.GenerationStatus.FINISHED,
    genai.GenerationStatus.IGNORED,
    genai.GenerationStatus.STOP,
    genai.GenerationStatus.CANCEL,
}


class OpenVinoEngine:
    """OpenVINO GenAI's continuous batching behind the stub."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._tokenizer = Tokenizer.from_file(options.tokenizer)
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = options.kv_tokens // BLOCK_TOKENS
        scheduler.max_num_batched_tokens = options.batched_tokens
        scheduler.enable_prefix_caching = not options.score  # each position is wanted
        scheduler.dynamic_split_fuse = True
        properties = {
            "INFERENCE_NUM_THREADS": options.threads,
            "INFERENCE_PRECISION_HINT": options.precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if options.kv_precision:
            properties["KV_CACHE_PRECISION"] = options.kv_precision
        self._pipeline = genai.ContinuousBatchingPipeline(
            options.model, scheduler, "CPU", properties
        )
        self._incoming: queue.SimpleQueue[tuple[str, int, bool, Emit]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, prompt: str, max_tokens: int, ignore_eos: bool, emit: Emit) -> None:
        """Hand one request to the engine's thread."""
        self._incoming.put((prompt, max_tokens, ignore_eos, emit))

    def score(self, texts: dict[str, list[int]]) -> dict[str, list[float]]:
        """Log-probability of each token but the first, from those before it."""
        return {name: self._scores(ids) for name, ids in texts.items()}

    def _scores(self, ids: list[int]) -> list[float]:
        config = genai.GenerationConfig(
            max_new_tokens=1, do_sample=False, ignore_eos=True, echo=True, logprobs=1
        )
        handle = self._pipeline.add_request(0, ov.Tensor(np.array([ids], dtype=np.int64)), config)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        (output,) = handle.read_all()
        return list(output.generated_log_probs)[1 : len(ids)]

    def _work(self) -> None:
        active: dict[int, tuple[genai.GenerationHandle, DecodeStream, Emit, int]] = {}
        next_id = 0
        while True:
            while not self._incoming.empty() or not active:
                prompt, max_tokens, ignore_eos, emit = self._incoming.get()
                ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
                config = genai.GenerationConfig(
                    max_new_tokens=max_tokens, do_sample=False, ignore_eos=ignore_eos
                )
                tensor = ov.Tensor(np.array([ids], dtype=np.int64))
                handle = self._pipeline.add_request(next_id, tensor, config)
                active[next_id] = (handle, DecodeStream(skip_special_tokens=False), emit, len(ids))
                next_id += 1
            self._pipeline.step()
            for request_id, (handle, stream, emit, prompt_tokens) in list(active.items()):
                finished = handle.get_status() in FINISHED
                while handle.can_read():
                    for output in handle.read().values():
                        ids = list(output.generated_ids)
                        text = "".join(stream.step(self._tokenizer, i) or "" for i in ids)
                        emit(text, len(ids))
                if finished:
                    emit(None, prompt_tokens)
                    del active[request_id]
            time.sleep(0)  # lets the HTTP thread run


def main() -> None:
    """Load the model and serve it until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("tokenizer")
    parser.add_argument("port", type=int)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "f32", "f16"))
    parser.add_argument("--kv-precision", help="e.g. u8, bf16 (default: OpenVINO's own choice)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-tokens", type=int, default=69632, help="room of the KV cache")
    parser.add_argument("--batched-tokens", type=int, default=256)
    parser.add_argument("--score", type=Path, help="JSON of token ids to score; nothing is served")
    parser.add_argument("--score-output", type=Path)
    options = parser.parse_args()
    engine = OpenVinoEngine(options)
    if options.score:
        scores = engine.score(json.loads(options.score.read_text()))
        options.score_output.write_text(json.dumps(scores))
        os._exit(0)  # the engine's thread waits for requests
    serve(engine, options.port)


if __name__ == "__main__":
    main()
