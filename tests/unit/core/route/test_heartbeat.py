import pytest

from headway.core.base.errors import InvalidRequest
from headway.core.base.units import Seconds
from headway.core.route.heartbeat import Heartbeats

ACME, OTHER = ("acme", "k1"), ("other", "k2")


def at(value: float) -> Seconds:
    return Seconds(value)


def test_every_beat_gives_the_whole_time_again() -> None:
    beats = Heartbeats(at(15))
    beats.open(ACME, "c", at(0))
    assert beats.left(ACME, "c", at(10)) == at(5)
    assert beats.beat(ACME, "c", at(10))
    assert beats.left(ACME, "c", at(24)) == at(1)
    assert beats.left(ACME, "c", at(25)) == at(0)


def test_a_name_belongs_to_its_owner() -> None:
    beats = Heartbeats(at(15))
    beats.open(ACME, "c", at(0))
    assert not beats.beat(OTHER, "c", at(10))
    beats.open(OTHER, "c", at(10))
    beats.close(OTHER, "c")
    assert beats.left(ACME, "c", at(10)) == at(5)


def test_a_name_in_use_is_refused_and_free_after_its_request() -> None:
    beats = Heartbeats(at(15))
    beats.open(ACME, "c", at(0))
    with pytest.raises(InvalidRequest, match="in use"):
        beats.open(ACME, "c", at(1))
    beats.close(ACME, "c")
    beats.close(ACME, "c")
    assert len(beats) == 0
    beats.open(ACME, "c", at(2))
