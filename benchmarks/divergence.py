"""How far one set of next-token distributions is from another."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

CLEAR_GAP = 0.5  # between the two best logits: there the choice is no toss-up
BLOCK = 32  # neighbouring positions, which are drawn together
DRAWS = 2000
ROWS_AT_ONCE = 64  # in float64: 25 MB for 49,152 ids

Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A candidate B against its reference A, over all positions of one or more texts."""

    positions: int
    kl_mean: float  # KL(A || B) in nats
    kl_p99: float
    kl_max: float
    top1: float  # share of positions at which both have the same best token
    clear_positions: int  # those where A's best logit leads by more than CLEAR_GAP
    top1_clear: float  # the share among these; 1.0 when there are none
    perplexity_a: float
    perplexity_b: float
    perplexity_ratio: float  # B over A: above 1 is worse
    ratio_low: float  # its 95 % interval, by a paired bootstrap over blocks of positions
    ratio_high: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Positions:
    """The figures of each position [T], from which those of any set of texts follow."""

    kl: Floats
    same: npt.NDArray[np.bool_]
    gap: Floats  # between A's two best
    logprob_a: Floats  # of the token that the text has
    logprob_b: Floats


def compare(a: Float32s, b: Float32s, targets: Ints) -> Positions:
    """Position by position.

    a, b     [T, V]  log-probabilities
    targets  [T]     ids that the text has
    """
    parts = [
        _compare_rows(a[rows], b[rows], targets[rows])
        for start in range(0, len(a), ROWS_AT_ONCE)
        for rows in [slice(start, start + ROWS_AT_ONCE)]
    ]
    return join(parts)


def join(parts: list[Positions]) -> Positions:
    """All positions of several texts."""
    return Positions(
        kl=np.concatenate([part.kl for part in parts]),
        same=np.concatenate([part.same for part in parts]),
        gap=np.concatenate([part.gap for part in parts]),
        logprob_a=np.concatenate([part.logprob_a for part in parts]),
        logprob_b=np.concatenate([part.logprob_b for part in parts]),
    )


def summarise(positions: Positions) -> Divergence:
    """The figures of a whole text."""
    clear = positions.gap > CLEAR_GAP
    loss_a, loss_b = -positions.logprob_a.mean(), -positions.logprob_b.mean()
    low, high = interval(positions.logprob_a - positions.logprob_b)
    return Divergence(
        positions=len(positions.kl),
        kl_mean=float(positions.kl.mean()),
        kl_p99=float(np.quantile(positions.kl, 0.99)),
        kl_max=float(positions.kl.max()),
        top1=float(positions.same.mean()),
        clear_positions=int(clear.sum()),
        top1_clear=float(positions.same[clear].mean()) if clear.any() else 1.0,
        perplexity_a=float(np.exp(loss_a)),
        perplexity_b=float(np.exp(loss_b)),
        perplexity_ratio=float(np.exp(loss_b - loss_a)),
        ratio_low=low,
        ratio_high=high,
    )


def interval(differences: Floats) -> tuple[float, float]:
    """The 95 % interval of exp(mean) of losses' differences, position by position.

    Blocks of neighbours are drawn with replacement, since neighbours are alike.
    """
    starts = np.arange(0, len(differences), BLOCK)
    sums = np.add.reduceat(differences, starts)
    sizes = np.diff([*starts, len(differences)])
    chosen = np.random.default_rng(0).integers(0, len(sums), size=(DRAWS, len(sums)))
    means = sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1)
    low, high = np.exp(np.quantile(means, [0.025, 0.975]))
    return float(low), float(high)


def _compare_rows(a: Float32s, b: Float32s, targets: Ints) -> Positions:
    reference, candidate = a.astype(np.float64), b.astype(np.float64)
    two_best = np.partition(reference, -2, axis=-1)[:, -2:]
    places = np.arange(len(targets))
    return Positions(
        kl=(np.exp(reference) * (reference - candidate)).sum(axis=-1),
        same=reference.argmax(axis=-1) == candidate.argmax(axis=-1),
        gap=two_best[:, 1] - two_best[:, 0],
        logprob_a=reference[places, targets],
        logprob_b=candidate[places, targets],
    )
