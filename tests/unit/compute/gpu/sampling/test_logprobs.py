import pytest
import torch

from headway.compute.gpu.sampling.logprobs import score_tokens
from headway.core.messages.path import LOGPROB_FLOOR


def test_values_are_those_of_the_softmax() -> None:
    logits = torch.randn((7, 31), generator=torch.Generator().manual_seed(0)) * 4
    targets = [3, 0, 30, 5, 5, 17, 2]
    want = logits.double().log_softmax(-1)
    for each, target, row in zip(score_tokens(logits, targets, 2), targets, want, strict=True):
        assert each.token_id == target
        assert each.logprob == pytest.approx(float(row[target]), abs=1e-5)
        assert [token for token, _ in each.top] == row.topk(2).indices.tolist()


def test_equal_logits_are_listed_by_id() -> None:
    (each,) = score_tokens(torch.zeros((1, 3)), [2], 3)
    assert [token for token, _ in each.top] == [0, 1, 2]


def test_impossible_tokens_have_the_floor_logprobs_01() -> None:
    (each,) = score_tokens(torch.tensor([[0.0, float("-inf")]]), [1], 2)
    assert each.logprob == LOGPROB_FLOOR
    assert each.top == ((0, 0.0), (1, LOGPROB_FLOOR))
