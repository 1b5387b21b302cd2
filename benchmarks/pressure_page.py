"""Tables of docs/scheduling.md, docs/memory.md and docs/simulation.md, from results/.

Each place of those pages is made from one file of a fixed name; `report.py` fills them in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from page import NOTHING, link, number, table

Result = Mapping[str, Any]
# Labels that say only which model it is.
NO_CLASS = re.compile(r'(model|model_name|engine)="[^"]*",?')
PAGES = ("scheduling.md", "memory.md", "simulation.md")


def made(folder: Path) -> dict[str, str]:
    """The text of every place on those pages."""
    makers: dict[str, tuple[str, Callable[[Result], str]]] = {
        "overload": ("overload", overload_table),
        "batching": ("batching", batching_table),
        "scheduler-cost": ("scheduler-cost", cost_table),
        "memory": ("memory", memory_table),
        "memory-half": ("memory-half", memory_table),
        "preempting": ("preempting", preempting_table),
        "preempting-full": ("preempting-full", preempting_table),
        "itl-target": ("itl-target", target_table),
        "truth": ("simulation-truth", truth_table),
        "simulator-speed": ("simulator-speed", speed_table),
    }
    return {
        place: NOTHING if (result := read(folder, name)) is None else maker(result)
        for place, (name, maker) in makers.items()
    }


def overload_table(result: Result) -> str:
    """Every class at every load, then what is promised."""
    rows = []
    for name, phase in result["phases"].items():
        for group, figures in phase["groups"].items():
            refused = figures["refused"]
            retry = figures["retry_after_s"]["p50"]
            rows.append(
                [
                    name,
                    group,
                    str(figures["sent"]),
                    str(figures["answered"]),
                    f"{refused}" if not refused or retry is None else f"{refused} ({retry:.0f} s)",
                    str(figures["lost"]),
                    _ms(figures["ttft"]["p50"]),
                    _ms(figures["ttft"]["p99"]),
                    f"{100 * figures['good'] / figures['sent']:.1f} %",
                ]
            )
    head = ["load", "class", "sent", "answered", "refused (retry after)", "lost", "TTFT P50, ms"]
    found = result["checks"]
    told = [
        ("requests lost", f"{found['lost']}", "0"),
        ("VIPs refused", f"{found['vip_refused']}", "0"),
        ("VIP TTFT P99 at 2 × over alone", _times(found["vip_p99_over_alone"]), "≤ 1.5"),
        ("goodput at 2 × over 1 ×", _times(found["goodput_2x_over_1x"]), "≥ 0.95"),
        ("refusals without `Retry-After`", f"{found['without_retry_after']}", "0"),
        ("refusals after the class's own target", f"{found['after_target']}", "0"),
        (
            "memory at the end over that at 2 min",
            _times(found["resident_end_over_settled"]),
            "≤ 1.05",
        ),
    ]
    return (
        f"{where(result)} {result['what'].split(' at ')[0]}, capacity "
        f"{result['capacity_requests_s']:.2f} requests a second.\n\n"
        + table([*head, "P99", "within target"], rows)
        + "\n"
        + table(["", "measured", "target"], [list(row) for row in told])
        + _counted(result)
    )


def batching_table(result: Result) -> str:
    """The three policies."""
    rows = []
    base = result["policies"]["static"]["output_tokens_s"]
    for name, policy in result["policies"].items():
        total = policy["total"]
        latencies = [_ms(total[each][p]) for each in ("ttft", "itl", "e2e") for p in ("p50", "p99")]
        rate = policy["output_tokens_s"]
        rows.append(
            [
                name,
                *latencies,
                number(rate),
                f"{rate / base:.2f} ×",
                f"{100 * policy['utilisation']:.1f} %",
            ]
        )
    head = ["", "TTFT P50", "P99", "ITL P50", "P99", "E2E P50", "P99", "tok/s", "of static"]
    return (
        f"{where(result)} {result['what']}, {result['slots']} slots, {result['rate']:.2f} "
        f"requests a second; times in milliseconds.\n\n" + table([*head, "slots used"], rows)
    )


def memory_table(result: Result) -> str:
    """Reservation against paging."""
    rows = []
    for name, case in result["cases"].items():
        use, summary = case["use"], case["summary"]
        rows.append(
            [
                name,
                f"{100 * use['utilisation']:.1f} %",
                f"{100 * use['live']:.1f} %",
                f"{100 * use['waste']:.1f} %",
                f"{use['running']:.1f}",
                f"{case['most_running']}",
                f"{summary['requests_s']:.2f}",
            ]
        )
    share = result["short_share"]
    head = ["", "utilisation", "of live ones alone", "waste", "running", "most", "requests/s"]
    return (
        f"{where(result)} {100 * share:.0f} % requests of {result['short']} tokens, the rest of "
        f"{result['long']}, in {result['positions']:,} positions; `concurrency_ratio` "
        f"{result['concurrency_ratio']:.2f}.\n\n" + table(head, rows)
    )


def preempting_table(result: Result) -> str:
    """What being preempted costs, by the way that it is done."""
    rows = [
        [
            row["name"],
            f"{100 * row['preempted_share']:.0f} %",
            number(row["output_tokens_s"]),
            f"{100 * row['cost']:.1f} %",
            f"{row['recomputed_tokens']:,}",
        ]
        for row in result["rows"]
    ]
    head = ["", "sequences preempted", "tok/s", "cost", "prompt tokens computed again"]
    return f"{where(result)}\n\n" + table(head, rows)


def target_table(result: Result) -> str:
    """Chunks that follow the target against fixed ones."""
    rows = [
        [row["name"]]
        + [number(row[key]) for key in ("gap_p50_ms", "gap_p99_ms", "long_ttft_p50_ms")]
        for row in result["rows"]
    ]
    verdict = result["verdict"]
    ratio = verdict["long_ttft_over_best_fixed"]
    told = (
        "no fixed size keeps that gap"
        if ratio is None
        else (
            f"the long prompts' first token is {ratio:.2f} × that of the best fixed size that "
            f"keeps the gap ({verdict['best_fixed']})"
        )
    )
    head = ["chunks", "gap P50, ms", "gap P99, ms", "long TTFT P50, ms"]
    return f"{where(result)} Target {result['target_ms']:.0f} ms; {told}.\n\n" + table(head, rows)


def truth_table(result: Result) -> str:
    """Replays, the worst repetition of each workload, and predictions."""
    runs: dict[str, list[Result]] = {}
    for name, each in result["replays"].items():
        runs.setdefault(name.split()[0].upper(), []).append(each)
    replays = [
        [name]
        + [
            f"{100 * max(run[key] for run in own):.2f} %"
            for key in ("ttft_error_max", "e2e_error_max")
        ]
        for name, own in runs.items()
    ]
    predictions = [
        [
            f"{row['workload'].upper()} {row['group']}".strip(),
            row["figure"],
            _range(row, "measured"),
            _range(row, "predicted"),
            "" if row["error"] is None else f"{100 * row['error']:+.1f} %",
        ]
        for row in result["predictions"]
    ]
    head = ["", "", "measured, ms (runs)", "predicted, ms (runs)", "error"]
    return (
        f"{where(result)} Replays off by {100 * result['replay_error_max']:.2f} % at most, "
        f"predictions of W3 to W5 by {100 * result['prediction_error_max']:.0f} %.\n\n"
        + table(["replay", "TTFT off by", "E2E off by"], replays)
        + "\n"
        + table(head, predictions)
    )


def _range(row: Result, side: str) -> str:
    """A figure, with the least and the most of its repetitions."""
    runs = row.get(f"{side}_runs_s", [])
    told = f" ({_ms(min(runs))}-{_ms(max(runs))})" if len(runs) > 1 else ""
    return _ms(row[f"{side}_s"]) + told


def cost_table(result: Result) -> str:
    """The scheduler alone."""
    rows = [
        [f"{row['running']}", f"{row['waiting']:,}"]
        + [f"{row[name]:.2f}" for name in ("plan_ms", "commit_ms", "step_ms", "step_ms_median")]
        for row in result["rows"]
    ]
    head = ["running", "waiting", "plan, ms", "commit, ms", "step, ms", "median"]
    return f"{where(result)}\n\n" + table(head, rows)


def speed_table(result: Result) -> str:
    """How fast the simulator is."""
    rows = [[str(value) for value in run.values()] for run in result["runs"]]
    head = list(result["runs"][0])
    return f"{where(result)}\n\n" + table(head, rows)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """A results file, its name under "file"; None where there is none."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content | {"file": path.name}


def where(result: Result) -> str:
    """File, machine, date, commit and command, as a sentence."""
    machine = result["machine"]
    date = f", {result['date'][:10]}" if "date" in result else ""
    commit = f", commit {result['commit'][:12]}" if "commit" in result else ""
    # Options of our own scripts stand in the file; only those of `headway` are explained in docs/.
    said = result.get("command", "")
    said = said if said.startswith("headway") else said.split(" --")[0]
    command = f", `{said}`" if said else ""
    return f"{link(result)}: {machine['cpu']}, {machine['cores']} cores{date}{commit}{command}."


def _counted(result: Result) -> str:
    """What the server counted of preemptions, a line a load."""
    lines = []
    for name, phase in result["phases"].items():
        counted = {
            NO_CLASS.sub("", key).replace("{}", ""): value
            for key, value in phase["counters"].items()
            if value and not key.startswith("vllm:")
        }
        told = ", ".join(f"`{key}` {value:g}" for key, value in counted.items())
        lines.append(f"- {name}: {told or 'nobody was preempted'}")
    return "\nPreemptions:\n\n" + "\n".join(lines) + "\n"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
