"""Paged attention: right, and with the same bits however the work is cut."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from llvmlite.binding import get_host_cpu_features

from headway.compute.cpu.attention import attention_reference
from headway.compute.cpu.attention_plan import AttentionPlan
from headway.compute.cpu.settings import KvDtype
from tests.close import assert_close, relative_error
from tests.unit.compute.cpu.attention_cases import Batch, Floats, make_batch, same_bits

SHAPES = [(9, 3, 64), (2, 2, 32), (4, 1, 96), (8, 1, 128), (4, 2, 256), (14, 2, 64)]
LENGTHS = [1, 15, 16, 17, 255, 256, 257, 1000]
MIXED = [(0, 1), (14, 1), (15, 33), (255, 1), (256, 20), (999, 3), (0, 70), (600, 1)]


CLOSE = 2e-4  # a score's last bits may round a weight the other way, one in a thousand


def assert_right(name: str, batch: Batch, got: Floats) -> None:
    """Compare with float64 and the same roundings, and with float64 without them."""
    num_heads, _, head_dim = batch.heads
    arguments = (
        batch.queries[:, : num_heads * head_dim],
        batch.pool.keys[1],
        batch.pool.values[1],
        batch.block_table,
        batch.starts,
        batch.num_tokens,
    )
    window = batch.window
    rounded = torch.from_numpy(attention_reference(*arguments, window=window))
    exact = torch.from_numpy(attention_reference(*arguments, window=window, rounded=False))
    out = torch.from_numpy(got)
    assert torch.isfinite(out).all(), name
    assert relative_error(out, rounded) < CLOSE, name
    assert_close(name, out.bfloat16(), exact)  # the tolerance of bfloat16


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_decode_and_prompt_chunks_match_float64(
    heads: tuple[int, int, int], threads: int, dtype: KvDtype
) -> None:
    batch = make_batch(MIXED, heads=heads, dtype=dtype)
    assert_right("attention", batch, batch.run(threads))


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("length", LENGTHS)
def test_decode_matches_float64_at_every_length(length: int, dtype: KvDtype) -> None:
    batch = make_batch([(length - 1, 1)], dtype=dtype)
    assert_right("decode", batch, batch.run())


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_whole_prompt_matches_float64_at_every_length(length: int, dtype: KvDtype) -> None:
    batch = make_batch([(0, length)], dtype=dtype)
    assert_right("prompt", batch, batch.run(2))


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("block_size", [16, 32, 64, 256, 512])
def test_any_block_size_gives_the_same_bits(block_size: int, dtype: KvDtype) -> None:
    rows = [(700, 1), (0, 40)]
    want = make_batch(rows, dtype=dtype).run()
    assert same_bits(make_batch(rows, block_size=block_size, dtype=dtype).run(), want)


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(
    heads: tuple[int, int, int], dtype: KvDtype
) -> None:
    batch = make_batch(MIXED, heads=heads, dtype=dtype)
    want = batch.run()
    for threads in (2, 3, 5, 16):
        assert same_bits(batch.run(threads), want)


def test_a_long_context_cut_over_threads_gives_the_same_bits() -> None:
    batch = make_batch([(3000, 1)])
    plan = batch.plan(4)
    assert plan.partial_floats > 0
    assert len(plan.units) > 3
    assert same_bits(batch.run(4), batch.run(1))


@pytest.mark.parametrize("dtype", KvDtype)
def test_each_row_alone_gives_the_same_bits_as_all_together(dtype: KvDtype) -> None:
    batch = make_batch(MIXED, dtype=dtype)
    together = batch.run(2)
    ends = np.cumsum(batch.num_tokens)
    for row, end in enumerate(ends):
        tokens = slice(end - batch.num_tokens[row], end)
        alone = dataclasses.replace(
            batch,
            starts=batch.starts[row : row + 1],
            num_tokens=batch.num_tokens[row : row + 1],
            block_table=batch.block_table[row : row + 1],
            queries=batch.queries[tokens],
        )
        assert same_bits(alone.run(), together[tokens])


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("size", [1, 7, 16, 100, 256])
def test_a_prompt_in_chunks_gives_the_same_bits_as_whole(size: int, dtype: KvDtype) -> None:
    length = 530
    whole = make_batch([(0, length)], dtype=dtype)
    want = whole.run(2)
    for start in range(0, length, size):
        count = min(size, length - start)
        part = dataclasses.replace(
            whole,
            starts=np.array([start]),
            num_tokens=np.array([count]),
            queries=whole.queries[start : start + count],
        )
        assert same_bits(part.run(), want[start : start + count])


def test_the_places_of_blocks_do_not_change_the_bits() -> None:
    first = make_batch([(300, 2)], seed=1)
    pool = first.pool
    order = np.random.default_rng(5).permutation(pool.shape.num_blocks)
    moved = np.argsort(order).astype(np.int32)
    table = first.block_table.copy()
    used = table < pool.shape.num_blocks
    table[used] = moved[table[used]]
    want = first.run()
    pool.keys[:] = pool.keys[:, order]
    pool.values[:] = pool.values[:, order]
    assert same_bits(dataclasses.replace(first, block_table=table).run(), want)


def test_units_in_any_order_give_the_same_bits() -> None:
    batch = make_batch(MIXED)

    def shuffled(plan: AttentionPlan) -> AttentionPlan:
        order = np.random.default_rng(3).permutation(len(plan.units))
        return dataclasses.replace(plan, units=plan.units[order])

    assert same_bits(batch.run(4, shuffled), batch.run(4))


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_shared_prefix_read_once_gives_the_same_bits_as_alone(
    threads: int, dtype: KvDtype
) -> None:
    rows = [(700 + 40 * i, 1) for i in range(20)] + [(300, 1), (600, 3), (560, 200)]
    batch = make_batch(rows, shared=528, dtype=dtype)
    assert (np.bincount(batch.plan(threads).tokens) > 1).sum() > 20
    together = batch.run(threads)
    assert_right("shared", batch, together)
    ends = np.cumsum(batch.num_tokens)
    for row in (0, 7, 19, 20, 21, 22):
        tokens = slice(ends[row] - batch.num_tokens[row], ends[row])
        alone = dataclasses.replace(
            batch,
            starts=batch.starts[row : row + 1],
            num_tokens=batch.num_tokens[row : row + 1],
            block_table=batch.block_table[row : row + 1],
            queries=batch.queries[tokens],
        )
        assert same_bits(alone.run(), together[tokens])


WINDOWS = [1, 2, 7, 33, 100, 255, 256, 257, 391, 700, 5000]


@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 32), (8, 1, 128)], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_sliding_window_matches_float64(heads: tuple[int, int, int], window: int) -> None:
    batch = dataclasses.replace(make_batch(MIXED, heads=heads), window=window)
    assert_right("window", batch, batch.run(2))


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_sliding_window_gives_the_same_bits_alone_and_in_any_cut(
    window: int, dtype: KvDtype
) -> None:
    rows = [(700 + 40 * i, 1) for i in range(6)] + [(300, 1), (600, 3), (560, 200), (0, 50)]
    batch = dataclasses.replace(make_batch(rows, shared=528, dtype=dtype), window=window)
    together = batch.run(3)
    assert same_bits(batch.run(1), together)
    ends = np.cumsum(batch.num_tokens)
    for row in (0, 5, 6, 7, 8, 9):
        count = batch.num_tokens[row]
        for skipped in {0, count - 1}:  # the whole row, and its last token alone
            tokens = slice(ends[row] - count + skipped, ends[row])
            alone = dataclasses.replace(
                batch,
                starts=batch.starts[row : row + 1] + skipped,
                num_tokens=batch.num_tokens[row : row + 1] - skipped,
                block_table=batch.block_table[row : row + 1],
                queries=batch.queries[tokens],
            )
            assert same_bits(alone.run(2), together[tokens])


def test_a_window_that_holds_everything_is_none() -> None:
    batch = make_batch(MIXED)
    assert same_bits(dataclasses.replace(batch, window=1003).run(2), batch.run(2))


def test_blocks_before_a_window_are_not_read() -> None:
    batch = dataclasses.replace(make_batch([(699, 1), (650, 60)]), window=100)
    want = batch.run(2)
    for row, first_seen in ((0, 600), (1, 551)):
        gone = batch.block_table[row, : first_seen // 16]
        batch.pool.keys[:, gone] = batch.pool.values[:, gone] = 0xFFFF
    assert same_bits(batch.run(2), want)


def test_scores_of_any_size_stay_finite() -> None:
    batch = make_batch([(100, 1), (600, 5)])
    batch.queries[:] *= 1000
    assert np.isfinite(batch.run()).all()


def test_a_query_that_is_not_a_number_shows_in_its_own_output_only() -> None:
    batch = make_batch([(100, 1), (40, 1)])
    batch.queries[0, 0] = np.nan
    out = batch.run()
    head_dim = batch.heads[2]
    assert np.isnan(out[0, :head_dim]).all()
    assert np.isfinite(out[0, head_dim:]).all()
    assert np.isfinite(out[1]).all()


HOST = get_host_cpu_features()
AVX512 = "+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
OLDER = {
    "avx512 without bfloat16": ("skylake-avx512", AVX512, "avx512bw"),
    "avx2": ("haswell", "+avx2,+fma", "avx2"),
    "plain": ("x86-64", "+sse2", "sse2"),
}
PROGRAM = """
from tests.unit.compute.cpu.test_attention import fingerprint
print(fingerprint())
"""


def fingerprint() -> str:
    """Of the outputs of many shapes, limits and ways to cut the work."""
    found = hashlib.sha256()
    for heads, dtype in product(SHAPES, KvDtype):
        found.update(make_batch(MIXED, heads=heads, dtype=dtype).run(2).tobytes())
    rows = [(530 + i, 1) for i in range(20)]
    found.update(make_batch(rows, shared=512).run(3).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("kind", OLDER)
def test_older_processors_compute_the_same_bits(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cpu, features, needed = OLDER[kind]
    if not HOST.get(needed):
        pytest.skip(f"runs the code of an x86 processor with {needed}")
    environment = os.environ | {
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("kernels")),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint()
