"""How many sequences may run at a time after some had to be stopped for want of blocks.

Down at once to a part of what was running, and up again in small steps, each after a calm
while, until as many may run as did when it began: whoever lets everybody in again at once has
them stopped again at once.
"""

import math

from headway.core.base.units import Seconds

HELD_SHARE = 0.75  # of those that ran, while holding
RETURNS = 1 / 8  # of those that ran when it began, a calm while


class Held:
    """The most that may run at a time; None as long as the slots alone bound it."""

    def __init__(self) -> None:
        self.most: int | None = None
        self._before = 0  # that ran when it began
        self._since = -math.inf  # of the last change

    def shrink(self, num_ran: int, now: Seconds) -> None:
        """So many ran, those included that were just stopped, and they were too many."""
        if self.most is None:
            self._before = num_ran
        most = num_ran if self.most is None else min(self.most, num_ran)
        self.most = max(1, int(HELD_SHARE * most))
        self._since = now

    def wait(self, now: Seconds) -> None:
        """It is not calm: what may run stays as it is."""
        self._since = now

    def grow(self, calm: Seconds, now: Seconds) -> None:
        """It is calm, and where that has lasted for `calm` a few more may run."""
        if self.most is None or now - self._since < calm:
            return
        self.most += max(1, int(RETURNS * self._before))
        self._since = now
        if self.most >= self._before:
            self.most = None
