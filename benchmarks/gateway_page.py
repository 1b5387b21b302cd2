"""The table of docs/gateway.md, from results/gateway-overhead.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from page import NOTHING, table
from pressure_page import read, where

PAGE = "gateway.md"
NAME = "gateway-overhead"
TITLES = {"direct": "direct", "headway": "Headway", "litellm": "LiteLLM"}


def made(folder: Path) -> dict[str, str]:
    """The text of that page's one place."""
    result = read(folder, NAME)
    return {NAME: NOTHING if result is None else text_of(result)}


def text_of(result: Mapping[str, Any]) -> str:
    """Where it was measured, every way under every load, and what is promised."""
    load, versions = result["load"], result["versions"]
    peer = f"; LiteLLM {versions['litellm']}" if "litellm" in versions else ""
    tokens, pace, full = load["tokens"], load["tokens_s"], load["full_rate"]
    told = (
        f"{where(result)} Answers of {tokens} tokens at {pace:g} tokens a second; *full*: {full:g} "
        f"arrivals a second, so that {full * tokens / pace:g} streams are open; *light*: "
        f"{load['light_rate']:g} arrivals a second{peer}.\n\n"
    )
    head = ["load", "way", "TTFT P50, ms", "P99", "added P50, ms", "added P99", "CPU-ms a request"]
    head += ["memory, MiB", "requests", "late", "failed"]
    rows = [
        _row(name, way, figures)
        for name, ways in result["summary"].items()
        for way, figures in ways.items()
        if way in TITLES
    ]
    return told + table(head, rows) + "\n" + table(["", "measured", "target"], _targets(result))


def _row(load: str, way: str, figures: Mapping[str, Any]) -> list[str]:
    first, added = figures["first_token_ms"], figures.get("overhead_ms")
    is_direct = way == "direct"
    return [
        load,
        TITLES[way],
        f"{first['p50']:.1f}",
        f"{first['p99']:.1f}",
        "" if added is None else f"{added['p50']:+.2f}",
        "" if added is None else f"{added['p99']:+.2f}",
        "" if is_direct else f"{figures['cpu_ms_a_request']:.1f}",
        "" if is_direct else f"{figures['memory_mib']:.0f}",
        f"{figures['requests']}",
        f"{figures['late']}",
        f"{figures['failed']}",
    ]


def _targets(result: Mapping[str, Any]) -> list[list[str]]:
    summary, memory = result["summary"], result["memory"]
    added = summary["full"]["headway"]["overhead_ms"]
    rows = [
        ["added to TTFT at full load, P50", f"{added['p50']:+.2f} ms", "≤ 1 ms"],
        ["added to TTFT at full load, P99", f"{added['p99']:+.2f} ms", "≤ 5 ms"],
    ]
    rows += [
        [
            f"LiteLLM's CPU-ms a request over ours, {load} load",
            f"{ways['cpu_ratio']:.1f} ×",
            "≥ 10 ×",
        ]
        for load, ways in summary.items()
        if "cpu_ratio" in ways
    ]
    if memory is not None:
        change = 100 * memory["largest_change"]
        what = f"largest change of memory over {memory['requests']:,} requests"
        rows.append([what, f"{change:.1f} %", "≤ 3 %"])
    return rows
