import ctypes

import pytest

from headway.compute.cpu.self_check_pairs import Kernel, check_pairs, dot_pairs, round_pairs
from headway.core.base.errors import StartError


def one_bit_off(kernel: Kernel) -> Kernel:
    def wrong(a: int, b: int, out: int) -> None:
        kernel(a, b, out)
        ctypes.c_uint16.from_address(out + 6).value ^= 1

    return wrong


def test_the_products_of_this_machine_are_right() -> None:
    check_pairs()


def test_startup_config_01_wrong_products_end_the_start_with_what_to_do() -> None:
    said = r"bfloat16 numbers are wrong; (start with --cpu-isa avx512-vnni|use --executor torch)"
    with pytest.raises(StartError, match=said):
        check_pairs(product=one_bit_off(dot_pairs))


def test_startup_config_01_wrong_rounding_ends_the_start() -> None:
    with pytest.raises(StartError, match="round wrongly"):
        check_pairs(rounding=one_bit_off(round_pairs))


def test_startup_config_01_products_that_cannot_be_compiled_end_the_start() -> None:
    def refused(a: int, b: int, out: int) -> None:
        raise RuntimeError("no such intrinsic")

    with pytest.raises(StartError, match=r"cannot be compiled .*no such intrinsic"):
        check_pairs(product=refused)
