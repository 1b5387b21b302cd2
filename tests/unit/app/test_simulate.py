"""`headway simulate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.app.cli import main
from tests.unit.app.sim_inputs import write_costs


def simulated(folder: Path, *options: str) -> dict[str, Any]:
    target = folder / "out.json"
    command = ["simulate", "--cost-table", write_costs(folder), "--json", str(target)]
    assert main([*command, "--disable-tqdm", *options]) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.spec("K2")
def test_the_workloads_of_the_benchmark_are_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(tmp_path, "--workloads", "w1,w2,w3,w4")
    assert list(found["workloads"]) == ["w1", "w2", "w3", "w4"]
    assert all(each["total"]["lost"] == 0 for each in found["workloads"].values())
    w1, w3 = found["workloads"]["w1"], found["workloads"]["w3"]
    # 128 tokens of a prompt at 0.3 ms each and a step of 4 ms.
    assert w1["total"]["ttft"]["p50"] == pytest.approx(0.0424 + 128 * 129 / 2 * 1e-7, rel=1e-6)
    assert w3["total"]["cached_tokens"] > 60 * 900
    shown = capsys.readouterr().out
    assert "TTFT P50" in shown
    assert "predicted, nothing was computed" in shown


def test_w5_is_twice_what_w2_gives(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--workloads", "w5", "--quick")
    w5 = found["workloads"]["w5"]
    offered = w5["total"]["sent"] / 20.0
    assert offered == pytest.approx(2 * found["capacity_requests_s"], rel=0.25)
    assert set(w5["groups"]) == {"vip", "free"}


def test_settings_of_the_engine_change_what_is_predicted(tmp_path: Path) -> None:
    wide = simulated(tmp_path, "--workloads", "w2")["workloads"]["w2"]
    narrow = simulated(tmp_path, "--workloads", "w2", "--max-num-seqs", "2")["workloads"]["w2"]
    assert narrow["total"]["ttft"]["p99"] > 2 * wide["total"]["ttft"]["p99"]
    assert narrow["utilisation"] > 0.9


def test_a_trace_and_a_synthetic_workload_are_taken(tmp_path: Path) -> None:
    trace = tmp_path / "monday.jsonl"
    trace.write_text('{"arrival": 0, "prompt_tokens": 10, "output_tokens": 3}\n')
    found = simulated(tmp_path, "--requests", str(trace))
    assert found["workloads"]["monday"]["total"]["output_tokens"] == 3
    options = ("--concurrency", "4", "--num-requests", "12", "--prompt-len", "40")
    found = simulated(tmp_path, *options)
    assert found["workloads"]["synthetic"]["total"]["prompt_tokens"] == 12 * 40
    found = simulated(tmp_path, "--rate", "5", "--num-requests", "40")
    assert 20 < found["workloads"]["synthetic"]["total"]["sent"] < 60


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    options = ("--rate", "5", "--num-requests", "30", "--seed", "3")
    assert simulated(tmp_path, *options)["workloads"] == simulated(tmp_path, *options)["workloads"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--workloads", "w7"], "--workloads"),
        (["--rate", "0"], "--rate"),
        (["--concurrency", "0"], "--concurrency"),
        (["--rate", "1", "--num-requests", "0"], "--num-requests"),
        (["--rate", "1", "--prompt-len", "9:3"], "--prompt-len"),
        (["--rate", "1", "--output-len", "many"], "--output-len"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--plot", "figure.pdf"], "--plot"),
        (["--requests", "/nowhere.jsonl"], "--requests"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["simulate", "--cost-table", write_costs(tmp_path), *options]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert problem in shown
