"""When a replica is stalled, when to start it again, and what to tell clients meanwhile.

All of it decides from times that it is given, so that tests need no process and no waiting.
"""

import signal
from enum import Enum

import msgspec

from headway.core.base.units import Seconds


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How patient the server is with its replica; all in seconds."""

    heartbeat_s: float = 1.0  # between two heartbeats
    tick_s: float = 0.5  # between two looks at the replica
    stall_after_s: float = 10.0  # work pending without a step, or no heartbeat: not ready
    kill_after_s: float = 60.0  # seen stalled for so long: killed and started again
    load_silence_s: float = 300.0  # no sign of life while loading: killed
    backoff_first_s: float = 0.5  # before the first restart; doubles with each
    backoff_limit_s: float = 30.0
    healthy_after_s: float = 60.0  # ready for so long: the next restart is a first one again
    stop_grace_s: float = 5.0  # from Stop, or SIGTERM while loading, to SIGKILL


class Verdict(Enum):
    """What the stall rule says about a running replica."""

    FINE = "fine"
    STALLED = "stalled"
    HOPELESS = "hopeless"  # stalled for too long: kill it


class Pulse:
    """Signs of life of one process, and the rule that judges them.

    Silence is counted by our own ticks, each of them for at most two tick lengths: time in
    which this process was stopped or busy itself is not held against the replica.
    """

    def __init__(self, settings: SupervisorSettings, now: Seconds) -> None:
        self._settings = settings
        self._last_tick = now
        self._silent_s = 0.0  # since anything was heard
        self._pending_s = 0.0  # by the last heartbeat: work pending without a step
        self._stalled_s = 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since anything was heard of the replica."""
        return self._silent_s

    @property
    def blocked_s(self) -> float:
        """Seconds that work has been pending without a step; 0 while idle."""
        return self._pending_s + self._silent_s if self._pending_s > 0 else 0.0

    def heard(self) -> None:
        """Any message came."""
        self._silent_s = 0.0

    def stepped(self) -> None:
        """A step was reported."""
        self._silent_s = 0.0
        self._pending_s = 0.0

    def beat(self, since_progress_s: float) -> None:
        """A heartbeat came."""
        self._silent_s = 0.0
        self._pending_s = since_progress_s

    def tick(self, now: Seconds) -> Verdict:
        """Count the time since the last tick, then judge."""
        passed = min(now - self._last_tick, 2 * self._settings.tick_s)
        self._last_tick = now
        self._silent_s += passed
        limit = self._settings.stall_after_s
        if self._silent_s < limit and self.blocked_s < limit:
            self._stalled_s = 0.0
            return Verdict.FINE
        self._stalled_s += passed
        hopeless = self._stalled_s >= self._settings.kill_after_s
        return Verdict.HOPELESS if hopeless else Verdict.STALLED

    def explain(self) -> str:
        """Why it counts as stalled, for people."""
        if self._silent_s >= self._settings.stall_after_s:
            return f"no sign of life for {self._silent_s:.1f} s"
        return f"work is pending and no step has completed for {self.blocked_s:.1f} s"


class Backoff:
    """How long to wait before each restart."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._in_a_row = 0

    def after_death(self, ready_s: float) -> float:
        """Seconds to wait now; ready_s is how long the dead process had been ready."""
        if ready_s >= self._settings.healthy_after_s:
            self._in_a_row = 0
        # The exponent is bounded: a replica that fails for days must not overflow.
        delay = self._settings.backoff_first_s * 2.0 ** min(self._in_a_row, 30)
        self._in_a_row += 1
        return min(delay, self._settings.backoff_limit_s)


UNKNOWN_LOAD_S = 5.0  # what a load is taken for before one has been seen


def retry_after(last_load_s: float | None, waited_s: float, delay_s: float) -> Seconds:
    """When a client should try again: what is left of the pause and of a load like the last.

    Never less than a second, because it may take longer than the last time.
    """
    load_s = UNKNOWN_LOAD_S if last_load_s is None else last_load_s
    return Seconds(max(1.0, delay_s + load_s - waited_s))


def describe_exit(code: int) -> str:
    """An exit status in words; a negative one is a signal."""
    if code >= 0:
        return f"the engine process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = " (out of memory? see the kernel's log)" if -code == signal.SIGKILL else ""
    return f"the engine process was killed by signal {name}{hint}"
