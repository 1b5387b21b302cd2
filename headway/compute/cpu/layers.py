"""What layers have beside their matrices, as the compiled step finds it: vectors by address.

A row of the table describes one layer. An address of 0 says that the layer has no such thing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.arch.family import Part
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.norm import norm_factor, scale_row
from headway.compute.cpu.pack import COLUMNS, num_panels
from headway.compute.cpu.vector import add, load, store
from headway.core.base.model_card import ModelCard

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Key = tuple[int | None, Part]

# Columns of the table. WINDOW: positions that a token sees, 0: all; TABLE: of the rotation.
(
    WINDOW,
    TABLE,
    QUERY_NORM,
    KEY_NORM,
    POST_ATTENTION_NORM,
    POST_MLP_NORM,
) = range(6)
NORMS: Mapping[int, Part] = {
    QUERY_NORM: Part.QUERY_NORM,
    KEY_NORM: Part.KEY_NORM,
    POST_ATTENTION_NORM: Part.POST_ATTENTION_NORM,
    POST_MLP_NORM: Part.POST_MLP_NORM,
}


class Vectors:
    """Biases and norms by address; keeps their memory."""

    def __init__(self) -> None:
        self._kept: list[Floats] = []

    def __iter__(self) -> Iterator[Floats]:
        """All that were added."""
        return iter(self._kept)

    @property
    def num_bytes(self) -> int:
        """Of all."""
        return sum(each.nbytes for each in self._kept)

    def add(self, values: Floats) -> int:
        """Keep a vector; returns its address."""
        self._kept.append(np.ascontiguousarray(values, np.float32))
        return int(self._kept[-1].ctypes.data)

    def add_bias(self, parts: Sequence[tuple[Floats | None, int]]) -> int:
        """Biases of matrices that are packed as one, zeros for those without; 0 if all are.

        parts  of each matrix: its bias, and how many outputs it has
        """
        if all(values is None for values, _ in parts):
            return 0
        outputs = sum(size for _, size in parts)
        joined = np.zeros(num_panels(outputs) * COLUMNS, np.float32)
        begin = 0
        for values, size in parts:
            if values is not None:
                joined[begin : begin + size] = values
            begin += size
        return self.add(joined)


def describe_layers(
    card: ModelCard, read: Callable[[Key], Floats | None], vectors: Vectors
) -> Ints:
    """The table [L, 6] of all layers.

    read  gives a norm's weight, or None where the layer has none
    """
    table = np.zeros((card.num_layers, 2 + len(NORMS)), np.int64)
    for layer in range(card.num_layers):
        table[layer, WINDOW] = card.window_of(layer)
        table[layer, TABLE] = int(card.is_local(layer))
        for column, part in NORMS.items():
            weight = read((layer, part))
            if weight is not None:
                table[layer, column] = vectors.add(weight)
    return table


@kernel
def add_bias(bias: int, rows: int, out: int, ldo: int, first: int, end: int) -> None:
    """out += bias in the columns of panels [first, end); all arguments are integers.

    bias  address of float32, as many as there are columns
    out   address of float32 [rows, ldo]
    """
    for row in range(rows):
        at = out + 4 * row * ldo
        for column in range(first * COLUMNS, end * COLUMNS, 16):
            place = at + 4 * column
            store(place, add(load(place), load(bias + 4 * column)))


@kernel
def normalise_in_place(x: int, size: int, rows: int, ldx: int, weight: int, eps: Any) -> None:
    """The norm of each of some rows of float32 [rows, ldx >= size]; all but eps are integers."""
    for row in range(rows):
        at = x + 4 * row * ldx
        scale_row(at, norm_factor(at, size, eps), weight, size, at)
