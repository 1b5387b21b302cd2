"""What executors ask of a model's weights on disk."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class WantedTensor(Protocol):
    """What is asked of a file; the families' `TensorSpec` is one, and says more of each field."""

    @property
    def name(self) -> str:
        """As in the file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs) for a matrix."""
        ...

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the tensor in the file, of which these may be some rows."""
        ...

    @property
    def first_row(self) -> int:
        """Where in it these rows begin."""
        ...

    @property
    def is_optional(self) -> bool:
        """A file without it is complete."""
        ...

    @property
    def rotated_heads(self) -> int:
        """> 0: rows are stored as pairs of neighbours for this many heads."""
        ...

    @property
    def added(self) -> float:
        """`read` adds this to every value."""
        ...


class WeightFile(Protocol):
    """Tensors of one model, checked whole when it was opened; nothing is read until asked."""

    def __contains__(self, spec: WantedTensor) -> bool:
        """Whether the file holds it."""
        ...

    def num_bytes(self, spec: WantedTensor) -> int:
        """Bytes of these rows on disk; 0 for a tensor that the file does not hold."""
        ...

    def type_name(self, spec: WantedTensor) -> str:
        """Format on disk, a key of `blocks.EXPAND`: "Q4_1"."""
        ...

    def read(self, spec: WantedTensor) -> Floats:
        """The rows in float32 as computed with; a new, writable array."""
        ...

    def read_blocks(self, spec: WantedTensor) -> Bytes:
        """The rows as the file has them, [rows, bytes of a row], rotated rows in halves.

        A view of the file's own pages where no row has to move. Nothing is `added`.
        """
        ...
