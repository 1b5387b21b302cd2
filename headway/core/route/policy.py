"""Which replica of a pool gets a request: the least expected work, or where its prompt is known.

A replica that has computed the beginning of a prompt saves that part of it (Zheng et al. 2024,
SGLang, section 3: cache-aware routing). But a popular beginning must not fill one replica while
others idle: a request follows its prompt only where its expected end is at most a bounded factor
later than on the least loaded replica, and only if that pays.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headway.core.base.units import Seconds, Tokens
from headway.core.route.index import CHUNK, PrefixIndex, chunk_names

DEFAULT_FACTOR = 1.5
LOAD, PREFIX = "load", "prefix"  # reasons


class Candidate(NamedTuple):
    """A replica that may be chosen now."""

    id: str
    work: Seconds  # until it has ended what it has
    prefill_rate: float = 1000.0  # prompt tokens a second; > 0
    answer_s: Seconds = Seconds(0.0)  # what one more answer adds to its work
    last_sent: int = 0  # when it got one, counted in requests: decides between equals


class Choice(NamedTuple):
    """The replica that was chosen, and why."""

    id: str
    reason: str  # LOAD or PREFIX
    matched: Tokens = Tokens(0)  # of the prompt, that it is taken to hold
    names: tuple[bytes, ...] = ()  # of the prompt's chunks


class RoutePolicy(Protocol):
    """Chooses among the replicas of one pool."""

    def choose(
        self, candidates: Sequence[Candidate], prompt: Sequence[int], salt: bytes
    ) -> Choice | None:
        """One of the candidates, and no other; None only when there are none.

        salt  whose prompt it is: prompts of two salts have nothing in common
        """
        ...

    def sent(self, choice: Choice) -> None:
        """The request goes there."""
        ...

    def forget(self, replica: str) -> None:
        """The replica's process has gone, and its cache with it."""
        ...


class LeastWork:
    """The replica with the least expected work; equals take turns."""

    def choose(
        self, candidates: Sequence[Candidate], prompt: Sequence[int], salt: bytes
    ) -> Choice | None:
        """The least loaded one."""
        return Choice(_least(candidates).id, LOAD) if candidates else None

    def sent(self, choice: Choice) -> None:
        """Changes nothing."""

    def forget(self, replica: str) -> None:
        """Changes nothing."""


class PrefixAffinity:
    """The replica where the request ends first, what it holds of the prompt counted.

    Skew is bounded: for the chosen one, work + own <= factor x (least work + own), where `own` is
    what the request itself takes without any cache.
    """

    def __init__(self, model: str, most_chunks: int, factor: float = DEFAULT_FACTOR) -> None:
        """most_chunks  that one replica's KV cache is taken to hold"""
        assert factor >= 1.0, factor
        self._model = model
        self._factor = factor
        self.index = PrefixIndex(most_chunks)

    def choose(
        self, candidates: Sequence[Candidate], prompt: Sequence[int], salt: bytes
    ) -> Choice | None:
        """See the class."""
        if not candidates:
            return None
        names = chunk_names(self._model, salt, prompt)
        least = _least(candidates)
        matches = {each.id: self.index.match(each.id, names) * CHUNK for each in candidates}
        limit = self._factor * (least.work + _own(least, prompt))
        allowed = [each for each in candidates if each.work + _own(least, prompt) <= limit]
        best = min(
            allowed or [least],
            key=lambda each: (each.work - matches[each.id] / each.prefill_rate, *_order(each)),
        )
        reason = LOAD if best is least else PREFIX
        return Choice(best.id, reason, Tokens(matches[best.id]), names)

    def sent(self, choice: Choice) -> None:
        """Its replica holds the prompt from now on."""
        self.index.add(choice.id, choice.names)

    def forget(self, replica: str) -> None:
        """It holds nothing any more."""
        self.index.forget(replica)


def _own(candidate: Candidate, prompt: Sequence[int]) -> float:
    return len(prompt) / candidate.prefill_rate + candidate.answer_s


def _least(candidates: Sequence[Candidate]) -> Candidate:
    return min(candidates, key=_order)


def _order(candidate: Candidate) -> tuple[float, int, str]:
    return candidate.work, candidate.last_sent, candidate.id
