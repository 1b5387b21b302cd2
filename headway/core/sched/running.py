"""The running sequences: by id, in the order in which they advance, and counted.

A running sequence's class, rank and lane do not change, so the order and the counts are kept
with each coming and going, and asking costs nothing however many run.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, ValuesView

from headway.core.sched.sequence import Sequence
from headway.core.tenancy.tenant import NUM_CLASSES

Place = tuple[int, int, Sequence]  # rank, id; ids differ, so sequences are never compared


class RunningSet(Mapping[int, Sequence]):
    """Those that have a slot."""

    def __init__(self) -> None:
        self._by_id: dict[int, Sequence] = {}
        self._places: list[Place] = []  # the most important first, the earliest within a rank
        self._of_class = [0] * NUM_CLASSES
        self.num_long = 0  # of the slow lane
        self.num_lifted = 0

    def __getitem__(self, sequence_id: int) -> Sequence:
        return self._by_id[sequence_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> ValuesView[Sequence]:
        """All of them, in the order in which they came."""
        return self._by_id.values()

    def in_order(self) -> list[Sequence]:
        """All of them, as they advance; a list of its own, so that they may leave meanwhile."""
        return [place[2] for place in self._places]

    def num_below(self, slo_class: int) -> int:
        """Those of a less important class."""
        return sum(self._of_class[slo_class + 1 :])

    def add(self, sequence: Sequence) -> None:
        """It has a slot from now on."""
        self._by_id[sequence.id] = sequence
        insort(self._places, _place(sequence))
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """It gives its slot back."""
        del self._by_id[sequence.id]
        del self._places[bisect_left(self._places, _place(sequence))]
        self._count(sequence, -1)

    def check(self) -> None:
        """Order and counts are those of the sequences that are there."""
        assert self._places == sorted(_place(s) for s in self.values()), "out of order"
        of_class = [s.group.request.slo_class for s in self.values()]
        assert self._of_class == [of_class.count(each) for each in range(NUM_CLASSES)], "miscounted"
        assert self.num_long == sum(s.standing.is_long for s in self.values()), "miscounted"
        assert self.num_lifted == sum(s.is_lifted for s in self.values()), "miscounted"

    def _count(self, sequence: Sequence, sign: int) -> None:
        self._of_class[sequence.group.request.slo_class] += sign
        self.num_long += sign * sequence.standing.is_long
        self.num_lifted += sign * sequence.is_lifted


def _place(sequence: Sequence) -> Place:
    return sequence.standing.rank, sequence.id, sequence
