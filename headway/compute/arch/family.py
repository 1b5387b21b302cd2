"""What every model family says about itself."""

from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """What a tensor is for, whatever a file format calls it."""

    EMBEDDING = "embedding"
    OUTPUT_NORM = "output norm"
    HEAD = "head"
    ROPE_FACTORS = "rope factors"
    ATTENTION_NORM = "attention norm"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention output"
    MLP_NORM = "mlp norm"
    GATE = "gate"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that a model file holds, or may hold.

    shape          as computed with: (outputs, inputs) for a matrix
    layer          None for those outside the layers
    is_bias        it is the bias that belongs to the matrix of the same part
    is_optional    a file without it is complete
    rotated_heads  > 0: the rows are stored as pairs of neighbours for this many heads,
                   and must be put back into halves before use
    """

    name: str
    part: Part
    shape: tuple[int, ...]
    layer: int | None = None
    is_bias: bool = False
    is_optional: bool = False
    rotated_heads: int = 0
