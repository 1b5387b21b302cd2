import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from headway.compute.cpu.logprobs import score_tokens
from headway.compute.gpu.sampling.logprobs import score_tokens as torch_score_tokens
from headway.core.messages.path import LOGPROB_FLOOR, TokenLogprob

NAN, INF = float("nan"), float("inf")
WILD = [
    [NAN, NAN, NAN, NAN],
    [NAN, 1.0, 2.0, -NAN],
    [-INF] * 4,
    [0.0, INF, INF, 1.0],
    [-INF, 2.0, -INF, 1.0],
    [3e38, -3e38, 3e38, 0.0],
    [-3e38, -3e38, -3e38, -3e38],
    [5000.0, 5000.5, 4990.0, 5000.5],
]


def assert_same(got: TokenLogprob, want: TokenLogprob) -> None:
    """Equal but for which of the tokens that tie with the last one listed are listed."""
    assert got.token_id == want.token_id
    assert got.logprob == pytest.approx(want.logprob, abs=1e-5)
    values = [value for _, value in got.top]
    assert values == pytest.approx([value for _, value in want.top], abs=1e-5)
    certain = [place for place, value in enumerate(values) if value > values[-1] + 1e-5]
    assert [got.top[place][0] for place in certain] == [want.top[place][0] for place in certain]


def both(rows: npt.NDArray[np.float32], targets: list[int], num_top: int) -> None:
    kept = rows.copy()
    got = score_tokens(rows, targets, num_top)
    np.testing.assert_array_equal(rows, kept)
    want = torch_score_tokens(torch.from_numpy(rows.copy()), targets, num_top)
    for each, other in zip(got, want, strict=True):
        assert_same(each, other)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 400, 99999])
def test_values_equal_those_of_the_torch_sampler(num_top: int) -> None:
    rows = (4 * np.random.default_rng(0).standard_normal((7, 1001))).astype(np.float32)
    both(rows, [3, 0, 1000, 5, 5, 17, 2], num_top)


def test_values_are_those_of_the_softmax() -> None:
    rows = (4 * np.random.default_rng(1).standard_normal((3, 49152))).astype(np.float32)
    want = torch.from_numpy(rows).double().log_softmax(-1)
    for each, target, row in zip(score_tokens(rows, [9, 8, 7], 3), [9, 8, 7], want, strict=True):
        assert each.logprob == pytest.approx(float(row[target]), abs=1e-9)
        assert [token for token, _ in each.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("row", WILD)
def test_rows_without_finite_logits_equal_those_of_the_torch_sampler(row: list[float]) -> None:
    both(np.array([row, [0.0, 1.0, 5.0, 2.0]], dtype=np.float32), [1, 1], 4)
    for each in score_tokens(np.array([row], dtype=np.float32), [3], 4):
        assert all(math.isfinite(value) for _, value in each.top)
        assert math.isfinite(each.logprob)


def test_equal_logits_are_listed_by_id() -> None:
    (each,) = score_tokens(np.zeros((1, 300), dtype=np.float32), [2], 3)
    assert [token for token, _ in each.top] == [0, 1, 2]
    assert each.logprob == pytest.approx(-math.log(300), abs=1e-12)


def test_impossible_tokens_have_the_floor_logprobs_01() -> None:
    (each,) = score_tokens(np.array([[0.0, -INF]], dtype=np.float32), [1], 2)
    assert each.logprob == LOGPROB_FLOOR
    assert each.top == ((0, 0.0), (1, LOGPROB_FLOOR))
