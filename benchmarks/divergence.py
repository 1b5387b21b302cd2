"""How far one set of next-token distributions is from another."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

CLEAR_GAP = 0.5  # between the two best logits: there the choice is no toss-up
ROWS_AT_ONCE = 64  # in float64: 25 MB for 49,152 ids

Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A candidate B against its reference A, over all positions of one or more texts."""

    positions: int
    kl_mean: float  # KL(A || B) in nats
    kl_max: float
    top1: float  # share of positions at which both have the same best token
    clear_positions: int  # those where A's best logit leads by more than CLEAR_GAP
    top1_clear: float  # the share among these; 1.0 when there are none
    perplexity_a: float
    perplexity_b: float
    perplexity_ratio: float  # B over A: above 1 is worse

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
    return Divergence(
        positions=len(positions.kl),
        kl_mean=float(positions.kl.mean()),
        kl_max=float(positions.kl.max()),
        top1=float(positions.same.mean()),
        clear_positions=int(clear.sum()),
        top1_clear=float(positions.same[clear].mean()) if clear.any() else 1.0,
        perplexity_a=float(np.exp(loss_a)),
        perplexity_b=float(np.exp(loss_b)),
        perplexity_ratio=float(np.exp(loss_b - loss_a)),
    )


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
