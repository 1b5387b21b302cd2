"""Trains the classifier behind `model: auto` and writes its weights into the package.

PYTHONPATH=. python tools/train_classifier.py            train, judge, write the weights
PYTHONPATH=. python tools/train_classifier.py --check    write nothing
PYTHONPATH=. python tools/train_classifier.py --data OWN.jsonl
                     also on prompts of your own, one JSON object a line:
                     {"text": ..., "size": "small", "family": ...}

Multinomial logistic regression over the features and hashed n-grams that `core.route.size` computes
at run time, fitted with plain NumPy. How strongly it is held back was chosen by leaving out one
training family after the other (`--search`); the families called unseen in size_families.yaml are
used only for the figures printed at the end.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headway.core.route.features import NAMES, Prompt, features
from headway.core.route.size import ClassifierSizer, Size, SizeModel, buckets_of
from headway.core.route.table import AutoSettings
from tools.size_prompts import Example, examples, load

WEIGHTS = Path(__file__).resolve().parent.parent / "headway/core/route/size_model.json"
NUM_BUCKETS = 4096
SIZES = tuple(Size)
STEPS, RATE = 400, 0.05
L2_GRAMS, L2_FEATURES = 1e-4, 1e-4
FOLDS_OF_L2 = ((1e-4, 1e-4), (3e-4, 1e-4), (1e-3, 1e-4), (1e-3, 1e-3), (3e-3, 1e-4))
AUTO = AutoSettings(small="small", medium="medium", large="large")

Floats = NDArray[np.float32]


class Fitted(msgspec.Struct, frozen=True):
    """Weights as they were fitted: one column a class."""

    bias: Floats  # [3]
    dense: Floats  # [features, 3]
    grams: Floats  # [buckets, 3]


def matrix(data: Sequence[Example]) -> Floats:
    """One row an example: a one, its features, and its buckets, each row of those of length 1."""
    rows = np.zeros((len(data), 1 + len(NAMES) + NUM_BUCKETS), np.float32)
    rows[:, 0] = 1.0
    for row, each in zip(rows, data, strict=True):
        row[1 : 1 + len(NAMES)] = features(Prompt(each.text, len(each.text)))
        buckets = sorted(buckets_of(each.text, NUM_BUCKETS))
        row[1 + len(NAMES) + np.array(buckets, np.int64)] = 1.0 / np.sqrt(len(buckets))
    return rows


def fit(rows: Floats, classes: NDArray[np.int64], l2: tuple[float, float]) -> Fitted:
    """Minimise the mean cross entropy plus the penalties, all examples at once (Adam).

    l2  of the n-grams' weights, and of the features'
    """
    num_features = len(NAMES)
    weights = np.zeros((rows.shape[1], len(SIZES)), np.float32)
    penalty = np.full((rows.shape[1], 1), l2[0], np.float32)
    penalty[0], penalty[1 : 1 + num_features] = 0.0, l2[1]
    wanted = np.eye(len(SIZES), dtype=np.float32)[classes]
    balance = (len(classes) / (len(SIZES) * wanted.sum(0)))[classes][:, None]
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        logits = rows @ weights
        powers = np.exp(logits - logits.max(1, keepdims=True))
        error = (powers / powers.sum(1, keepdims=True) - wanted) * balance
        gradient = rows.T @ error / len(rows) + penalty * weights
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        weights -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return Fitted(weights[0], weights[1 : 1 + num_features], weights[1 + num_features :])


def packed(fitted: Fitted, made_by: str) -> SizeModel:
    """The same as plain data, its n-grams in 8 bits."""
    scale = float(np.abs(fitted.grams).max()) / 127.0
    grams = np.round(fitted.grams / scale).astype(np.int8)
    small, medium, large = (round(float(value), 5) for value in fitted.bias)
    return SizeModel(
        made_by=made_by,
        features=NAMES,
        num_buckets=NUM_BUCKETS,
        bias=(small, medium, large),
        dense=tuple(tuple(round(float(v), 5) for v in row) for row in fitted.dense.T),
        scale=scale,
        grams=grams.T.tobytes(),
    )


def right(model: SizeModel, data: Sequence[Example]) -> list[bool]:
    """For each example: whether the packed model says its size."""
    sizer = ClassifierSizer(AUTO, model)
    return [sizer.size(Prompt(each.text, len(each.text))).size is each.size for each in data]


def chosen_l2(data: Sequence[Example], rows: Floats) -> tuple[float, float]:
    """The penalties that do best on families that were left out; prints what each does."""
    families = sorted({each.family for each in data})
    classes = np.array([SIZES.index(each.size) for each in data])
    of = np.array([families.index(each.family) for each in data])
    best = (0.0, (L2_GRAMS, L2_FEATURES))
    for l2 in FOLDS_OF_L2:
        correct = 0
        for left_out in range(len(families)):
            model = packed(fit(rows[of != left_out], classes[of != left_out], l2), "")
            held = [each for each, at in zip(data, of, strict=True) if at == left_out]
            correct += sum(right(model, held))
        print(f"l2 {l2}: {correct / len(data):.3f} right on the family left out", flush=True)
        best = max(best, (correct / len(data), l2))
    return best[1]


def own_prompts(path: Path) -> list[Example]:
    """Prompts of a file; raises ValueError or KeyError for a line that is none."""
    made = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        family = entry.get("family", "own")
        made.append(Example(family, Size(entry["size"]), entry.get("language", ""), entry["text"]))
    return made


def main() -> int:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="further prompts to train on")
    parser.add_argument("--search", action="store_true", help="choose the penalties anew")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    unseen = set(load().unseen)
    everything = examples()
    data = [each for each in everything if each.family not in unseen]
    data += own_prompts(options.data) if options.data else []
    rows = matrix(data)
    l2 = chosen_l2(data, rows) if options.search else (L2_GRAMS, L2_FEATURES)
    classes = np.array([SIZES.index(each.size) for each in data])
    model = packed(
        fit(rows, classes, l2),
        f"tools/train_classifier.py, {len(data)} prompts of "
        f"{len({each.family for each in data})} families, l2 {l2[0]:g} {l2[1]:g}",
    )
    judged = [each for each in everything if each.family in unseen]
    print(f"{len(everything)} prompts of {len({each.family for each in everything})} families")
    print(f"right on {len(data)} trained on: {np.mean(right(model, data)):.3f}")
    print(f"right on {len(judged)} of unseen families: {np.mean(right(model, judged)):.3f}")
    if not options.check:
        WEIGHTS.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
        print(f"wrote {WEIGHTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
