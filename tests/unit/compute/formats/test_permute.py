import numpy as np
import pytest

from headway.compute.formats.permute import unpermute_rows
from tests.parity.tiny_llama import permute


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (9, 64), (3, 64), (5, 6)])
def test_it_undoes_what_the_converter_did(num_heads: int, head_dim: int) -> None:
    rows = np.random.default_rng(0).normal(size=(num_heads * head_dim, 7)).astype(np.float32)
    assert np.array_equal(unpermute_rows(permute(rows, num_heads), num_heads, head_dim), rows)


def test_pairs_become_halves_and_the_unrotated_rest_stays() -> None:
    stored = np.array([0, 1, 2, 3, 8, 9], dtype=np.float32)
    assert unpermute_rows(stored, 1, 4).tolist() == [0, 2, 1, 3, 8, 9]
