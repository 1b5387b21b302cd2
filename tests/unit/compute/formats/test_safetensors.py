"""Rows of tensors in safetensors files, as they are computed with."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from headway.compute.arch.family import Part, TensorSpec
from headway.compute.formats.safetensors import SafetensorsFolder


def spec(name: str, *shape: int, first_row: int = 0, file_rows: int = 0) -> TensorSpec:
    return TensorSpec(
        name=name, part=Part.QUERY, shape=shape, first_row=first_row, file_rows=file_rows
    )


def test_every_float_type_is_read_and_its_bytes_are_the_files_own(tmp_path: Path) -> None:
    values = torch.randn((3, 5), generator=torch.Generator().manual_seed(1))
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    stored = {name: values.to(dtype) for name, dtype in kinds.items()}
    save_file(stored, tmp_path / "model.safetensors")
    specs = {name: spec(name, 3, 5) for name in kinds}
    folder = SafetensorsFolder(str(tmp_path), specs.values())
    for name, tensor in stored.items():
        assert folder.type_name(specs[name]) == name
        assert folder.num_bytes(specs[name]) == tensor.nbytes
        assert np.array_equal(folder.read(specs[name]), tensor.float().numpy())
        raw = folder.read_blocks(specs[name])
        assert raw.tobytes() == tensor.view(torch.uint8).numpy().tobytes()


def test_parts_of_a_fused_tensor_are_its_rows(tmp_path: Path) -> None:
    values = torch.arange(20.0).reshape(10, 2)
    save_file({"w": values, "b": torch.arange(10.0)}, tmp_path / "model.safetensors")
    first, second = (
        spec("w", size, 2, first_row=at, file_rows=10) for at, size in ((0, 4), (4, 6))
    )
    bias = spec("b", 6, first_row=4, file_rows=10)
    folder = SafetensorsFolder(str(tmp_path), [first, second, bias])
    assert np.array_equal(folder.read(first), values[:4].numpy())
    assert np.array_equal(folder.read(second), values[4:].numpy())
    assert folder.read(bias).tolist() == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert [folder.num_bytes(each) for each in (first, second, bias)] == [32, 48, 24]


def test_what_is_added_is_added_when_it_is_read(tmp_path: Path) -> None:
    save_file({"norm": torch.tensor([0.5, -1.0])}, tmp_path / "model.safetensors")
    norm = TensorSpec(name="norm", part=Part.MLP_NORM, shape=(2,), added=1.0)
    assert SafetensorsFolder(str(tmp_path), [norm]).read(norm).tolist() == [1.5, 0.0]
