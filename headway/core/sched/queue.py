"""Sequences that wait for a slot: first come, first served, and never without a bound."""

from collections.abc import Iterator
from typing import NamedTuple

from headway.core.sched.sequence import Sequence


class QueueLimits(NamedTuple):
    """How much may wait; past either limit a request is refused."""

    max_sequences: int
    max_tokens: int  # prompt tokens


class WaitingQueue:
    """Waiting sequences in order of arrival; a preempted one is back where it was."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._by_id: dict[int, Sequence] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    @property
    def num_tokens(self) -> int:
        """Tokens that the waiting sequences still have to compute; choices share a prompt."""
        return self._num_tokens

    def problem_with(self, num_sequences: int, num_tokens: int, free_slots: int) -> str | None:
        """Why a request of that size may not join, or None.

        `free_slots` sequences would not really wait. A prompt over the token limit is
        taken when nothing else waits, or it could never be answered.
        """
        waiting = max(0, len(self) + num_sequences - free_slots)
        if waiting > self.limits.max_sequences:
            return f"{waiting} sequences would wait, the limit is {self.limits.max_sequences}"
        tokens = self._num_tokens + num_tokens
        if self._num_tokens and tokens > self.limits.max_tokens:
            return f"{tokens} prompt tokens would wait, the limit is {self.limits.max_tokens}"
        return None

    def push(self, sequence: Sequence) -> None:
        """Join the line; O(1) for a new arrival, O(n) for one that comes back."""
        newest = next(reversed(self._by_id), -1)
        self._by_id[sequence.id] = sequence
        if sequence.id < newest:
            self._by_id = dict(sorted(self._by_id.items()))
        self._num_tokens += self._weight(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Leave the line: admitted, or its client has gone. O(1)."""
        del self._by_id[sequence.id]
        self._num_tokens -= self._weight(sequence)

    @staticmethod
    def _weight(sequence: Sequence) -> int:
        return sequence.num_prompt if sequence.choice == 0 else 0
