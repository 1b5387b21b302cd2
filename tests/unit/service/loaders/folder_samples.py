"""A tiny Llama as a folder, written piece by piece."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tests.unit.service.loaders.samples import byte_alphabet

HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 16, 4, 2, 2, 32
SPECIALS = ("<s>", "</s>", "<|user|>")
ROWS = 262  # of the embedding; the tokenizer has three less
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": ROWS,
    "tie_word_embeddings": True,
}
Arrays = dict[str, npt.NDArray[np.float32]]


def weights(rows: int = ROWS) -> Arrays:
    """Zeros, under the names of a tied Llama."""
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{stem}.weight": shape
            for stem, shape in {
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HIDDEN, HIDDEN),
                "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HIDDEN),
                "mlp.gate_proj": (INNER, HIDDEN),
                "mlp.up_proj": (INNER, HIDDEN),
                "mlp.down_proj": (HIDDEN, INNER),
            }.items()
        }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def shards(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """What is outside the last layer, and the last layer."""
    last = f".{LAYERS - 1}."
    first = {name: array for name, array in arrays.items() if last not in name}
    return first, {name: array for name, array in arrays.items() if last in name}


def tokenizer() -> dict[str, Any]:
    """Bytes, one merge, and the specials first."""
    words = [*SPECIALS, *byte_alphabet(), "he"]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": text, "special": True, "rstrip": text == "<|user|>"}
            for index, text in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {text: index for index, text in enumerate(words)},
            "merges": [["h", "e"]],
        },
    }


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """One JSON file."""
    path.write_text(json.dumps(values))


def write_folder(folder: Path, *, rows: int = ROWS, **config: Any) -> Path:
    """A whole model in two shards; `config` replaces values of config.json, None removes one."""
    folder.mkdir(exist_ok=True)
    values = {
        key: value
        for key, value in {**CONFIG, "vocab_size": rows, **config}.items()
        if value is not None
    }
    write_json(folder / "config.json", values)
    write_json(folder / "tokenizer.json", tokenizer())
    write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    where: dict[str, str] = {}
    for number, arrays in enumerate(shards(weights(rows)), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(arrays, folder / name)
        where |= dict.fromkeys(arrays, name)
    write_json(folder / "model.safetensors.index.json", {"weight_map": where})
    return folder
