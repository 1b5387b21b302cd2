from collections import Counter

import pytest
import torch
from torch import Tensor

from headway.compute.gpu.sampling import candidates
from headway.compute.gpu.sampling.candidates import draw
from headway.compute.sampling.filters import FIRST_CANDIDATES
from headway.core.messages.path import Sampling
from tests.unit.compute.gpu.sampling.reference import probabilities, sampling

FILTERS = {
    "nothing": sampling(),
    "cold": sampling(temperature=0.3),
    "top_k 1": sampling(top_k=1),
    "top_k 50": sampling(top_k=50),
    "top_k beyond the candidates": sampling(top_k=200, temperature=2.0),
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


def logits(size: int, *, ties: bool = False) -> Tensor:
    values = 3.0 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    return values.round() if ties else values


def draw_at(row: Tensor, parameters: Sampling, chance: float) -> int:
    best, ids = torch.topk(row, min(FIRST_CANDIDATES, len(row)))
    return draw(row, best, ids, parameters, chance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FILTERS)
def test_evenly_spread_chances_give_exactly_the_reference_distribution(
    name: str, size: int
) -> None:
    """N even chances draw each token N p times, give or take one: no luck is involved."""
    row = logits(size)
    want = probabilities(row.tolist(), FILTERS[name])
    drawn = Counter(
        draw_at(row, FILTERS[name], (index + 0.5) / NUM_CHANCES) for index in range(NUM_CHANCES)
    )
    assert drawn.keys() <= want.keys(), "drew what the filters had removed"
    for token, probability in want.items():
        assert abs(drawn[token] - NUM_CHANCES * probability) <= 1.001, token


@pytest.mark.parametrize("name", FILTERS)
def test_ties_are_broken_by_the_lower_id(name: str) -> None:
    row = logits(50, ties=True)
    want = probabilities(row.tolist(), FILTERS[name])
    drawn = {draw_at(row, FILTERS[name], index / 500) for index in range(500)}
    assert drawn <= want.keys()
    if FILTERS[name].top_p == 1e-9:
        assert drawn == {int(row.argmax())}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0 - 2**-53])
def test_a_token_of_no_weight_is_never_drawn(name: str, chance: float) -> None:
    row = torch.full((200,), -1e30)
    row[[100, 150]] = 0.0
    assert draw_at(row, FILTERS[name], chance) in (100, 150)


def test_the_row_is_not_searched_again_in_the_usual_case(monkeypatch: pytest.MonkeyPatch) -> None:
    row = 3 * logits(5003)  # as peaked as a language model's
    best, ids = torch.topk(row, FIRST_CANDIDATES)
    monkeypatch.setattr(candidates, "_all_that_may_pass", None)
    for name in ("cold", "top_k 50", "top_p", "min_p", "all"):
        assert draw(row, best, ids, FILTERS[name], 0.5) in probabilities(
            row.tolist(), FILTERS[name]
        )
