#!/usr/bin/env python3
"""Serves transformers itself over HTTP, for side-by-side runs.

    python serve_transformers.py HF_DIR PORT --mode cb|generate [--dtype bfloat16|float32]

'cb' is its continuous batching manager; 'generate' answers one request after
the other with `model.generate`.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from pathlib import Path

import torch
from openai_stub import Emit, serve
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.streamers import BaseStreamer


class Pieces:
    """Turns one answer's token ids into text and hands it on."""

    def __init__(self, tokenizer: Tokenizer, emit: Emit) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._emit = emit
        self._seen = 0

    def take(self, all_ids: list[int]) -> None:
        """Hand on what is new of all ids so far."""
        new_ids = all_ids[self._seen :]
        if new_ids:
            self._seen = len(all_ids)
            self.add(new_ids)

    def add(self, new_ids: list[int]) -> None:
        """Hand on new ids as text."""
        text = "".join(self._stream.step(self._tokenizer, i) or "" for i in new_ids)
        self._emit(text, len(new_ids))


class ContinuousBatchingEngine:
    """transformers' own continuous batching manager."""

    def __init__(
        self, model: torch.nn.Module, tokenizer: Tokenizer, options: argparse.Namespace
    ) -> None:
        self._tokenizer = tokenizer
        self._eos = model.generation_config.eos_token_id
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, max_new_tokens=256, eos_token_id=self._eos, pad_token_id=self._eos
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=options.page_size,
                num_blocks=options.cache_tokens // options.page_size,
                max_batch_tokens=options.batched_tokens,
            ),
        )
        self._manager.start()
        self._count = 0

    def submit(self, prompt: str, max_tokens: int, ignore_eos: bool, emit: Emit) -> None:
        """Start one request; pieces go to `emit` from another thread."""
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        pieces = Pieces(self._tokenizer, emit)
        self._count += 1
        request_id = f"request-{self._count}"

        def on_result(result) -> None:  # on the event loop
            pieces.take(list(result.generated_tokens))
            if result.is_finished():
                emit(None, len(ids))

        self._manager.register_result_handler(request_id, on_result)
        self._manager.add_request(
            ids,
            request_id=request_id,
            max_new_tokens=max_tokens,
            streaming=True,
            eos_token_id=-1 if ignore_eos else self._eos,
        )


class EmitStreamer(BaseStreamer):
    """Hands on what `generate` produces, without the prompt."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Take the next ids; the first call has the prompt."""
        if self._prompt_seen:
            self._pieces.add(value.flatten().tolist())
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""


class GenerateEngine:
    """One request at a time: what a plain `generate` in a queue would do."""

    def __init__(self, model: torch.nn.Module, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._incoming: queue.SimpleQueue[tuple[str, int, bool, Emit]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, prompt: str, max_tokens: int, ignore_eos: bool, emit: Emit) -> None:
        """Start one request; pieces go to `emit` from another thread."""
        self._incoming.put((prompt, max_tokens, ignore_eos, emit))

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            prompt, max_tokens, ignore_eos, emit = self._incoming.get()
            ids = torch.tensor([self._tokenizer.encode(prompt, add_special_tokens=False).ids])
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens if ignore_eos else None,
                do_sample=False,
                streamer=EmitStreamer(Pieces(self._tokenizer, emit)),
            )
            emit(None, ids.shape[1])


@torch.inference_mode()
def score(model: torch.nn.Module, texts: dict[str, list[int]]) -> dict[str, list[float]]:
    """Log-probability of each token but the first, from those before it."""
    found = {}
    for name, ids in texts.items():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
        scores = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
        found[name] = scores.flatten().tolist()
    return found


def main() -> None:
    """Load the model and serve it until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--mode", choices=("cb", "generate"), default="cb")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page-size", type=int, default=32)
    parser.add_argument("--cache-tokens", type=int, default=69632)
    parser.add_argument("--batched-tokens", type=int, default=512)
    parser.add_argument("--score", type=Path, help="JSON of token ids to score; nothing is served")
    parser.add_argument("--score-output", type=Path)
    options = parser.parse_args()
    if options.score:
        options.mode = "generate"  # plain attention; the weights are the same
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(
        options.model,
        dtype=getattr(torch, options.dtype),
        attn_implementation="paged|sdpa" if options.mode == "cb" else "sdpa",
    ).eval()
    if options.score:
        scores = score(model, json.loads(options.score.read_text()))
        options.score_output.write_text(json.dumps(scores))
        return
    tokenizer = Tokenizer.from_file(f"{options.model}/tokenizer.json")
    if options.mode == "cb":
        serve(ContinuousBatchingEngine(model, tokenizer, options), options.port)
    else:
        serve(GenerateEngine(model, tokenizer), options.port)


if __name__ == "__main__":
    main()
