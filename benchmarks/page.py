"""Tables of docs/performance.md from results files; no I/O but reading them.

The page has places that begin and end with a comment:

    <!-- made: versus -->
    ...
    <!-- end -->

`fill` puts into each what its maker says of the newest results file of its kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PLACE = re.compile(r"(<!-- made: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOTHING = "Not measured yet.\n"
BYTES_IN_MB = 1e6
WITHIN = 1.01  # of the float32 reference's perplexity: what a compared form may cost

Result = Mapping[str, Any]


class Kind(NamedTuple):
    """How a kind of results file is recognised: keys that no other kind has together."""

    name: str
    keys: tuple[str, ...]


KINDS = (
    Kind("versus", ("runs", "rooflines", "comparison", "own")),
    Kind("growth", ("models", "overhead", "roofline")),
    Kind("quality", ("candidates", "reference")),
    Kind("startup", ("seconds", "runs")),
    Kind("peer-quality", ("peers", "reference")),
    Kind("profile", ("results", "model", "threads")),
)


class Title(NamedTuple):
    """How a figure of the comparison is written, and its targets."""

    title: str
    unit: str
    must: str = ""
    aim: str = ""


def newest(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest results file of each kind, its file name under "file"."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        for kind in KINDS:
            if not all(key in result for key in kind.keys):
                continue
            before = found.get(kind.name)
            if before is None or result.get("date", "") >= before.get("date", ""):
                found[kind.name] = result | {"file": path.name}
    return found


def all_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Every results file of a kind, oldest first."""
    keys = next(kind.keys for kind in KINDS if kind.name == name)
    results = [json.loads(path.read_text()) | {"file": path.name} for path in folder.glob("*.json")]
    chosen = [result for result in results if all(key in result for key in keys)]
    return sorted(chosen, key=lambda result: (result.get("date", ""), result["file"]))


def fill(page: str, made: Mapping[str, str]) -> str:
    """The page with every place filled; KeyError for a place that nobody makes."""
    return PLACE.sub(lambda m: f"{m[1]}\n{made[m[2]]}\n{m[3]}", page)


def places(page: str) -> list[str]:
    """Names of the places in a page."""
    return [match[2] for match in PLACE.finditer(page)]


