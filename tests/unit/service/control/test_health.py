import msgspec
import pytest

from headway.core.base.units import Seconds
from headway.service.control.health import (
    UNKNOWN_LOAD_S,
    Backoff,
    Pulse,
    SupervisorSettings,
    Verdict,
    describe_exit,
    retry_after,
)

HINT = "(out of memory? see the kernel's log)"
SETTINGS = SupervisorSettings()  # stall after 10 s, kill after 60 s, a tick every 0.5 s


class Watched:
    """A pulse with its own time, ticked as the supervisor ticks it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pulse = Pulse(SETTINGS, Seconds(self.now))

    def tick(self, seconds: float = 0.5) -> Verdict:
        self.now += seconds
        return self.pulse.tick(Seconds(self.now))

    def silent(self, seconds: float) -> Verdict:
        """Nothing is heard for so long; the last verdict."""
        verdict = Verdict.FINE
        for _ in range(round(seconds / 0.5)):
            verdict = self.tick()
        return verdict

    def beating(self, seconds: float, pending_from: float | None = None) -> Verdict:
        """A heartbeat every second; with pending_from, no step since then."""
        verdict = Verdict.FINE
        for _ in range(round(seconds)):
            verdict = self.silent(1.0)
            since = 0.0 if pending_from is None else max(0.0, self.now - pending_from)
            self.pulse.beat(since)
        return verdict


def test_an_idle_replica_that_beats_is_never_stalled() -> None:
    assert Watched().beating(10_000) is Verdict.FINE


def test_ten_seconds_without_a_sign_of_life_are_a_stall() -> None:
    watched = Watched()
    assert watched.silent(9.5) is Verdict.FINE
    assert watched.tick() is Verdict.STALLED
    assert watched.pulse.explain() == "no sign of life for 10.0 s"


def test_ten_seconds_of_pending_work_without_a_step_are_a_stall_although_it_beats() -> None:
    watched = Watched()
    pending_from = watched.now
    assert watched.beating(9, pending_from) is Verdict.FINE
    assert watched.beating(2, pending_from) is Verdict.STALLED
    assert watched.pulse.explain() == "work is pending and no step has completed for 11.0 s"


def test_steps_that_go_on_are_never_a_stall() -> None:
    watched = Watched()
    for _ in range(100):
        watched.pulse.stepped()
        assert watched.silent(9.0) is Verdict.FINE


def test_a_step_ends_a_stall_at_once() -> None:
    watched = Watched()
    assert watched.silent(20.0) is Verdict.STALLED
    watched.pulse.stepped()
    assert watched.tick() is Verdict.FINE
    assert watched.pulse.blocked_s == 0.0


def test_sixty_seconds_of_stall_are_hopeless_and_not_less() -> None:
    watched = Watched()
    assert watched.silent(10.0) is Verdict.STALLED  # counts half a second of stall
    assert watched.silent(59.0) is Verdict.STALLED
    assert watched.silent(0.5) is Verdict.HOPELESS


def test_a_stall_that_ended_does_not_count_towards_the_next() -> None:
    watched = Watched()
    assert watched.silent(60.0) is Verdict.STALLED
    watched.pulse.heard()
    assert watched.tick() is Verdict.FINE
    assert watched.silent(60.0) is Verdict.STALLED


def test_time_in_which_the_server_itself_was_stopped_is_not_held_against_the_replica() -> None:
    watched = Watched()
    assert watched.tick(3600.0) is Verdict.FINE
    assert watched.pulse.silent_s == 2 * SETTINGS.tick_s


def test_a_machine_that_was_frozen_as_a_whole_does_not_kill_a_healthy_replica() -> None:
    watched = Watched()
    watched.tick(3600.0)
    watched.pulse.beat(3600.0)  # by the replica's own clock its step took an hour
    assert watched.tick() is Verdict.STALLED
    watched.pulse.stepped()
    assert watched.tick() is Verdict.FINE


def test_pauses_double_up_to_the_limit_and_stay_there() -> None:
    backoff = Backoff(SETTINGS)
    pauses = [backoff.after_death(ready_s=0.0) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert [backoff.after_death(1.0) for _ in range(10_000)][-1] == 30.0


def test_a_healthy_minute_makes_the_next_pause_the_first_again() -> None:
    backoff = Backoff(SETTINGS)
    for _ in range(5):
        backoff.after_death(ready_s=59.9)
    assert backoff.after_death(ready_s=60.0) == 0.5
    assert backoff.after_death(ready_s=0.0) == 1.0


@pytest.mark.parametrize(
    ("last_load_s", "waited_s", "delay_s", "answer"),
    [
        (None, 0.0, 0.0, UNKNOWN_LOAD_S),
        (20.0, 0.0, 0.5, 20.5),
        (20.0, 15.0, 0.5, 5.5),
        (20.0, 600.0, 0.5, 1.0),  # late already: soon, but not at once
    ],
)
def test_clients_are_told_to_wait_for_the_rest_of_the_pause_and_of_a_load(
    last_load_s: float | None, waited_s: float, delay_s: float, answer: float
) -> None:
    assert retry_after(last_load_s, waited_s, delay_s) == answer


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "the engine process exited with code 0"),
        (3, "the engine process exited with code 3"),
        (-15, "the engine process was killed by signal SIGTERM"),
        (
            -9,
            "the engine process was killed by signal SIGKILL (out of memory? see the kernel's log)",
        ),
        (-200, "the engine process was killed by signal 200"),
    ],
)
def test_an_exit_status_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="stall_afters"):
        msgspec.convert({"stall_afters": 5.0}, SupervisorSettings)
