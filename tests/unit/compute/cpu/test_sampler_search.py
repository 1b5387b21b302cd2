from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from headway.compute.cpu.sampler_search import Search
from headway.core.messages.path import Sampling
from tests.unit.compute.gpu.sampling.reference import probabilities, sampling

FILTERS = {
    "nothing": sampling(),
    "cold": sampling(temperature=0.3),
    "top_k 1": sampling(top_k=1),
    "top_k 50": sampling(top_k=50),
    "top_k beyond the number of blocks": sampling(top_k=200, temperature=2.0),
    "top_k beyond the vocabulary": sampling(top_k=100_000),
    "top_p": sampling(top_p=0.9),
    "top_p beyond the candidates": sampling(top_p=0.97, temperature=2.0),
    "top_p of nearly all": sampling(top_p=0.999999, temperature=1.5),
    "top_p and min_p beyond the candidates": sampling(top_p=0.9, min_p=1e-4, temperature=2.0),
    "tiny top_p": sampling(top_p=1e-9),
    "min_p": sampling(min_p=0.1),
    "min_p beyond the candidates": sampling(min_p=1e-4, temperature=2.0),
    "min_p 1": sampling(min_p=1.0),
    "all": sampling(temperature=1.3, top_k=40, top_p=0.8, min_p=0.05),
}
SIZES = [1, 2, 17, 64, 65, 5003]
NUM_CHANCES = 500

Float32s = npt.NDArray[np.float32]


def row_of(size: int, *, scale: float = 3.0) -> Float32s:
    return (scale * np.random.default_rng(size).standard_normal(size)).astype(np.float32)


def draws(row: Float32s, parameters: Sampling, chances: list[float]) -> list[int]:
    search = Search(row[None])
    return [search.draw(0, parameters, chance) for chance in chances]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FILTERS)
def test_evenly_spread_chances_give_exactly_the_reference_distribution(
    name: str, size: int
) -> None:
    """N even chances draw each token N p times, give or take one: no luck is involved."""
    row = row_of(size)
    want = probabilities(row.tolist(), FILTERS[name])
    chances = [(index + 0.5) / NUM_CHANCES for index in range(NUM_CHANCES)]
    drawn = Counter(draws(row, FILTERS[name], chances))
    assert drawn.keys() <= want.keys(), "drew what the filters had removed"
    for token, probability in want.items():
        assert abs(drawn[token] - NUM_CHANCES * probability) <= 1.001, token


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [50, 700])
def test_ties_are_broken_by_the_lower_id(name: str, size: int) -> None:
    row = np.round(row_of(size))
    want = probabilities(row.tolist(), FILTERS[name])
    drawn = set(draws(row, FILTERS[name], [index / 500 for index in range(500)]))
    assert drawn <= want.keys()
    if FILTERS[name].top_p == 1e-9:
        assert drawn == {int(row.argmax())}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0 - 2**-53])
def test_a_token_of_no_weight_is_never_drawn(name: str, chance: float) -> None:
    row = np.full(200, -1e30, dtype=np.float32)
    row[[100, 150]] = 0.0
    assert draws(row, FILTERS[name], [chance])[0] in (100, 150)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 5, 64, 79, 80, 500, 5002, 5003, 9999])
def test_the_best_are_found_in_order_however_many(count: int, ties: bool) -> None:
    row = np.round(row_of(5003)) if ties else row_of(5003)
    want = np.lexsort((np.arange(len(row)), -row))[:count]
    values, ids = Search(row[None]).best(0, count)
    assert ids[:count].tolist() == want.tolist()
    assert values.tolist() == row[ids].tolist()


def test_the_row_is_not_searched_again_in_the_usual_case(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(5003, scale=9.0)  # as peaked as a language model's
    monkeypatch.setattr(Search, "_lowest_that_may_pass", None)
    for name in ("cold", "top_k 50", "top_p", "all"):
        want = probabilities(row.tolist(), FILTERS[name])
        assert draws(row, FILTERS[name], [0.5])[0] in want


def test_a_changed_row_is_looked_at_again() -> None:
    rows = np.stack([row_of(300), row_of(300)])
    search = Search(rows)
    before = search.best_ids.tolist()
    rows[1, 7] = 100.0
    search.rescan(1)
    assert search.best_ids.tolist() == [before[0], 7]
    assert search.top(1) == 100.0
    assert search.best(1, 1)[1].tolist()[0] == 7
