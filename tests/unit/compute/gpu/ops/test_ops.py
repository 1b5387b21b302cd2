"""Every operation against formulas written out value by value, in float64."""

import math
from collections.abc import Callable

import pytest
import torch

from headway.compute.gpu.ops.activation.reference import gated
from headway.compute.gpu.ops.linear import prepacked
from headway.compute.gpu.ops.linear.head import Head, head_dtype
from headway.compute.gpu.ops.linear.prepacked import PrepackedLinear
from headway.compute.gpu.ops.linear.reference import PlainLinear
from headway.compute.gpu.ops.linear.registry import make_linear
from headway.compute.gpu.ops.norm.reference import rms_norm
from headway.compute.gpu.ops.rope.reference import rope_angles, rotate_heads_
from headway.core.base.model_card import Activation
from tests.close import assert_close

SIZES = [1, 16, 17, 31]
DTYPES = [torch.float32, torch.bfloat16]
CPU = torch.device("cpu")


def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_gives_rows_a_mean_square_of_one(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = normal(rows, columns, dtype=dtype), normal(columns)
    want = [
        [
            value / math.sqrt(sum(v * v for v in row) / columns + 1e-5) * scale
            for value, scale in zip(row, weight.tolist(), strict=True)
        ]
        for row in x.double().tolist()
    ]
    assert_close("rms_norm", rms_norm(x, weight, 1e-5), torch.tensor(want))


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rope_dim"), [(2, 2), (16, 16), (34, 34), (17, 8)])
def test_heads_turn_as_complex_numbers(
    rows: int, dtype: torch.dtype, head_dim: int, rope_dim: int
) -> None:
    x = normal(rows, 3, head_dim, dtype=dtype)
    positions = torch.arange(rows) * 509  # up to 15,270: far positions must stay exact
    frequencies = 10_000.0 ** (-torch.arange(0, rope_dim, 2).double() / rope_dim)
    half = rope_dim // 2
    turned = torch.complex(x[..., :half].double(), x[..., half:rope_dim].double())
    turned = turned * torch.exp(1j * positions[:, None, None].double() * frequencies)
    want = torch.cat((turned.real, turned.imag, x[..., rope_dim:].double()), dim=-1)
    wider = torch.full((rows, 5, head_dim), float("nan"), dtype=dtype)
    wider[:, 1:4] = x  # a view with gaps, as q and k are of their product
    cos, sin = rope_angles(positions, frequencies)
    rotate_heads_(wider[:, 1:4], cos, sin)
    assert_close("rope", wider[:, 1:4], want.to(dtype))
    assert torch.isnan(wider[:, (0, 4)].float()).all(), "wrote outside the view"


def silu(gate: float) -> float:
    return gate / (1 + math.exp(-gate))


def gelu_tanh(gate: float) -> float:
    return 0.5 * gate * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("activation", "formula"), [(Activation.SILU, silu), (Activation.GELU_TANH, gelu_tanh)]
)
def test_the_first_half_is_the_gate(
    rows: int, dtype: torch.dtype, activation: Activation, formula: Callable[[float], float]
) -> None:
    gate_up = normal(rows, 34, dtype=dtype)
    want = [
        [formula(g) * u for g, u in zip(row[:17], row[17:], strict=True)]
        for row in gate_up.double().tolist()
    ]
    assert_close("gated", gated(gate_up, activation), torch.tensor(want).to(dtype))


@pytest.mark.parametrize("rows", [*SIZES, 131])
@pytest.mark.parametrize("outputs", SIZES)
@pytest.mark.parametrize("inputs", SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_linears_equal_the_sum_of_products(
    rows: int, outputs: int, inputs: int, has_bias: bool, dtype: torch.dtype
) -> None:
    x, weight = normal(rows, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    bias = normal(outputs, dtype=dtype) if has_bias else None
    want = (x.double()[:, None, :] * weight.double()).sum(-1)
    if bias is not None:
        want = want + bias.double()
    assert_close("plain", PlainLinear(weight, bias)(x), want)
    assert_close("chosen", make_linear(weight, bias)(x), want)
    if prepacked.is_supported(dtype, CPU):
        assert_close("prepacked", PrepackedLinear(weight, bias)(x), want)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 17])
def test_logits_are_float32_on_the_cpu_whatever_the_matrices_are(rows: int) -> None:
    assert head_dtype(torch.bfloat16, CPU) is torch.float32
    weight, x = normal(257, 16), normal(rows, 16)
    logits = Head(weight)(x)
    assert logits.dtype is torch.float32
    assert logits.is_contiguous()
    assert_close("head", logits, x.double() @ weight.double().T)


def test_a_gpu_keeps_its_own_dtype_for_the_head() -> None:
    assert head_dtype(torch.bfloat16, torch.device("cuda")) is torch.bfloat16


def test_a_build_that_cannot_prepack_keeps_the_plain_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise NotImplementedError

    prepacked.is_supported.cache_clear()
    monkeypatch.setattr(PrepackedLinear, "__init__", missing)
    assert isinstance(make_linear(normal(3, 2), None), PlainLinear)
    prepacked.is_supported.cache_clear()


def test_a_gpu_never_prepacks() -> None:
    assert not prepacked.is_supported(torch.float32, torch.device("cuda"))
