"""Order of the rows of query and key matrices."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)


def unpermute_rows(rows: npt.NDArray[Scalar], num_heads: int, rope_dim: int) -> npt.NDArray[Scalar]:
    """Put rotary rows stored as neighbouring pairs back into two halves a head.

    rows  [num_heads * head_dim, ...]  of the query, or of the key with its own heads;
          row 2i and 2i + 1 of a head turn together as stored, i and i + rope_dim / 2
          afterwards. Rows past rope_dim are not rotated and stay.
    """
    by_head = rows.reshape(num_heads, -1, *rows.shape[1:])
    rotated = by_head[:, :rope_dim]
    halves = (rotated[:, 0::2], rotated[:, 1::2], by_head[:, rope_dim:])
    return np.concatenate(halves, axis=1).reshape(rows.shape)
