"""How long a step may get by the prompts of a class, where more important ones wait for its end.

Whoever arrives waits for the end of the running step, and whose prompt ends in a step waits for
all else that the step computes. Both make up most of what others add to a first token's time.
"""

import math

from headway.core.base.units import Seconds
from headway.core.tenancy.tenant import NUM_CLASSES

# Of the time that a step may take, for prompts less important than one that is computed in it.
# Short of nothing, because what decodes leave of a short step costs hardly anybody's time.
BESIDE = 0.3
# The same for prompts less important than a class of which somebody came lately.
EXPECTED = 0.45
LATELY = 10.0  # seconds


class Haste:
    """Who came lately, and who has a prompt in the step being planned; a number each class."""

    def __init__(self) -> None:
        self._came = [-math.inf] * NUM_CLASSES
        self._first = NUM_CLASSES  # the most important class with a prompt in this step

    def came(self, slo_class: int, now: Seconds) -> None:
        """A request of the class joined the line."""
        self._came[slo_class] = now

    def begin(self) -> None:
        """A new step."""
        self._first = NUM_CLASSES

    def computes(self, slo_class: int) -> None:
        """A prompt of the class is computed in this step."""
        self._first = min(self._first, slo_class)

    def share(self, slo_class: int, now: Seconds) -> float:
        """Of the time that a step may take, what it may take with prompts of this class."""
        if self._first < slo_class:
            return BESIDE
        lately = any(now - came < LATELY for came in self._came[:slo_class])
        return EXPECTED if lately else 1.0
