"""When a benchmark's requests are due."""

import math
from itertools import pairwise
from random import Random
from statistics import mean, pstdev

from hypothesis import given
from hypothesis import strategies as st

from headway.app.bench_arrivals import arrival_offsets


def gaps(burstiness: float) -> list[float]:
    offsets = arrival_offsets(4000, 10.0, burstiness, Random(1))
    return [later - earlier for earlier, later in pairwise(offsets)]


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert arrival_offsets(3, math.inf, 1.0, Random(0)) == [0.0, 0.0, 0.0]


@given(st.integers(1, 200), st.floats(0.1, 1000), st.floats(0.2, 20), st.integers())
def test_offsets_ascend_and_end_at_exactly_the_time_the_rate_asks_for(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    offsets = arrival_offsets(count, rate, burstiness, Random(seed))
    assert len(offsets) == count
    assert offsets == sorted(offsets)
    assert math.isclose(offsets[-1], count / rate)


def test_a_burstiness_of_one_has_the_spread_of_a_poisson_process() -> None:
    assert math.isclose(pstdev(gaps(1.0)) / mean(gaps(1.0)), 1.0, rel_tol=0.1)


def test_less_burstiness_spreads_the_gaps_and_more_evens_them_out() -> None:
    spreads = [pstdev(gaps(b)) / mean(gaps(b)) for b in (0.25, 1.0, 16.0)]
    assert math.isclose(spreads[0], 2.0, rel_tol=0.15)
    assert math.isclose(spreads[2], 0.25, rel_tol=0.15)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert arrival_offsets(50, 3.0, 0.5, Random(7)) == arrival_offsets(50, 3.0, 0.5, Random(7))
