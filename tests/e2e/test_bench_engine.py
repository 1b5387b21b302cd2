"""The benchmarks of the engine on the real model, as small as they can be."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.app import bench_steps
from headway.app.cli import main
from tests.e2e.server import Server

SMALL = ["--max-num-seqs", "4", "--max-model-len", "256", "--kv-cache-memory-bytes", "128M"]


def run(folder: Path, model: str, *command: str) -> dict[str, Any]:
    target = folder / "out.json"
    options = ["--model", model, "--quick", "--disable-tqdm", "--json", str(target)]
    assert main(["bench", *command, *options]) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_steps_are_measured_and_a_simulation_takes_them(
    tmp_path: Path, smollm2_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = (bench_steps.Cell(1, 32, 6), bench_steps.Cell(2, 32, 6), bench_steps.Cell(4, 32, 6))
    monkeypatch.setattr(bench_steps, "QUICK", grid)
    found = run(tmp_path, smollm2_path, "steps", *SMALL)
    # A step for the prompts and one for each further token, of each of the three cells.
    assert found["num_steps"] == 3 * 6
    rows, seconds = zip(*found["table"]["rows"], strict=True)
    assert rows[:3] == (1, 2, 4)
    assert rows[-1] > 32, "a step with four prompts"
    assert seconds[0] > 0
    assert list(seconds) == sorted(seconds)
    costs = str(tmp_path / "out.json")
    assert (
        main(["simulate", "--cost-table", costs, "--concurrency", "2", "--num-requests", "4"]) == 0
    )


@pytest.mark.spec("E2")
def test_all_policies_answer_the_same_trace_on_the_real_engine(
    tmp_path: Path, smollm2_path: str
) -> None:
    small = ["--num-requests", "10", "--rate", "20", "--window", "0.05"]
    lengths = ["--prompt-len", "16", "--output-len", "2:12"]
    found = run(tmp_path, smollm2_path, "batching", *small, *lengths, *SMALL)
    totals = [policy["total"] for policy in found["policies"].values()]
    assert [total["answered"] for total in totals] == [totals[0]["sent"]] * 3
    assert len({total["output_tokens"] for total in totals}) == 1
    assert all(policy["utilisation"] > 0 for policy in found["policies"].values())


def test_an_overload_of_a_real_server_loses_nothing(
    tmp_path: Path, smollm2_path: str, server: Server
) -> None:
    small = ["--capacity", "4", "--prompt-len", "16", "--output-len", "4", "--minutes", "0.02"]
    target = tmp_path / "out.json"
    command = ["bench", "overload", "--base-url", server.url, "--json", str(target)]
    assert main([*command, "--disable-tqdm", *small]) == 0
    found = json.loads(target.read_text())
    assert found["checks"]["lost"] == 0
    assert found["phases"]["2 x"]["total"]["answered"] > 0


def test_an_overload_starts_a_server_of_its_own(
    tmp_path: Path, smollm2_path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    command = ["bench", "overload", "--model", smollm2_path, *SMALL, "--json", str(target)]
    command += ["--capacity", "4", "--prompt-len", "16", "--output-len", "4", "--minutes", "0.01"]
    assert main([*command, "--disable-tqdm"]) == 0
    phase = json.loads(target.read_text())["phases"]["2 x"]
    assert phase["total"]["lost"] == 0
    assert phase["resident_bytes"][0] > 100 << 20, "of the server and its engine"
