"""Which type a matrix of a file gets in memory, by --quantization."""

from headway.compute.cpu.quantize_weights import GROUP
from headway.compute.cpu.settings import Quantization
from headway.core.base.errors import InvalidSetting

FOUR_BITS = ("Q4_0", "Q4_1")
BLOCKS = ("Q8_0", *FOUR_BITS)


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
        return type_name
    if quantization is Quantization.INT4 and not is_head and type_name not in FOUR_BITS:
        return "Q4_1"
    return type_name if type_name in BLOCKS else "Q8_0"
