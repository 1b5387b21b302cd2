"""Tensors as they lie on disk, checked against those wanted, and read."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headway.compute.formats.blocks import EXPAND, expand
from headway.compute.formats.permute import unpermute_rows
from headway.compute.formats.weight_file import Bytes, Floats, WantedTensor
from headway.core.base.errors import ModelFileError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file.

    path   of the file that holds it
    shape  (outputs, inputs) for a matrix
    data   its bytes, flat; a view of the file's pages
    """

    path: str
    shape: tuple[int, ...]
    type_name: str
    data: Bytes


class StoredTensors:
    """A `WeightFile`: those tensors of a file, or of a folder, that are wanted."""

    def __init__(
        self,
        path: str,
        found: Mapping[str, StoredTensor],
        specs: Iterable[WantedTensor],
        rope_dim: int,
    ) -> None:
        """Check all.

        Raises ModelFileError, naming the file and the tensor, when one is missing, of another
        shape or of an unsupported type. Tensors that no spec names give one warning and are
        ignored.
        """
        self._rope_dim = rope_dim
        wanted = set()
        for spec in specs:
            wanted.add(spec.name)
            if spec.name in found:
                _check(spec, found[spec.name])
            elif not spec.is_optional:
                raise ModelFileError(
                    path, f"tensor {spec.name} is missing; the model is incomplete"
                )
        unknown = sorted(found.keys() - wanted)
        if unknown:
            named = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" * (len(unknown) > 8))
            log.warning("unknown_tensors_ignored: %s", named, extra={"model_path": path})
        self._tensors = {name: tensor for name, tensor in found.items() if name in wanted}

    def __contains__(self, spec: WantedTensor) -> bool:
        """Whether there is such a tensor."""
        return spec.name in self._tensors

    def num_bytes(self, spec: WantedTensor) -> int:
        """Bytes of these rows on disk; 0 for a tensor that the file does not hold."""
        return self._rows(spec).nbytes if spec in self else 0

    def type_name(self, spec: WantedTensor) -> str:
        """Format on disk, e.g. "Q4_1"."""
        return self._tensors[spec.name].type_name

    def read(self, spec: WantedTensor) -> Floats:
        """The rows in float32 as computed with; a new, writable array."""
        values = expand(self.type_name(spec), self._rows(spec)).reshape(spec.shape)
        if spec.added:
            values += np.float32(spec.added)
        if spec.rotated_heads:
            values = unpermute_rows(values, spec.rotated_heads, self._rope_dim)
        return values

    def read_blocks(self, spec: WantedTensor) -> Bytes:
        """The rows as the file has them; see `WeightFile`."""
        blocks = self._rows(spec)
        if spec.rotated_heads:
            blocks = unpermute_rows(blocks, spec.rotated_heads, self._rope_dim)
        return blocks

    def _rows(self, spec: WantedTensor) -> Bytes:
        """[rows, bytes of a row]; a vector is one row."""
        data = self._tensors[spec.name].data
        if spec.shape != spec.file_shape:
            by_row = data.reshape(spec.file_shape[0], -1)
            data = by_row[spec.first_row : spec.first_row + spec.shape[0]]
        return data.reshape(spec.shape[0] if len(spec.shape) > 1 else 1, -1)


def _check(spec: WantedTensor, tensor: StoredTensor) -> None:
    if tensor.shape != spec.file_shape:
        raise ModelFileError(
            tensor.path,
            f"tensor {spec.name} has shape {tensor.shape}, but the model needs {spec.file_shape}",
        )
    if tensor.type_name not in EXPAND:
        raise ModelFileError(
            tensor.path,
            f"tensor {spec.name} is of type {tensor.type_name}, which is not supported; "
            f"use a file of {', '.join(EXPAND)}",
        )
