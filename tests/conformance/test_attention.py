"""Every attention backend, against softmax written out for one query at a time."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.compute.gpu.attn import torch_sdpa
from headway.compute.gpu.attn.backend import AttentionBackend, RowLayout
from headway.compute.gpu.attn.registry import BACKENDS
from tests.close import assert_close

# (start, num_tokens) of each row.
STEPS = {
    "one token": [(0, 1)],
    "one row, decode": [(16, 1)],
    "decode of equal lengths": [(15, 1)] * 3,
    "decode of mixed lengths": [(0, 1), (15, 1), (16, 1), (17, 1), (130, 1)],
    "prefill from 0": [(0, 17)],
    "prefill of a later chunk": [(31, 16)],
    "all together": [(40, 1), (0, 31), (3, 1), (16, 2), (0, 1), (47, 17), (16, 1)],
}
SCALE = 0.3
HEADS = [(1, 1), (4, 2), (9, 3), (5, 5)]


@pytest.fixture(params=BACKENDS.values(), ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    found: AttentionBackend = request.param
    return found


def layout_of(
    rows: list[tuple[int, int]], block_size: int, dtype: torch.dtype
) -> tuple[RowLayout, int]:
    """A layout over shuffled blocks, of which half belong to nobody; and their number."""
    starts = np.array([start for start, _ in rows])
    num_tokens = np.array([count for _, count in rows])
    width = -(-int((starts + num_tokens).max()) // block_size)
    num_blocks = 2 * width * len(rows)
    blocks = random.Random(4).sample(range(num_blocks), num_blocks)
    table = np.array(blocks[: width * len(rows)]).reshape(len(rows), width)
    layout = RowLayout(
        starts=starts,
        num_tokens=num_tokens,
        offsets=np.cumsum(num_tokens) - num_tokens,
        block_table=table,
        block_size=block_size,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return layout, num_blocks


def written_out(q: Tensor, kv: Tensor, layout: RowLayout, window: int = 0) -> Tensor:
    """softmax(q k * SCALE) v in float64, one query head at a time."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    share = q.shape[1] // kv.shape[2]
    for row in range(len(layout.starts)):
        slots = layout.row_slots(row)
        for index in range(int(layout.num_tokens[row])):
            token = int(layout.offsets[row]) + index
            end = int(layout.starts[row]) + index + 1
            visible = kv[slots[max(0, end - window) if window else 0 : end]].double()
            for head in range(q.shape[1]):
                k, v = visible[:, 0, head // share], visible[:, 1, head // share]
                weights = (k @ q[token, head].double() * SCALE).softmax(0)
                out[token, head] = weights @ v
    return out


def poisoned_pool(layout: RowLayout, num_blocks: int, groups: int, head_dim: int) -> Tensor:
    """NaN in every slot that no row may read: other blocks, and the tails of the last ones."""
    kv = torch.full((num_blocks * layout.block_size, 2, groups, head_dim), float("nan"))
    kv = kv.to(layout.dtype)
    generator = torch.Generator().manual_seed(1)
    for row in range(len(layout.starts)):
        slots = torch.from_numpy(layout.row_slots(row))
        kv[slots] = torch.randn((len(slots), *kv.shape[1:]), generator=generator).to(kv.dtype)
    return kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("step", STEPS)
def test_rows_attend_to_their_own_history_only(
    backend: AttentionBackend,
    step: str,
    heads: tuple[int, int],
    block_size: int,
    dtype: torch.dtype,
) -> None:
    layout, num_blocks = layout_of(STEPS[step], block_size, dtype)
    kv = poisoned_pool(layout, num_blocks, heads[1], 16)
    total = int(layout.num_tokens.sum())
    q = torch.randn((total, heads[0], 16), generator=torch.Generator().manual_seed(2)).to(dtype)
    got = backend.begin(layout).attend(q, kv, window=0, scale=SCALE)
    assert got.dtype == dtype
    assert_close(backend.name, got, written_out(q, kv, layout))


@pytest.mark.parametrize("window", [1, 2, 16, 33, 1000])
@pytest.mark.parametrize("step", STEPS)
def test_rows_attend_within_a_window(backend: AttentionBackend, step: str, window: int) -> None:
    layout, num_blocks = layout_of(STEPS[step], 16, torch.float32)
    kv = poisoned_pool(layout, num_blocks, 2, 8)
    q = torch.randn((int(layout.num_tokens.sum()), 4, 8))
    attention = backend.begin(layout)
    for each in (window, 0, window):  # layers of both kinds take turns
        got = attention.attend(q, kv, window=each, scale=SCALE)
        assert_close(backend.name, got, written_out(q, kv, layout, each))


def test_groups_and_tiles_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, num_blocks = layout_of(STEPS["all together"], 16, torch.float32)
    kv = poisoned_pool(layout, num_blocks, 2, 8)
    q = torch.randn((int(layout.num_tokens.sum()), 4, 8))
    want = written_out(q, kv, layout)
    for slots, tile in ((1, 1), (40, 3), (1 << 20, 16)):
        monkeypatch.setattr(torch_sdpa, "GROUP_SLOTS", slots)
        monkeypatch.setattr(torch_sdpa, "TILE_TOKENS", tile)
        attention = BACKENDS["sdpa"].begin(layout)
        assert_close("sdpa", attention.attend(q, kv, window=0, scale=SCALE), want)
        got = attention.attend(q, kv, window=7, scale=SCALE)
        assert_close("sdpa", got, written_out(q, kv, layout, 7))


def test_a_strided_view_of_a_product_may_be_given(backend: AttentionBackend) -> None:
    layout, num_blocks = layout_of(STEPS["decode of mixed lengths"], 16, torch.float32)
    kv = poisoned_pool(layout, num_blocks, 3, 8)
    product = torch.randn((5, 15, 8))
    q = product[:, :9]
    got = backend.begin(layout).attend(q, kv, window=0, scale=SCALE)
    assert_close(backend.name, got, written_out(q, kv, layout))
