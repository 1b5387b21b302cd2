"""`headway bench batching`, under the simulated clock."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.app.bench_batching import under_way
from headway.app.cli import main
from headway.core.sim.report import Record
from tests.unit.app.sim_inputs import write_costs


def batched(folder: Path, *options: str) -> dict[str, Any]:
    target = folder / "out.json"
    command = ["bench", "batching", "--simulate", "--cost-table", write_costs(folder)]
    assert main([*command, "--json", str(target), "--disable-tqdm", *options]) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.spec("E2")
def test_continuous_batching_answers_sooner_and_fills_more_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = batched(tmp_path, "--num-requests", "80")
    policies = found["policies"]
    assert list(policies) == ["static", "dynamic", "continuous"]
    static, continuous = policies["static"], policies["continuous"]
    assert len({each["total"]["sent"] for each in policies.values()}) == 1, "one trace for all"
    assert len({each["total"]["output_tokens"] for each in policies.values()}) == 1
    assert continuous["total"]["ttft"]["p50"] < 0.5 * static["total"]["ttft"]["p50"]
    assert continuous["utilisation"] > 1.1 * static["utilisation"]
    assert continuous["output_tokens_s"] > static["output_tokens_s"]
    assert "of static" in capsys.readouterr().out


def test_a_short_window_makes_dynamic_batching_start_sooner_than_static(tmp_path: Path) -> None:
    # So few requests that a static batch waits long for its last one.
    found = batched(tmp_path, "--rate", "0.5", "--num-requests", "32", "--window", "0.1")
    ttft = {name: each["total"]["ttft"]["p50"] for name, each in found["policies"].items()}
    assert ttft["continuous"] <= ttft["dynamic"] < 0.2 * ttft["static"]


def test_requests_under_way_are_counted_over_time() -> None:
    records = [Record("a", "all", 0.0, finished=2.0), Record("b", "all", 1.0, finished=3.0)]
    assert under_way(records) == [(0.0, 1), (1.0, 2), (2.0, 1), (3.0, 0)]


@pytest.mark.parametrize("option", ["--num-requests", "--window", "--rate"])
def test_numbers_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    command = ["bench", "batching", "--simulate", "--cost-table", write_costs(tmp_path)]
    assert main([*command, option, "0"]) == 2
    assert option in capsys.readouterr().err
