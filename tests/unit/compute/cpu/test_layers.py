import msgspec
import numpy as np
import pytest
import torch

from headway.compute.arch.family import Part
from headway.compute.cpu.layers import (
    KEY_NORM,
    NORMS,
    POST_MLP_NORM,
    TABLE,
    WINDOW,
    Floats,
    Key,
    Vectors,
    add_bias,
    describe_layers,
    normalise_in_place,
)
from headway.compute.cpu.norm import rms_norm_reference
from headway.compute.cpu.pack import COLUMNS
from tests.close import assert_close
from tests.parity.families import GEMMA3, card_of

EPS = np.float32(1e-6)


def test_a_layer_s_row_says_what_it_has() -> None:
    card = card_of(GEMMA3, "m")
    vectors = Vectors()
    held: dict[Key, Floats] = {(0, Part.KEY_NORM): np.arange(3, dtype=np.float32)}

    def read(key: Key) -> Floats | None:
        return held.get(key)

    table = describe_layers(card, read, vectors)
    assert table[:, WINDOW].tolist() == list(card.sliding_windows)
    assert table[:, TABLE].tolist() == [int(window > 0) for window in card.sliding_windows]
    (kept,) = vectors
    assert table[0, KEY_NORM] == kept.ctypes.data
    assert np.count_nonzero(table[:, list(NORMS)]) == 1
    plain = msgspec.structs.replace(card, sliding_windows=(), local_rope_theta=0.0)
    assert not describe_layers(plain, lambda key: None, Vectors()).any()
    assert table[1, POST_MLP_NORM] == 0


def test_biases_of_matrices_without_any_take_nothing() -> None:
    vectors = Vectors()
    assert vectors.add_bias([(None, 3), (None, 50)]) == 0
    assert vectors.num_bytes == 0
    vectors.add_bias([(None, 3), (np.ones(50, np.float32), 50)])
    assert vectors.num_bytes == 2 * COLUMNS * 4


@pytest.mark.parametrize("panels", [(0, 3), (1, 2), (2, 2)])
def test_a_bias_is_added_to_its_panels_only(panels: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(3 * COLUMNS, dtype=np.float32)
    out = rng.standard_normal((4, 3 * COLUMNS + 5), dtype=np.float32)
    want = out.copy()
    columns = slice(panels[0] * COLUMNS, panels[1] * COLUMNS)
    want[:3, columns] += bias[columns]
    add_bias(bias.ctypes.data, 3, out.ctypes.data, out.shape[1], *panels)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("size", [1, 16, 100, 640])
def test_rows_are_normalised_where_they_lie(size: int) -> None:
    rng = np.random.default_rng(size)
    rows = rng.standard_normal((4, size + 7), dtype=np.float32)
    weight = rng.standard_normal(size, dtype=np.float32)
    want = rows.copy()
    want[:3, :size] = rms_norm_reference(rows[:3, :size], weight, float(EPS))
    normalise_in_place(rows.ctypes.data, size, 3, rows.shape[1], weight.ctypes.data, EPS)
    assert_close("norm", torch.from_numpy(rows), torch.from_numpy(want))
    assert np.array_equal(rows[:, size:], want[:, size:])
    assert np.array_equal(rows[3], want[3])
