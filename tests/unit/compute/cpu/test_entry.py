from typing import Any

import numpy as np
import pytest

from headway.compute.cpu.entry import ENTRIES, call_gemm, gemm_address
from headway.compute.cpu.features import host_features, offers
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.linear import apply, kernels_for
from headway.compute.cpu.pack import PackedLinear, RawMatrix, pack
from headway.compute.cpu.settings import Isa

ISAS = [isa for isa in Isa if offers(isa, host_features())]


@kernel
def call(function: int, work: Any) -> None:
    """`call_gemm` with numbers from an array; compiled once for every function."""
    call_gemm(
        function,
        work[0],
        work[1],
        work[2],
        work[3],
        work[4],
        work[5],
        work[6],
        work[7],
        work[8],
        work[9],
        work[10],
        work[11],
    )


def matrix() -> PackedLinear:
    values = np.random.default_rng(1).normal(size=(70, 64)).astype(np.float32)
    (packed,) = pack([RawMatrix("F32", values.view(np.uint8))])
    return packed


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.value)
def test_a_call_by_address_is_the_kernel_itself(isa: Isa) -> None:
    packed = matrix()
    x = np.random.default_rng(2).normal(size=(3, 64)).astype(np.float32)
    out = np.full((3, packed.padded_outputs), np.nan, np.float32)
    work = (int(packed.format), packed.address, 64, 0, packed.num_panels, x.ctypes.data, 64, 0, 0)
    call(gemm_address(isa), np.array([*work, 3, out.ctypes.data, out.shape[1]], np.int64))
    assert np.array_equal(out[:, :70], apply(kernels_for(isa), packed, x))
    assert not out[:, 70:].any()


def test_each_family_has_one_address_that_stays() -> None:
    assert set(ENTRIES) == set(Isa)
    first = [gemm_address(isa) for isa in ISAS]
    assert len(set(first)) == len(ISAS)
    assert [gemm_address(isa) for isa in ISAS] == first


def test_one_caller_serves_all_families() -> None:
    compiled: Any = call
    packed = matrix()
    x = np.ones((1, 64), np.float32)
    out = np.zeros((1, packed.padded_outputs), np.float32)
    work = (int(packed.format), packed.address, 64, 0, packed.num_panels, x.ctypes.data, 64, 0, 0)
    for isa in ISAS:
        call(gemm_address(isa), np.array([*work, 1, out.ctypes.data, out.shape[1]], np.int64))
    assert len(compiled.signatures) == 1
