"""The real clock: the one place that reads the machine's time for decisions."""

import time

from headway.core.base.units import Seconds


class SystemClock:
    """Monotonic seconds since some moment before the process began."""

    def now(self) -> Seconds:
        """Seconds that pass only while the machine is awake; never go back."""
        return Seconds(time.monotonic())
