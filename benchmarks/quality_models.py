"""Other forms of a GGUF file's weights, for `quality.py`: the same model, to float32's errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

Floats = npt.NDArray[np.float32]
STEMS = (
    *("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_gate", "ffn_up", "ffn_down"),
)
# Channels are scaled by e**-0.1 ... e**0.1: off the grid of 15 steps, but their inputs, whose
# groups share a scale too, stay nearly as they were.
SPREAD = 0.1


def write_form(source: Path, target: Path, form: str, *, off_grid: bool) -> None:
    """The model with all its matrices in one type.

    form      "Q8_0", "BF16", ...
    off_grid  scale channels at random, and back in the matrix that reads them. The model
              stays the same, but its weights are no longer those that 4 bits can hold, so
              that coding them again costs what it costs for weights that were never coded
    """
    reader = GGUFReader(str(source))
    tensors = {
        each.name: np.array(dequantize(each.data, each.tensor_type), np.float32)
        for each in reader.tensors
    }
    if off_grid:
        _scale_channels(tensors, reader)
    writer = GGUFWriter(str(target), "llama")
    _copy_metadata(reader, writer)
    for name, values in tensors.items():
        kind = GGMLQuantizationType[form if values.ndim > 1 else "F32"]
        raw = np.ascontiguousarray(values)
        if kind is GGMLQuantizationType.F32:
            writer.add_tensor(name, raw)
        else:
            writer.add_tensor(name, quantize(raw, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _scale_channels(tensors: dict[str, Floats], reader: GGUFReader) -> None:
    rng = np.random.default_rng(0)

    def factors(size: int) -> Floats:
        return np.exp(rng.uniform(-SPREAD, SPREAD, size)).astype(np.float32)

    def number(key: str) -> int:
        return int(reader.fields[f"llama.{key}"].contents())

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    for layer in range(number("block_count")):
        part = {stem: f"blk.{layer}.{stem}.weight" for stem in STEMS}
        for norm, readers in (
            ("attn_norm", ("attn_q", "attn_k", "attn_v")),
            ("ffn_norm", ("ffn_gate", "ffn_up")),
        ):
            scale = factors(len(tensors[part[norm]]))
            tensors[part[norm]] *= scale
            for stem in readers:
                tensors[part[stem]] /= scale
        scale = factors(len(tensors[part["ffn_up"]]))
        tensors[part["ffn_up"]] *= scale[:, None]
        tensors[part["ffn_down"]] /= scale
        scale = factors(len(tensors[part["attn_v"]]))
        tensors[part["attn_v"]] *= scale[:, None]
        shared = np.repeat(scale.reshape(kv_heads, -1), heads // kv_heads, axis=0)
        tensors[part["attn_output"]] /= shared.reshape(-1)


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kinds: list[Any] = field.types
        item = kinds[-1] if kinds[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kinds[0], sub_type=item)
