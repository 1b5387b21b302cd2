"""Small random Llamas, written to GGUF as the usual converter writes them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

from tests.blocks import quantized as quantized_rows

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TinyLlama:
    """Shape and seed of a model that computes in milliseconds."""

    num_layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    rope_theta: float = 10_000.0
    vocab_size: int = 257
    context_length: int = 256
    norm_eps: float = 1e-5
    is_tied: bool = True
    has_bias: bool = False
    seed: int = 0
    metadata: Mapping[str, str | float | int] = field(default_factory=dict)

    def weights(self) -> dict[str, Floats]:
        """Random weights under GGUF's names, but in the order that they are computed with.

        Scaled so that the logits' spread is a few units: a flat distribution hides errors.
        """
        rng = np.random.default_rng(self.seed)

        def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
            values = rng.normal(size=(rows, columns)) * scale / np.sqrt(columns)
            return np.asarray(values, dtype=np.float32)

        def norm() -> Floats:
            return (1.0 + 0.1 * rng.normal(size=self.hidden_size)).astype(np.float32)

        hidden, inner = self.hidden_size, self.intermediate_size
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        found = {
            "token_embd.weight": matrix(self.vocab_size, hidden, 3.0),
            "output_norm.weight": norm(),
        }
        if not self.is_tied:
            found["output.weight"] = matrix(self.vocab_size, hidden, 3.0)
        sizes = {
            "attn_q": (q_size, hidden),
            "attn_k": (kv_size, hidden),
            "attn_v": (kv_size, hidden),
            "attn_output": (hidden, q_size),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        for layer in range(self.num_layers):
            found[f"blk.{layer}.attn_norm.weight"] = norm()
            found[f"blk.{layer}.ffn_norm.weight"] = norm()
            for stem, (rows, columns) in sizes.items():
                found[f"blk.{layer}.{stem}.weight"] = matrix(rows, columns)
                if self.has_bias and stem.startswith("attn"):
                    found[f"blk.{layer}.{stem}.bias"] = matrix(1, rows, 1.0)[0]
        return found


def permute(rows: Floats, num_heads: int) -> Floats:
    """Halves of each head to neighbouring pairs, as converters to GGUF do for q and k."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    tiny: TinyLlama,
    *,
    quantized: str = "F32",
    formats: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    replaced: Mapping[str, Floats] | None = None,
) -> Path:
    """Write the model; matrices in the named format, norms in F32.

    formats   of single tensors, by name
    without   names of tensors to leave out
    replaced  tensors to add, or to write instead of the model's own
    """
    writer = GGUFWriter(str(path), "llama")
    _write_metadata(writer, tiny)
    tensors = {name: _stored(tiny, name, array) for name, array in tiny.weights().items()}
    tensors |= replaced or {}
    for name, array in tensors.items():
        if name in without:
            continue
        usual = quantized if array.ndim > 1 else "F32"
        kind = GGMLQuantizationType[(formats or {}).get(name, usual)]
        raw = np.ascontiguousarray(array)
        if kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            writer.add_tensor(name, quantized_rows(kind.name, raw), raw_dtype=kind)
        else:
            writer.add_tensor(name, raw.astype(np.float16 if kind.name == "F16" else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored(tiny: TinyLlama, name: str, array: Floats) -> Floats:
    if ".attn_q." in name:
        return permute(array, tiny.num_heads)
    if ".attn_k." in name:
        return permute(array, tiny.num_kv_heads)
    return array


def _write_metadata(writer: Any, tiny: TinyLlama) -> None:
    writer.add_block_count(tiny.num_layers)
    writer.add_context_length(tiny.context_length)
    writer.add_embedding_length(tiny.hidden_size)
    writer.add_feed_forward_length(tiny.intermediate_size)
    writer.add_head_count(tiny.num_heads)
    writer.add_head_count_kv(tiny.num_kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_value_length(tiny.head_dim)
    writer.add_rope_dimension_count(tiny.head_dim)
    writer.add_rope_freq_base(tiny.rope_theta)
    writer.add_layer_norm_rms_eps(tiny.norm_eps)
    writer.add_vocab_size(tiny.vocab_size)
    for key, value in tiny.metadata.items():
        add: Callable[[str, Any], None] = {
            str: writer.add_string, int: writer.add_uint32, float: writer.add_float32
        }[type(value)]  # fmt: skip
        add(key, value)
