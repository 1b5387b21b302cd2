"""Which type a matrix of a file gets in memory, by --quantization."""

from collections.abc import Iterable

from headway.compute.cpu.pack import FORMAT_OF
from headway.compute.cpu.quantize_weights import GROUP
from headway.compute.cpu.settings import Quantization
from headway.core.base.errors import InvalidSetting

FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
BLOCKS = ("Q8_0", "Q4_0", "Q4_1")
# The type nearest to one that no kernel reads; see repack.py for what that costs.
NEAREST = {"Q5_0": "Q8_0", "Q5_1": "Q8_0", "Q4_K": "Q4_1", "Q5_K": "Q8_0", "Q6_K": "Q8_0"}
WITHOUT_LOSS = {"Q5_0": "Q8_0"}


def packed_type(
    type_name: str, name: str, num_inputs: int, quantization: Quantization, *, is_head: bool
) -> str:
    """GGUF's name of the type in memory.

    type_name  in the file
    name       of the tensor, for the message
    is_head    the matrix that gives the logits, or the embedding: never cut to 4 bits

    A matrix whose inputs are not whole groups of 32 stays as it is. Raises InvalidSetting for
    8 bits made of 4: that would take twice the memory for the same numbers.
    """
    if quantization is Quantization.INT8 and type_name in FOUR_BITS:
        raise InvalidSetting(
            "--quantization",
            f"int8 cannot add what the file has left out: its tensor {name} is {type_name}, "
            "4 bits; leave the option out, which uses the weights as they are",
        )
    if quantization is Quantization.NONE or num_inputs % GROUP:
        return type_name if type_name in FORMAT_OF else WITHOUT_LOSS.get(type_name, "F32")
    if quantization is Quantization.INT4 and not is_head and type_name not in FOUR_BITS:
        return "Q4_1"
    nearest = NEAREST.get(type_name, type_name)
    return nearest if nearest in BLOCKS else "Q8_0"


def shared_type(names: Iterable[str], quantization: Quantization) -> str:
    """The type of matrices that share their input, of which these are to be their own.

    Where they differ it is one that holds the numbers of all: 8 bits for blocks, unless the
    numbers are to stay as they are; else float32.
    """
    distinct = set(names)
    if len(distinct) == 1:
        return distinct.pop()
    is_exact = quantization is Quantization.NONE
    return "F32" if is_exact or not distinct.issubset(BLOCKS) else "Q8_0"
