"""The check for GPUs, as far as it can be checked where there is none."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_and_makes_up_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    assert gpu_check.main(["--json", str(result)]) == gpu_check.NO_CUDA
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "no CUDA device" in said.err
    assert said.out == ""
    assert not result.exists()


def test_a_difference_is_measured_over_all_positions_and_nan_never_passes() -> None:
    want = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    got = torch.tensor([[3.0, 4.0], [3.3, 4.4]])
    found = gpu_check.differences(got, want, 0.2)
    assert found["relative_rms_worst_position"] == pytest.approx(0.1)
    assert found["relative_rms"] == pytest.approx(0.1 / 2**0.5)
    assert found["top1_equal"] == 1.0
    assert found["passed"]
    assert not gpu_check.differences(got, want, 0.05)["passed"]
    assert not gpu_check.differences(got * float("nan"), want, 0.2)["passed"]


@pytest.mark.soak
def test_a_rehearsal_on_the_cpu_runs_all_of_it_and_says_what_it_is(
    tmp_path: Path, smollm2_path: str
) -> None:
    result = tmp_path / "result.json"
    options = ["--device", "cpu", "--positions", "24", "--batches", "1", "--output-len", "2"]
    given = ["--model", smollm2_path, "--json", str(result), *options]
    assert gpu_check.main(given) == gpu_check.OK
    written = json.loads(result.read_text())
    assert written["is_rehearsal_without_gpu"]
    assert written["machine"]["device"] == "cpu"
    assert [each["dtype"] for each in written["parity_against_cpu_float32"]] == [
        "float32",
        "bfloat16",
    ]
    assert written["rates"][0]["output_tok_s_median"] > 0
