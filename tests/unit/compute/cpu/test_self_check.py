import ctypes
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba.core.errors import LoweringError

from headway.compute.cpu import self_check
from headway.compute.cpu.entry import gemm_function
from headway.compute.cpu.features import host_features, offers
from headway.compute.cpu.pack import Format
from headway.compute.cpu.self_check import MOST_ROWS, OUTPUTS, cases, problem_of, right_family
from headway.compute.cpu.settings import Isa
from headway.core.base.errors import StartError

OFFERED = [isa for isa in Isa if offers(isa, host_features())]


def off_by(format_: Format, rows: int) -> Callable[..., None]:
    """The plain kernels with one bit of one number wrong, for one format and number of rows."""
    right = gemm_function(Isa.PLAIN)

    def gemm(kind: int, *rest: Any) -> None:
        right(kind, *rest)
        if kind == format_ and rest[-3] == rows:
            out = np.ctypeslib.as_array(
                ctypes.cast(rest[-2], ctypes.POINTER(ctypes.c_uint32)), (rows, rest[-1])
            )
            out[rows - 1, OUTPUTS - 1] ^= 1

    return gemm


@pytest.mark.parametrize("isa", OFFERED)
def test_the_kernels_of_this_machine_are_right(isa: Isa) -> None:
    assert problem_of(isa, gemm_function) is None
    assert right_family(isa) is isa


def test_there_is_a_case_of_every_format_whose_sums_float32_holds() -> None:
    assert set(cases()) == {format_.name for format_ in Format}
    for case in cases().values():
        assert case.expected.shape == (MOST_ROWS, OUTPUTS)
        assert np.array_equal(case.expected, case.expected.astype(np.float32))
        assert np.abs(case.expected).min(axis=0).max() > 0


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("rows", [7, 2, 1])
def test_one_wrong_bit_is_found(format_: Format, rows: int) -> None:
    found = problem_of(Isa.PLAIN, lambda isa: off_by(format_, rows))
    assert found == f"{format_.name}, {rows} rows: wrong numbers"


@pytest.mark.parametrize("error", [LoweringError("one\nno such intrinsic"), RuntimeError("")])
def test_a_family_that_cannot_be_compiled_is_named_with_the_reason(error: Exception) -> None:
    def compile_it(isa: Isa) -> Callable[..., None]:
        raise error

    found = problem_of(Isa.PLAIN, compile_it)
    assert found is not None
    assert found.startswith("cannot be compiled: ")
    assert "no such intrinsic" in found or "RuntimeError" in found


def test_the_next_slower_family_serves_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def gemm_of(isa: Isa) -> Callable[..., None]:
        if isa is OFFERED[0]:
            return off_by(Format.Q4_1, 2)
        return gemm_function(Isa.PLAIN)

    expected = OFFERED[1] if len(OFFERED) > 1 else None
    with caplog.at_level(logging.ERROR):
        if expected is None:
            with pytest.raises(StartError):
                right_family(OFFERED[0], gemm_of)
        else:
            assert right_family(OFFERED[0], gemm_of) is expected
    (line,) = caplog.records
    assert line.message == "cpu_kernels_wrong"
    assert vars(line)["isa"] == OFFERED[0]
    assert vars(line)["reason"] == "Q4_1, 2 rows: wrong numbers"


def test_startup_config_01_nothing_starts_when_the_plainest_kernels_are_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(StartError, match="no CPU kernel computes what it should"):
        right_family(OFFERED[0], lambda isa: off_by(Format.F32, 7))
    assert len(caplog.records) == len(OFFERED)


def test_a_warm_check_takes_less_than_a_twentieth_of_a_second() -> None:
    gemm = gemm_function(OFFERED[0])
    problem_of(OFFERED[0], lambda isa: gemm)  # everything is loaded

    def took() -> float:
        self_check.cases.cache_clear()
        began = time.process_time()
        problem_of(OFFERED[0], lambda isa: gemm)
        return time.process_time() - began

    assert min(took() for _ in range(5)) < 0.05