def made(folder: Path, titles: Mapping[str, Title]) -> dict[str, str]:
    """The text of every place, from the results in a folder."""
    found = newest(folder)
    makers: dict[str, tuple[str, Callable[[Result], str]]] = {
        "versus": ("versus", lambda r: versus_table(r, titles)),
        "versus-all": ("versus", lambda r: all_systems_table(r, titles)),
        "versus-facts": ("versus", facts),
        "targets": ("versus", lambda r: targets_table(r, titles)),
        "roofline": ("versus", roofline_table),
        "installs": ("versus", installs_table),
        "growth-batch": ("growth", lambda r: images(r, "batch") + growth_table(r, by_batch=True)),
        "growth-context": (
            "growth",
            lambda r: images(r, "context") + growth_table(r, by_batch=False),
        ),
        "growth-prefill": ("growth", lambda r: images(r, "prefill") + prefill_table(r)),
        "growth-facts": ("growth", growth_facts),
        "profile": ("profile", profile_table),
        "startup": ("startup", startup_table),
        "peer-quality": ("peer-quality", peer_quality_table),
    }
    texts = {
        place: maker(found[kind]) if kind in found else NOTHING
        for place, (kind, maker) in makers.items()
    }
    texts["quality"] = quality_table(all_of(folder, "quality"))
    return texts


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float) -> str:
    """Three or four figures: 1,234, 123, 12.3, 1.23, 0.012."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.2g}"


def with_range(each: Mapping[str, float]) -> str:
    """Median, and smallest to largest where there are several."""
    if each["rounds"] == 1:
        return number(each["median"])
    return f"{number(each['median'])} ({number(each['min'])}–{number(each['max'])})"


def link(result: Result) -> str:
    """The results file, as docs/ links to it."""
    return f"[{result['file']}](../benchmarks/results/{result['file']})"


def facts(result: Result) -> str:
    """Where, when and what ran; what did not count; what is missing."""
    machine = result["machine"]
    settings = result["settings"]
    lines = [
        f"{link(result)}: {machine['cpu']}, {machine['cores']} cores, {machine['memory']}, "
        f"kernel {machine['kernel']}; commit {result['commit'][:12]}, {result['date'][:10]}; "
        f"{settings['threads']} threads and KV room for {settings['kv_tokens']:,} tokens for each "
        f"server. {result['discarded']} of {len(result['runs'])} runs did not count, because "
        f"others used more than {settings['others_at_most']:g} cores or a request failed.\n"
    ]
    slow = [
        f"{run['system']} in {run['workload'].upper()} ({run['wall_s']:.0f} s)"
        for run in result["runs"]
        if run.get("verdict") == "too slow"
    ]
    if slow:
        lines.append(f"\nToo slow to be the best, and stopped: {', '.join(slow)}.\n")
    if result["never_counted"]:
        lines.append(f"\nNo run counted of: {', '.join(result['never_counted'])}.\n")
    for name, reason in result["missing"].items():
        lines.append(f"\nMissing: {name}: {reason}.\n")
    return "".join(lines)


def versus_table(result: Result, titles: Mapping[str, Title]) -> str:
    """Headway against the best peer of each figure."""
    rows = []
    for row in result["comparison"]:
        if "ratio" not in row:
            continue
        title, systems = titles[row["figure"]], row["systems"]
        rows.append(
            [
                f"{title.title}, {title.unit}",
                with_range(systems["headway"]),
                f"{row['best_peer']}: {with_range(systems[row['best_peer']])}",
                with_range(row["ratio"]),
            ]
        )
    return table(("figure", "Headway", "best peer", "ratio"), rows)


def all_systems_table(result: Result, titles: Mapping[str, Title]) -> str:
    """Every system, one column each; peers that were not the best ran once."""
    names = sorted(
        {name for row in result["comparison"] for name in row["systems"]},
        key=lambda name: (name != "headway", name),
    )
    rows = [
        [
            f"{titles[row['figure']].title}, {titles[row['figure']].unit}",
            *(
                number(row["systems"][name]["median"]) if name in row["systems"] else "–"
                for name in names
            ),
        ]
        for row in result["comparison"]
    ]
    return table(("figure", *names), rows)


OWN_TARGETS = {
    "w1_share_of_floor": ("W1: share of the floor (weight bytes / read bandwidth)", "", "≥ 0.6"),
    "hit_over_miss": ("First token of a prefix hit / a miss, one client", "≤ 0.2", ""),
    "w3_ttft_over_cold": (
        "First token in W3 / the same load without a common prefix",
        "≤ 0.2",
        "",
    ),
    "w4_itl_p99_over_quiet_median": (
        "W4: P99 gap in the streams / their median gap without long prompts",
        "",
        "≤ 3",
    ),
    "w4_events_per_token": ("W4: events / tokens", "1", ""),
}
OWN_REACHED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "w1_share_of_floor": ("aim", lambda value: value >= 0.6),
    "hit_over_miss": ("must", lambda value: value <= 0.2),
    "w3_ttft_over_cold": ("must", lambda value: value <= 0.2),
    "w4_itl_p99_over_quiet_median": ("aim", lambda value: value <= 3),
    "w4_events_per_token": ("must", lambda value: value >= 0.99),
}
READY = (("aim", 2.0), ("must", 5.0))  # seconds


def targets_table(result: Result, titles: Mapping[str, Title]) -> str:
    """Each target, what was measured, and whether it is reached."""
    rows = []
    for row in result["comparison"]:
        title = titles[row["figure"]]
        if title.must and "ratio" in row:
            said = {"no": "**no**"}.get(row["reached"], row["reached"])
            what = f"{title.title} / the best peer's"
            rows.append([what, title.must, title.aim, with_range(row["ratio"]), said])
        if row["figure"] == "ready" and "headway" in row["systems"]:
            mine = row["systems"]["headway"]
            said = next((name for name, most in READY if mine["median"] <= most), "**no**")
            rows.append([title.title + ", s", "≤ 5", "≤ 2", with_range(mine), said])
    for key, (what, must, aim) in OWN_TARGETS.items():
        if key in result["own"]:
            each = result["own"][key]
            name, is_reached = OWN_REACHED[key]
            said = name if is_reached(each["median"]) else "**no**"
            rows.append([what, must, aim, with_range(each), said])
    return table(("target", "must", "aim", "measured", "reached"), rows)


def roofline_table(result: Result) -> str:
    """The machine's peaks over the rounds, and what of them was used."""
    own, model = result["own"], result["model"]
    rows = []
    for key, what in (
        ("read_gb_s", "read bandwidth, GB/s"),
        ("int8_gop_s", "int8 dot products in registers, GOP/s"),
        ("f32_gflop_s", "float32 multiply-adds in registers, GFLOP/s"),
    ):
        values = sorted(each[key] for each in result["rooflines"] if key in each)
        if values:
            middle = values[len(values) // 2]
            rows.append([what, f"{number(middle)} ({number(values[0])}–{number(values[-1])})"])
    rows.append(["weights read by a step, MB", number(model["weight_bytes"] / BYTES_IN_MB)])
    for key, what in (
        ("w1_share_of_floor", "W1: share of the floor"),
        ("w2_gop_s", "W2: operations of the matrices, GOP/s"),
        ("w2_share_of_peak", "W2: share of the int8 peak"),
    ):
        if key in own:
            rows.append([what, with_range(own[key])])
    return table(("what", "median (range)"), rows)


def installs_table(result: Result) -> str:
    """Size and import time of each system's environment."""
    rows = []
    for name, each in result.get("installs", {}).items():
        if "missing" in each:
            rows.append([name, "–", each["missing"]])
        elif "import_s" in each:
            rows.append(
                [name, number(each["mib"]), f"{number(each['import_s'])} s: `{each['import']}`"]
            )
        else:
            rows.append([name, number(each["mib"]), f"none: {each['what']}"])
    return table(("system", "MiB on disk", "import"), rows) if rows else NOTHING


def growth_facts(result: Result) -> str:
    """Where it was measured, and the engine's overhead."""
    machine, overhead = result["machine"], result["overhead"]
    return (
        f"{link(result)}: {machine['cpu']}, {result['threads']} threads; commit "
        f"{result['commit'][:12]}, {result['date'][:10]}. Outside the compiled kernels an engine "
        f"step at batch {overhead['batch']} spends {overhead['outside_kernels_share']:.1%} of its "
        f"{number(overhead['step_ms'])} ms (target: less than 5 %).\n"
    )


def images(result: Result, what: str) -> str:
    """The plots of one question, as the page shows them."""
    charts = sorted(charts_of(result).items())
    shown = [(name, each["title"]) for name, each in charts if name.startswith(f"growth-{what}")]
    return "".join(f"![{title}](images/{name})\n\n" for name, title in shown)


def growth_table(result: Result, *, by_batch: bool) -> str:
    """Decoding steps: over the batch at 256 positions, or over the context."""
    rows = []
    for name, points in result["models"].items():
        for point in sorted(points["decode"], key=lambda p: (p["batch"], p["context"])):
            if by_batch != (point["context"] == 256) and point["batch"] not in (1, 16):
                continue
            if by_batch and point["context"] != 256:
                continue
            rows.append(
                [
                    name,
                    f"{point['batch']}",
                    f"{point['context']:,}",
                    number(point["best_ms"]),
                    number(point["median_ms"]),
                    number(point["floor_ms"]),
                    number(point["batch"] / point["best_ms"] * 1e3),
                ]
            )
    header = ("model", "batch", "context", "best ms", "median ms", "floor ms", "tokens/s")
    return table(header, rows)


def prefill_table(result: Result) -> str:
    """Whole prompts."""
    rows = [
        [
            name,
            f"{point['context']:,}",
            number(point["best_ms"]),
            number(point["floor_ms"]),
            number(point["context"] / point["best_ms"] * 1e3),
        ]
        for name, points in result["models"].items()
        for point in sorted(points["prefill"], key=lambda p: p["context"])
    ]
    return table(("model", "prompt tokens", "best ms", "floor ms", "tokens/s"), rows)


def profile_table(result: Result) -> str:
    """Where a step's time goes: a column a case."""
    cases = result["results"]
    names = [phase["phase"] for phase in cases[0]["phases"]]
    rows = []
    for position, name in enumerate(names):
        cells = []
        for case in cases:
            phase = case["phases"][position]
            took = phase["work_ms"] + phase["wait_ms"]
            cells.append(f"{number(took)} ({took / case['whole_ms']:.0%})")
        rows.append([name, *cells])
    for key, what in (("sampling_ms", "sampling"), ("rest_ms", "the rest: Python around it")):
        rows.append([what, *(f"{number(c[key])} ({c[key] / c['whole_ms']:.0%})" for c in cases)])
    rows.append(["whole step, ms", *(number(case["whole_ms"]) for case in cases)])
    text = table(("phase, ms", *(case["name"] for case in cases)), rows)
    return f"{text}\n{link(result)}: {result['threads']} threads, commit {result['commit'][:12]}.\n"


def startup_table(result: Result) -> str:
    """Seconds of a first start's parts."""
    rows = [[f"`{name}`", number(took)] for name, took in result["seconds"].items()]
    text = table(("what", "seconds"), rows)
    return f"{text}\n{link(result)}: {result['machine']['cpu']}, commit {result['commit'][:12]}.\n"


def quality_table(results: Sequence[Result]) -> str:
    """Every candidate of every quality run, all texts together; of two runs of one, the later."""
    latest: dict[tuple[str, str], tuple[Result, Result]] = {}
    for result in results:
        for candidate in result["candidates"]:
            key = (result["model"]["file"], candidate["candidate"])
            latest.pop(key, None)
            latest[key] = (result, candidate)
    rows = []
    for (_, form), (result, candidate) in sorted(latest.items()):
        figures = candidate["texts"]["all"]
        low, high = figures["ratio_low"], figures["ratio_high"]
        rows.append(
            [
                f"`{form}`",
                f"{figures['positions']:,}",
                f"{figures['kl_mean']:.4f}",
                f"{figures['top1']:.1%}",
                f"{figures['top1_clear']:.2%} of {figures['clear_positions']:,}",
                f"{figures['perplexity_ratio']:.4f} ({low:.4f} to {high:.4f})",
                link(result),
            ]
        )
    header = ("weights/executor", "positions", "KL, nats", "same best token", "same where clear")
    return table((*header, "perplexity ratio, 95 % interval", "run"), rows) if rows else NOTHING


def peer_quality_table(result: Result) -> str:
    """Perplexity of each peer's form over the float32 reference's."""
    rows = []
    for name, each in sorted(result["peers"].items()):
        if "missing" in each:
            rows.append([name, *["–"] * 3, each["missing"]])
            continue
        texts = each["texts"]
        ratios = [
            f"{texts[text]['ratio']:.4f}" if "ratio" in texts.get(text, {}) else "–"
            for text in ("code", "prose", "all")
        ]
        said = "–"
        if "ratio" in texts["all"]:
            said = "yes" if texts["all"]["ratio"] <= WITHIN else "no"
        rows.append([name, *ratios, said])
    text = table(("peer", "code", "prose", "both", "within 1 %"), rows)
    return f"{text}\n{link(result)}: commit {result['commit'][:12]}.\n"


def charts_of(growth: Result) -> dict[str, dict[str, Any]]:
    """What the plots show, by file name: title, labels and series of (label, points, floor)."""
    found: dict[str, dict[str, Any]] = {}
    batch, prefill = [], []
    for name, points in growth["models"].items():
        at_256 = [p for p in points["decode"] if p["context"] == 256]
        batch += _pair(name, [(p["batch"], p["best_ms"], p["floor_ms"]) for p in at_256])
        rates = [
            (p["context"], *(p["context"] / p[key] * 1e3 for key in ("best_ms", "floor_ms")))
            for p in points["prefill"]
        ]
        prefill += _pair(name, rates)
        by_context = []
        for size in (1, 16):
            chosen = [p for p in points["decode"] if p["batch"] == size]
            triples = [(p["context"], p["best_ms"], p["floor_ms"]) for p in chosen]
            by_context += _pair(f"batch {size}", triples)
        if by_context:
            slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            found[f"growth-context-{slug}.svg"] = {
                "title": f"{name}: decoding step over context",
                "x": "context, tokens",
                "y": "ms a step",
                "series": by_context,
            }
    if batch:
        found["growth-batch.svg"] = {
            "title": "Decoding step over batch, 256 tokens of context",
            "x": "sequences in the step",
            "y": "ms a step",
            "series": batch,
        }
    if prefill:
        found["growth-prefill.svg"] = {
            "title": "Prefill over the prompt's length",
            "x": "prompt, tokens",
            "y": "prompt tokens/s",
            "series": prefill,
        }
    return found


def _pair(
    label: str, triples: Sequence[tuple[float, float, float]]
) -> list[tuple[str, list[tuple[float, float]], bool]]:
    """The measured line and its floor."""
    if not triples:
        return []
    ordered = sorted(triples)
    return [
        (label, [(x, measured) for x, measured, _ in ordered], False),
        (f"{label}, limit of the machine", [(x, floor) for x, _, floor in ordered], True),
    ]
