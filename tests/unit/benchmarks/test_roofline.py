import pytest

from benchmarks.roofline import PROGRAMS, parse


def test_figures_are_read_from_the_programs_lines() -> None:
    line = "threads 2  read 20.10 GB/s  read x4 33.22 GB/s  triad 33.85 GB/s  [1.5e+09]\n"
    assert parse(line, PROGRAMS["membw"]) == {"read_gb_s": 33.22, "triad_gb_s": 33.85}
    line = "threads 2  kind avx512-vnni  int8 935.2 GOP/s  f32 234.4 GFLOP/s\n"
    found = parse(line, PROGRAMS["peak"])
    assert found == {"kind": "avx512-vnni", "int8_gop_s": 935.2, "f32_gflop_s": 234.4}


def test_another_line_is_a_fault() -> None:
    with pytest.raises(ValueError, match="no figures"):
        parse("Illegal instruction", PROGRAMS["peak"])
