"""Model files with random weights in a real model's shape, for timing only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

from headway.core.base.model_card import ModelCard

BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34}
SCALE = 0.01  # keeps every activation finite and of ordinary size


class Shape(NamedTuple):
    """A decoder's sizes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    context: int


SHAPES = {"Qwen2.5-1.5B shape": Shape(28, 1536, 12, 2, 128, 8960, 151936, 32768)}


def write_random_model(name: str, folder: Path) -> ModelCard:
    """The file, written once, and its card: Q4_1 layers, a tied Q8_0 embedding.

    Every matrix of one shape has the same numbers, so that writing needs little memory; they
    are read and packed one by one, as those of any file.
    """
    shape = SHAPES[name]
    path = folder / f"{name.replace(' ', '-')}-random-Q4_1.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        _write(draft, shape)
        draft.replace(path)
    return ModelCard(
        path=str(path),
        name=name,
        architecture="llama",
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_dim=shape.head_dim,
        rope_theta=1e6,
        vocab_size=shape.vocabulary,
        context_length=shape.context,
        norm_eps=1e-6,
    )


def random_blocks(type_name: str, outputs: int, inputs: int) -> npt.NDArray[np.uint8]:
    """[outputs, bytes of a row]: GGUF's blocks with random values and one scale."""
    rng = np.random.default_rng(outputs + inputs)
    blocks = rng.integers(0, 256, (outputs, inputs // 32, BLOCK_BYTES[type_name]), dtype=np.uint8)
    if type_name == "Q4_1":  # value = d * nibble + m, symmetric about 0
        head = np.array([SCALE, -7.5 * SCALE], np.float16)
    else:
        head = np.array([SCALE / 16], np.float16)
    blocks[..., : head.nbytes] = head.view(np.uint8)
    return blocks.reshape(outputs, -1)


def _write(path: Path, shape: Shape) -> None:
    writer = GGUFWriter(str(path), "llama")
    ones = np.ones(shape.hidden, np.float32)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrices = {
        "attn_q": (queries, shape.hidden),
        "attn_k": (keys, shape.hidden),
        "attn_v": (keys, shape.hidden),
        "attn_output": (shape.hidden, queries),
        "ffn_gate": (shape.inner, shape.hidden),
        "ffn_up": (shape.inner, shape.hidden),
        "ffn_down": (shape.hidden, shape.inner),
    }
    made = {sizes: random_blocks("Q4_1", *sizes) for sizes in set(matrices.values())}
    embedding = random_blocks("Q8_0", shape.vocabulary, shape.hidden)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(shape.layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
        for stem, sizes in matrices.items():
            writer.add_tensor(
                f"blk.{layer}.{stem}.weight", made[sizes], raw_dtype=GGMLQuantizationType.Q4_1
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
