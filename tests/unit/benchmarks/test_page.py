import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page

ROOT = Path(__file__).resolve().parents[3]
TITLES = {
    "w1": page.Title("W1", "tok/s", "≥ 1.4", "≥ 2"),
    "ready": page.Title("Start", "s"),
}
MACHINE = {"cpu": "C", "cores": 2, "memory": "24 kB", "kernel": "6"}


def spread(median: float, rounds: int = 1) -> dict[str, float]:
    return {"median": median, "min": median / 2, "max": median * 2, "rounds": rounds}


def versus(**changes: Any) -> dict[str, Any]:
    rows = [
        {
            "figure": "w1",
            "systems": {"headway": spread(200.0, 3), "a": spread(100.0, 3), "b": spread(7.0)},
            "best_peer": "a",
            "ratio": spread(2.0, 3),
            "reached": "aim",
        },
        {"figure": "ready", "systems": {"headway": spread(3.0), "a": spread(9.0)}},
    ]
    return {
        "date": "2026-11-30",
        "commit": "0123456789abcdef",
        "machine": MACHINE,
        "settings": {"threads": 2, "kv_tokens": 69632, "others_at_most": 0.2},
        "model": {"weight_bytes": 96e6},
        "runs": [{}] * 11
        + [{"verdict": "too slow", "system": "s", "workload": "w3", "wall_s": 75}],
        "discarded": 1,
        "missing": {"c": "no disk"},
        "never_counted": ["d w4"],
        "rooflines": [{"round": 1, "read_gb_s": 30.0}, {"round": 2, "read_gb_s": 33.0}],
        "own": {"hit_over_miss": spread(0.3), "w1_share_of_floor": spread(0.61)},
        "comparison": rows,
    } | changes


def growth(best: float = 10.0) -> dict[str, Any]:
    decode = [
        {"batch": b, "context": c, "best_ms": best, "median_ms": 11.0, "floor_ms": 5.0}
        for b, c in ((1, 256), (16, 256), (4, 256), (1, 8192))
    ]
    return {
        "date": "2026-11-30",
        "commit": "0123456789abcdef",
        "machine": MACHINE,
        "threads": 2,
        "roofline": {},
        "overhead": {"batch": 16, "outside_kernels_share": 0.042, "step_ms": 30.0},
        "models": {
            "M 1.5B": {
                "decode": decode,
                "prefill": [{"context": 512, "best_ms": 256.0, "floor_ms": 128.0}],
            }
        },
    }


def write(folder: Path, name: str, result: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(result))


def test_places_are_filled_and_filling_twice_changes_nothing() -> None:
    text = "a\n<!-- made: x -->\nold\n<!-- end -->\nb\n"
    filled = page.fill(text, {"x": "new\n"})
    assert filled == "a\n<!-- made: x -->\n\nnew\n\n<!-- end -->\nb\n"
    assert page.fill(filled, {"x": "new\n"}) == filled
    assert page.places(filled) == ["x"]
    with pytest.raises(KeyError):
        page.fill(text, {})


def test_the_newest_file_of_a_kind_counts_and_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "b.json", versus(date="2026-11-29"))
    write(tmp_path, "a.json", versus())
    write(tmp_path, "old-format.json", {"runs": {}, "comparison": []})
    found = page.newest(tmp_path)
    assert found["versus"]["file"] == "a.json"
    assert set(found) == {"versus"}


def test_without_results_a_place_says_so(tmp_path: Path) -> None:
    made = page.made(tmp_path, TITLES)
    assert set(made.values()) == {page.NOTHING}


def test_the_comparison_shows_medians_with_ranges_and_who_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "v.json", versus())
    made = page.made(tmp_path, TITLES)
    row = "| W1, tok/s | 200 (100–400) | a: 100 (50.0–200) | 2.00 (1.00–4.00) |"
    assert row in made["versus"]
    assert "Start" not in made["versus"], "no ratio, no row"
    assert "| figure | headway | a | b |" in made["versus-all"]
    assert "| Start, s | 3.00 | 9.00 | – |" in made["versus-all"]
    assert "1 of 12 runs did not count" in made["versus-facts"]
    assert "stopped: s in W3 (75 s)." in made["versus-facts"]
    assert "No run counted of: d w4." in made["versus-facts"]
    assert "Missing: c: no disk." in made["versus-facts"]
    assert "| read bandwidth, GB/s | 33.0 (30.0–33.0) |" in made["roofline"]
    assert made["installs"] == page.NOTHING


