import msgspec
import pytest

from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus
from headway.core.route.load import UNKNOWN_ANSWER, UNKNOWN_DECODE, UNKNOWN_PREFILL, LoadBook

STATUS = ReplicaStatus(
    num_running=0,
    num_waiting=0,
    waiting_tokens=0,
    total_blocks=64,
    free_blocks=64,
    cached_blocks=0,
)


def status(**changes: float) -> ReplicaStatus:
    return msgspec.structs.replace(STATUS, **changes)


def test_a_replica_that_nobody_knows_has_no_work() -> None:
    book = LoadBook()
    assert book.work("0") == 0.0
    assert (book.in_flight("0"), book.last_sent("0")) == (0, 0)
    book.ended("0", "r")
    book.started("0", "r")
    book.lost("0")
    assert book.in_flight("0") == 0


def test_what_was_sent_counts_until_the_status_has_it() -> None:
    book = LoadBook()
    book.told("0", status(num_steps=5), Seconds(0.0))
    book.sent("0", "r", 2000, 1)
    expected = 2000 / UNKNOWN_PREFILL + UNKNOWN_ANSWER / UNKNOWN_DECODE
    assert book.work("0") == pytest.approx(expected)
    book.told("0", status(num_steps=6), Seconds(1.0))
    assert book.work("0") == pytest.approx(expected), "that step was computed when it was sent"
    waiting = status(num_steps=7, num_waiting=1, waiting_tokens=2000)
    book.told("0", waiting, Seconds(2.0))
    assert book.work("0") == pytest.approx(expected), "now the status has it, and only once"


def test_a_request_that_started_counts_in_the_status_alone() -> None:
    book = LoadBook()
    book.sent("0", "r", 2000, 1)
    book.started("0", "r")
    book.told("0", status(num_steps=1, num_running=1), Seconds(1.0))
    assert book.work("0") == pytest.approx(UNKNOWN_ANSWER / UNKNOWN_DECODE)
    assert book.in_flight("0") == 1


def test_work_goes_by_the_rates_that_were_measured_anywhere_in_the_pool() -> None:
    book = LoadBook()
    book.told("0", status(num_running=2, prefill_rate=500.0), Seconds(0.0))
    book.told("0", status(num_running=2, prefill_rate=500.0, generated_tokens=100), Seconds(1.0))
    book.told("1", status(), Seconds(1.0))
    assert book.prefill_rate == 500.0
    assert book.answer_s == pytest.approx(UNKNOWN_ANSWER / 100.0)
    assert book.work("0") == pytest.approx(2 * UNKNOWN_ANSWER / 100.0)


def test_answers_are_expected_to_be_as_long_as_those_lately() -> None:
    book = LoadBook()
    for number in range(200):
        book.sent("0", str(number), 1, 2)
        book.ended("0", str(number), 20)
    assert book.answer_s == pytest.approx(10 / UNKNOWN_DECODE, rel=0.05)


def test_a_lost_replica_has_nothing_left_and_its_requests_end_once() -> None:
    book = LoadBook()
    book.sent("0", "r", 10, 1)
    book.lost("0")
    book.ended("0", "r", 5)
    assert (book.work("0"), book.in_flight("0"), book.last_sent("0")) == (0.0, 0, 1)
