"""A packed matrix inside the compiled step: its product, and its input in the form it takes."""

from typing import Any

from headway.compute.cpu.activation import gate_rows, quantize_gate_rows
from headway.compute.cpu.entry import call_gemm
from headway.compute.cpu.gelu import gelu_rows
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.layers import add_bias
from headway.compute.cpu.norm import normalise_rows
from headway.compute.cpu.pack import GROUP, Format
from headway.compute.cpu.quantize import quantize_rows
from headway.compute.cpu.weights import ADDRESS, BIAS, INPUTS, KIND, PANELS

FIRST_FLOAT_FORMAT = int(Format.BF16)  # formats before it take quantized activations


@kernel
def is_quantized(matrix: Any) -> bool:
    """Whether this matrix takes quantized activations."""
    return bool(matrix[KIND] < FIRST_FLOAT_FORMAT)


@kernel
def multiply(
    function: int,
    matrix: Any,
    x: int,
    quantized: Any,
    rows: int,
    out: int,
    ldo: int,
    part: int,
    parts: int,
) -> None:
    """One of `parts` equal parts of a linear layer's panels, for `rows` rows, bias included.

    x          address of float32 [rows, inputs], read where the format takes no quantized ones
    quantized  addresses of xq, xs and xsum, as `quantize_rows` writes them
    out        address of float32 [rows, ldo]
    """
    panels, inputs = matrix[PANELS], matrix[INPUTS]
    xq, xs, xsum = quantized
    call_gemm(
        function,
        matrix[KIND],
        matrix[ADDRESS],
        inputs,
        panels * part // parts,
        panels * (part + 1) // parts,
        xq if is_quantized(matrix) else x,
        inputs,
        xs,
        xsum,
        rows,
        out,
        ldo,
    )
    if matrix[BIAS] != 0:
        first, end = panels * part // parts, panels * (part + 1) // parts
        add_bias(matrix[BIAS], rows, out, ldo, first, end)


@kernel
def behind(quantized: Any, rows: int, inputs: int) -> Any:
    """Addresses of xq, xs and xsum, `rows` rows of a matrix with so many inputs further on."""
    xq, xs, xsum = quantized
    groups = rows * (inputs // GROUP)
    return xq + rows * inputs, xs + 4 * groups, xsum + 8 * groups


@kernel
def normalise(
    matrix: Any,
    x: int,
    size: int,
    rows: int,
    more: int,
    ldm: int,
    weight: int,
    eps: float,
    out: int,
    quantized: Any,
) -> None:
    """Make the input of `matrix` from rows of the residual stream, in the form that it takes."""
    xq, xs, xsum = quantized
    floats = 0 if is_quantized(matrix) else out
    normalise_rows(x, size, rows, more, ldm, weight, eps, floats, xq, xs, xsum)


@kernel
def quantize(matrix: Any, x: int, rows: int, quantized: Any) -> None:
    """Quantize rows of float32, the input of `matrix`, if its format takes them so."""
    if is_quantized(matrix):
        xq, xs, xsum = quantized
        quantize_rows(x, matrix[INPUTS], 0, rows, matrix[INPUTS], xq, xs, xsum)


@kernel
def gate(
    matrix: Any,
    is_gelu: bool,
    gate_up: int,
    ldg: int,
    size: int,
    rows: int,
    inner: int,
    quantized: Any,
) -> None:
    """silu(gate) * up, or gelu(gate) * up, the input of `matrix`, in the form that it takes."""
    up = gate_up + 4 * size
    if is_gelu:
        gelu_rows(gate_up, up, ldg, size, rows, inner)
        quantize(matrix, inner, rows, quantized)
    elif is_quantized(matrix):
        xq, xs, xsum = quantized
        quantize_gate_rows(gate_up, up, ldg, size, rows, xq, xs, xsum)
    else:
        gate_rows(gate_up, up, ldg, size, rows, inner)


@kernel
def widest_input(linears: Any) -> int:
    """Most inputs of a matrix of the layers."""
    widest = 0
    for layer in range(linears.shape[0]):
        for number in range(linears.shape[1]):
            widest = max(widest, linears[layer, number, INPUTS])
    return widest
