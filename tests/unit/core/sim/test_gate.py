"""Batching policies: what is let in when, and what that does to a small trace."""

from headway.core.base.units import Seconds
from headway.core.sim.gate import Batches, Continuous, Gate
from headway.core.sim.run import simulate
from tests.unit.core.sim.runs import COST, at, engine_settings, planned

A, B, C, D = (planned(name) for name in "abcd")


def names(gate: Gate, now: float) -> str:
    return "".join(request.id for request in gate.take(Seconds(now)))


def test_continuous_batching_holds_nobody() -> None:
    gate = Continuous()
    gate.arrive(A, Seconds(0.0))
    gate.arrive(B, Seconds(0.0))
    assert names(gate, 0.0) == "ab"
    assert names(gate, 0.0) == ""
    assert gate.due() is None


def test_a_static_batch_waits_until_it_is_full_and_the_one_before_has_ended() -> None:
    gate = Batches(2)
    gate.arrive(A, Seconds(0.0))
    assert names(gate, 99.0) == ""
    for request in (B, C, D):
        gate.arrive(request, Seconds(99.0))
    assert names(gate, 99.0) == "ab"
    gate.ended(Seconds(100.0))
    assert names(gate, 100.0) == "", "b is still inside"
    gate.ended(Seconds(101.0))
    assert names(gate, 101.0) == "cd"


def test_the_last_static_batch_may_be_smaller() -> None:
    gate = Batches(2)
    gate.arrive(A, Seconds(0.0))
    gate.close()
    assert names(gate, 0.0) == "a"


def test_a_dynamic_batch_goes_when_its_window_closes_or_it_is_full() -> None:
    gate = Batches(3, Seconds(2.0))
    gate.arrive(A, Seconds(1.0))
    gate.arrive(B, Seconds(2.0))
    assert gate.due() == 3.0
    assert names(gate, 2.9) == ""
    assert names(gate, 3.0) == "ab"
    assert gate.due() is None, "a batch is inside"
    for request in (C, D, A):
        gate.arrive(request, Seconds(3.5))
    gate.ended(Seconds(4.0))
    gate.ended(Seconds(4.0))
    assert names(gate, 4.0) == "cda", "full before its window has closed"


# Three requests, a long one first: 0.0 a (4 tokens of answer), 1.0 b (1), 1.0 c (1).
TRACE = at((0.0, planned("a", 4, 4)), (1.0, planned("b", 4, 1)), (1.0, planned("c", 4, 1)))


def ends(gate: Gate) -> dict[str, float | None]:
    result = simulate(TRACE, engine_settings(), COST, gate=gate)
    return {record.id: record.finished for record in result.records}


def test_continuous_batching_lets_short_requests_pass_a_long_one() -> None:
    # 0-1.5 prefill a; 1.5-3.5 decode a, prefill b and c; 3.5-5.5 decode a twice.
    assert ends(Continuous()) == {"a": 5.5, "b": 3.5, "c": 3.5}


def test_static_batching_makes_a_short_request_wait_for_the_batch_before() -> None:
    # 1-3 prefill a and b, which ends b; 3-6 decode a; 6-7.5 prefill c alone, the last.
    assert ends(Batches(2)) == {"a": 6.0, "b": 3.0, "c": 7.5}


def test_dynamic_batching_starts_a_batch_that_is_not_full() -> None:
    # 0.5 the window of a closes; 0.5-5 a alone; 5-7 b and c together.
    assert ends(Batches(2, Seconds(0.5))) == {"a": 5.0, "b": 7.0, "c": 7.0}
