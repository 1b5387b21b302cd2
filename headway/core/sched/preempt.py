"""Whom to stop for a more important request, and how: pure decisions over numbers.

Nobody is stopped for an equal (guests aside) or less important class, and nobody at all when
all of those who may be stopped would not be enough.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headway.core.base.units import Blocks
from headway.core.tenancy.tenant import NUM_CLASSES

# After so many times a sequence is only stopped when nobody else is left.
MAX_PREEMPTIONS = 2


class Holder(NamedTuple):
    """A running sequence as a possible victim."""

    id: int
    slo_class: int
    rank: int
    blocks: Blocks  # that would become available
    lost: float  # what stopping it costs; any unit, the same for all
    num_preempted: int
    is_lent: bool = False  # has a slot that is kept for short ones, as a guest


class Claim(NamedTuple):
    """What somebody more important lacks."""

    slo_class: int
    rank: int
    blocks: int
    slots: int
    is_host: bool = False  # wants a slot, and such are kept for its kind

    def may_stop(self, slo_class: int, rank: int, is_lent: bool) -> bool:
        """True for those who are less important by class, and were not lifted to its rank.

        A lent slot is given back to a host of the same class too.
        """
        if is_lent and self.is_host and slo_class == self.slo_class:
            return True
        return slo_class > self.slo_class and rank > self.rank


class Way(Enum):
    """What becomes of a victim's computed tokens."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


def _none() -> list[int]:
    return [0] * NUM_CLASSES


@dataclass(slots=True)
class Preemptions:
    """How often running sequences were stopped since start: what for, and how."""

    for_class: int = 0  # slots or blocks for a more important class
    for_blocks: int = 0  # the pool ran out, and the latest gave way
    swapped: list[int] = field(default_factory=_none)  # by the class of who was stopped
    recomputed: list[int] = field(default_factory=_none)

    @property
    def total(self) -> int:
        """Of all classes and kinds."""
        return sum(self.swapped) + sum(self.recomputed)

    def count(self, slo_class: int, way: Way) -> None:
        """One of that class was stopped that way."""
        counts = self.swapped if way is Way.SWAP else self.recomputed
        counts[slo_class] += 1


class Rates(NamedTuple):
    """Measured speeds; None as long as nothing was measured, or it is not possible."""

    prefill_tokens_per_s: float | None = None
    copy_bytes_per_s: float | None = None  # one way


def cheaper_way(tokens: int, num_bytes: int, rates: Rates, most: float = 1.0) -> tuple[Way, float]:
    """How to stop a sequence with so many tokens computed, and what that costs in seconds.

    Swapping copies its bytes out and in again; recomputing takes its tokens through a step
    once more. Without a measured speed a token counts as one second: only the order matters.
    Swapping is chosen up to `most` times the cost of the other.
    """
    again = tokens / (rates.prefill_tokens_per_s or 1.0)
    if not rates.copy_bytes_per_s:
        return Way.RECOMPUTE, again
    moved = 2 * num_bytes / rates.copy_bytes_per_s
    if rates.prefill_tokens_per_s is None or moved < most * again:
        return Way.SWAP, moved
    return Way.RECOMPUTE, again


def choose_victims(holders: Iterable[Holder], claim: Claim) -> tuple[int, ...] | None:
    """Ids of those to stop, or None when that would not be enough.

    The least important class gives way first, then whoever loses least, the latest among
    equals; one that was stopped often enough only when nobody else is left. Nobody is
    stopped who is not needed.
    """
    candidates = sorted(
        (h for h in holders if claim.may_stop(h.slo_class, h.rank, h.is_lent)),
        key=lambda h: (h.num_preempted >= MAX_PREEMPTIONS, -h.slo_class, -h.rank, h.lost, -h.id),
    )
    chosen: list[Holder] = []
    blocks, slots = claim.blocks, claim.slots
    for holder in candidates:
        if blocks <= 0 and slots <= 0:
            break
        chosen.append(holder)
        blocks -= holder.blocks
        slots -= 1
    if blocks > 0 or slots > 0:
        return None
    for holder in list(chosen):  # a large one may have made smaller ones unnecessary
        if blocks + holder.blocks <= 0 and slots + 1 <= 0:
            chosen.remove(holder)
            blocks += holder.blocks
            slots += 1
    return tuple(holder.id for holder in chosen)
