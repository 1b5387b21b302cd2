#!/usr/bin/env python3
"""How often `model: auto` picks the size that a prompt needs, on families it was not trained on.

    PYTHONPATH=. .venv/bin/python benchmarks/size_classifier.py --name size-classifier

Judges the weights in the package beside four simpler rules, gives the curve of accuracy against
cost over the setting `confidence`, and times one decision on a short and on a long prompt. The
prompts come from templates by the same authors as the rules: on real traffic expect less, and
measure with prompts of your own (`--data`, as for tools/train_classifier.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec
from run_workloads import commit, machine, versions

from headway.core.route.features import Prompt, features, score
from headway.core.route.size import ClassifierSizer, ScoreSizer, Size
from headway.core.route.table import AutoSettings
from headway.service.gateway.route_parts import packaged_model
from tools.size_prompts import Example, examples, load
from tools.train_classifier import own_prompts

RESULTS = Path(__file__).resolve().parent / "results"
COST = {Size.SMALL: 1.0, Size.MEDIUM: 3.0, Size.LARGE: 10.0}  # a request; the brief: 10 x less
CONFIDENCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
AUTO = AutoSettings(small="small", medium="medium", large="large")
ORDER = tuple(Size)
REPEATS = 200

Rule = Callable[[str], Size]


def judged(rule: Rule, data: Sequence[Example]) -> dict[str, float]:
    """Shares of the prompts, and the mean cost of one."""
    said = [rule(each.text) for each in data]
    pairs = list(zip(said, data, strict=True))
    count = len(data)
    return {
        "right": sum(got is each.size for got, each in pairs) / count,
        "too_small": sum(ORDER.index(got) < ORDER.index(each.size) for got, each in pairs) / count,
        "too_large": sum(ORDER.index(got) > ORDER.index(each.size) for got, each in pairs) / count,
        "mean_cost": sum(COST[got] for got in said) / count,
    }


def by_thresholds(value: Callable[[str], float], data: Sequence[Example]) -> Rule:
    """The rule over one number whose two thresholds do best on `data`."""
    ranked = sorted((value(each.text), ORDER.index(each.size)) for each in data)
    cuts = [number for number, _ in ranked[:: max(1, len(ranked) // 60)]]

    def correct(low: float, high: float) -> int:
        return sum((at >= low) + (at >= high) == size for at, size in ranked)

    low, high = max(
        ((low, high) for low in cuts for high in cuts if low <= high), key=lambda c: correct(*c)
    )
    return lambda text: ORDER[(value(text) >= low) + (value(text) >= high)]


def classifier(confidence: float) -> Rule:
    """The weights in the package."""
    auto = msgspec.structs.replace(AUTO, confidence=confidence)
    sizer = ClassifierSizer(auto, packaged_model())
    return lambda text: sizer.size(Prompt(text, len(text))).size


def points(text: str) -> float:
    """The transparent score."""
    return score(features(Prompt(text, len(text))))


def milliseconds(text: str) -> dict[str, float]:
    """One decision: the median and the longest of many."""
    sizer = ClassifierSizer(AUTO, packaged_model())
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        sizer.size(Prompt(text, len(text)))
        times.append(1000.0 * (time.perf_counter() - began))
    return {"chars": len(text), "median_ms": median(times), "max_ms": max(times)}


def confusion(rule: Rule, data: Sequence[Example]) -> dict[str, dict[str, int]]:
    """Needed size -> said size -> prompts."""
    counted = Counter((each.size.value, rule(each.text).value) for each in data)
    return {
        need.value: {said.value: counted[need.value, said.value] for said in ORDER}
        for need in ORDER
    }


def figures(data: Sequence[Example], unseen: Sequence[Example]) -> dict[str, object]:
    """Everything but who measured it."""
    trained = classifier(AUTO.confidence)
    default = ScoreSizer(AUTO)
    rules: dict[str, Rule] = {
        "classifier": trained,
        "score, default thresholds": lambda text: default.size(Prompt(text, len(text))).size,
        "score, thresholds fitted": by_thresholds(points, data),
        "length only, thresholds fitted": by_thresholds(len, data),
        "always large": lambda _: Size.LARGE,
    }
    families = sorted({each.family for each in unseen})
    long_text = next(each.text for each in unseen if len(each.text) > 2000) * 50
    return {
        "prompts": {"trained_on": len(data), "unseen": len(unseen)},
        "unseen_families": families,
        "needed": dict(Counter(each.size.value for each in unseen)),
        "rules": {name: judged(rule, unseen) for name, rule in rules.items()},
        "classifier_on_what_it_was_trained_on": judged(trained, data),
        "by_family": {
            name: judged(trained, [e for e in unseen if e.family == name]) for name in families
        },
        "by_language": {
            name: judged(trained, [e for e in unseen if e.language == name])
            for name in sorted({e.language for e in unseen})
        },
        "confusion": confusion(trained, unseen),
        "curve": [{"confidence": c, **judged(classifier(c), unseen)} for c in CONFIDENCES],
        "time": [milliseconds(unseen[0].text), milliseconds(long_text)],
        "weights": packaged_model().made_by,
    }


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", help="write benchmarks/results/NAME.json")
    parser.add_argument("--data", type=Path, help="judge on these prompts instead")
    options = parser.parse_args()
    left_out = set(load().unseen)
    everything = examples()
    data = [each for each in everything if each.family not in left_out]
    unseen = [each for each in everything if each.family in left_out]
    found = figures(data, own_prompts(options.data) if options.data else unseen)
    print(json.dumps(found, indent=1))
    if options.name:
        made = {"commit": commit(), "machine": machine(), "versions": versions(), **found}
        (RESULTS / f"{options.name}.json").write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