def test_targets_say_what_is_reached_and_what_is_not(tmp_path: Path) -> None:
    write(tmp_path, "v.json", versus())
    lines = page.made(tmp_path, TITLES)["targets"].splitlines()
    assert lines[2] == "| W1 / the best peer's | ≥ 1.4 | ≥ 2 | 2.00 (1.00–4.00) | aim |"
    assert lines[3] == "| Start, s | ≤ 5 | ≤ 2 | 3.00 | must |"
    assert [line.split(" | ")[-1] for line in lines[4:]] == ["aim |", "**no** |"]


def test_growth_is_a_row_a_point_and_a_plot_a_question(tmp_path: Path) -> None:
    write(tmp_path, "g.json", growth())
    made = page.made(tmp_path, TITLES)
    assert "| M 1.5B | 16 | 256 | 10.0 | 11.0 | 5.00 | 1,600 |" in made["growth-batch"]
    picture = "![Decoding step over batch, 256 tokens of context](images/growth-batch.svg)"
    assert made["growth-batch"].startswith(picture)
    assert "8,192" not in made["growth-batch"]
    assert "| M 1.5B | 1 | 8,192 |" in made["growth-context"]
    assert "| M 1.5B | 4 |" not in made["growth-context"]
    assert "| M 1.5B | 512 | 256 | 128 | 2,000 |" in made["growth-prefill"]
    assert "4.2%" in made["growth-facts"]
    charts = page.charts_of(growth())
    assert set(charts) == {
        "growth-batch.svg",
        "growth-prefill.svg",
        "growth-context-m-1-5b.svg",
    }
    measured, floor = charts["growth-batch.svg"]["series"]
    assert measured == ("M 1.5B", [(1, 10.0), (4, 10.0), (16, 10.0)], False)
    assert floor[2]


def test_of_two_quality_runs_of_one_executor_the_later_is_shown(tmp_path: Path) -> None:
    def quality(date: str, ratio: float) -> dict[str, Any]:
        figures = {
            **{"positions": 1018, "kl_mean": 0.003, "top1": 0.9, "top1_clear": 1.0},
            **{"clear_positions": 700, "perplexity_ratio": ratio},
            **{"ratio_low": ratio - 0.01, "ratio_high": ratio + 0.01},
        }
        candidate = {"candidate": "file/cpu", "texts": {"all": figures}}
        return {
            "date": date,
            "reference": {},
            "model": {"file": "m"},
            "candidates": [candidate],
        }

    write(tmp_path, "q2.json", quality("2026-11-30", 1.01))
    write(tmp_path, "q1.json", quality("2026-11-29", 1.05))
    made = page.made(tmp_path, TITLES)["quality"]
    row = "| `file/cpu` | 1,018 | 0.0030 | 90.0% | 100.00% of 700 | 1.0100 (1.0000 to 1.0200) |"
    assert row in made
    assert "1.05" not in made


def test_a_peers_form_that_loses_more_than_a_hundredth_is_named(tmp_path: Path) -> None:
    def texts(ratio: float) -> dict[str, Any]:
        return {"texts": {"code": {"ratio": 1.0}, "prose": {}, "all": {"ratio": ratio}}}

    peers = {"b": texts(1.011), "a": texts(1.01), "c": {"missing": "no disk"}}
    result = {"peers": peers, "reference": "q.json", "commit": "0123456789abcdef"}
    write(tmp_path, "p.json", result)
    made = page.made(tmp_path, TITLES)["peer-quality"]
    assert "| a | 1.0000 | – | 1.0100 | yes |\n| b | 1.0000 | – | 1.0110 | no |" in made
    assert "| c | – | – | – | no disk |" in made


def test_a_profile_has_a_row_a_phase_and_shares_of_the_step(tmp_path: Path) -> None:
    case = {
        "name": "decode",
        "whole_ms": 10.0,
        "sampling_ms": 1.0,
        "rest_ms": 0.5,
        "phases": [{"phase": "head", "work_ms": 2.0, "wait_ms": 0.5}],
    }
    write(
        tmp_path,
        "p.json",
        {"results": [case], "model": "m", "threads": 2, "commit": "0123456789abcdef"},
    )
    made = page.made(tmp_path, TITLES)["profile"]
    assert "| head | 2.50 (25%) |" in made
    assert "| whole step, ms | 10.0 |" in made


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")],
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert page.number(value) == text


def test_the_performance_page_and_its_plots_agree_with_the_results_files() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"run benchmarks/report.py: {run.stdout}{run.stderr}"
