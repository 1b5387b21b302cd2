"""Batches for the attention tests: shuffled blocks, and NaN wherever nothing may be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.attention import attend, merge
from headway.compute.cpu.attention_plan import AttentionPlan, plan_attention, scratch_floats
from headway.compute.cpu.kvpool import (
    KvPool,
    KvShape,
    aligned_zeros,
    value_numbers,
)
from headway.compute.cpu.rope import store_reference
from headway.compute.cpu.settings import KvDtype

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
NAN_BYTE = 0xFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that compute positions starts .. starts + num_tokens - 1; layer 1 of the pool."""

    num_heads: int
    pool: KvPool
    starts: Ints
    num_tokens: Ints
    block_table: npt.NDArray[np.int32]
    queries: Floats  # the fused QKV output
    window: int = 0

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, KV heads, head_dim."""
        return self.num_heads, self.pool.shape.num_kv_heads, self.pool.shape.head_dim

    def plan(self, threads: int) -> AttentionPlan:
        """The plan of this batch."""
        return plan_attention(
            self.starts, self.num_tokens, self.block_table, self.pool.shape, self.num_heads, threads
        )

    def run(
        self, threads: int = 1, change: Callable[[AttentionPlan], AttentionPlan] = lambda plan: plan
    ) -> Floats:
        """The output of all units, thread after thread; what is not written stays NaN."""
        num_heads, num_kv_heads, head_dim = self.heads
        plan = change(self.plan(threads))
        keys, values = self.pool.keys[1], self.pool.values[1]
        out = np.full((len(self.queries), num_heads * head_dim), np.nan, dtype=np.float32)
        partials = np.full(plan.partial_floats, np.nan, dtype=np.float32)
        scratch = aligned_zeros((scratch_floats(*self.heads),), np.float32)
        scratch[:] = np.nan
        table, last = self.block_table, len(plan.merge_bounds) - 1
        for t in range(last):
            claimed = np.zeros(1, dtype=np.int64)
            attend(
                plan.units[t::last],
                plan.tokens,
                plan.positions,
                plan.partial_base,
                table,
                keys,
                values,
                self.queries,
                out,
                partials,
                scratch,
                num_heads,
                claimed.ctypes.data,
                self.window,
            )
        for t in range(last):
            merge(
                plan.split_tokens,
                plan.positions,
                plan.partial_base,
                partials,
                out,
                scratch,
                num_heads,
                num_kv_heads,
                plan.merge_bounds[t],
                plan.merge_bounds[t + 1],
                self.window,
            )
        return out


def make_batch(
    rows: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int, int] = (9, 3, 64),
    block_size: int = 16,
    seed: int = 0,
    shared: int = 0,
    dtype: KvDtype = KvDtype.BFLOAT16,
) -> Batch:
    """rows: (start, num_tokens) each; the first `shared` positions lie in the same blocks."""
    rng = np.random.default_rng(seed)
    num_heads, num_kv_heads, head_dim = heads
    starts = np.array([start for start, _ in rows], dtype=np.int64)
    num_tokens = np.array([count for _, count in rows], dtype=np.int64)
    lengths = starts + num_tokens
    num_shared = shared // block_size
    sizes = -(-lengths // block_size)
    own = np.maximum(sizes - num_shared, 0)
    num_blocks = num_shared + int(own.sum()) + 2
    pool = KvPool(
        KvShape(
            num_layers=2,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
        )
    )
    poison(pool)
    ids = np.random.default_rng(seed + 1).permutation(num_blocks).astype(np.int32)
    # Lines are longer than needed, and full of blocks that do not exist.
    table = np.full((len(rows), int(sizes.max()) + 2), 1 << 30, dtype=np.int32)
    used = num_shared
    for row, length in enumerate(lengths):
        table[row, : sizes[row]] = np.concatenate([ids[:num_shared], ids[used : used + own[row]]])[
            : sizes[row]
        ]
        used += own[row]
        _fill(pool, table[row], int(length), rng)
    columns = (num_heads + 2 * num_kv_heads) * head_dim
    queries = 2 * rng.standard_normal((int(num_tokens.sum()), columns), dtype=np.float32)
    return Batch(
        num_heads=num_heads,
        pool=pool,
        starts=starts,
        num_tokens=num_tokens,
        block_table=table,
        queries=queries,
    )


def poison(pool: KvPool) -> None:
    """Make every number of the pool NaN, or its scale."""
    for data in (pool.keys, pool.values):
        data.view(np.uint8).fill(NAN_BYTE)


def _fill(
    pool: KvPool, table: npt.NDArray[np.int32], length: int, rng: np.random.Generator
) -> None:
    """Write the K and V of a row's positions; those that another row wrote stay."""
    shape = (length, pool.shape.num_kv_heads, pool.shape.head_dim)
    k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    size = pool.shape.block_size
    positions = np.arange(length)
    slots = table[positions // size].astype(np.int64) * size + positions % size
    written = np.isnan(value_numbers(pool.values[1])[:, 0, :, 0]).reshape(-1)[slots]
    store_reference(k[written], v[written], slots[written], pool.keys[1], pool.values[1])


def same_bits(a: Floats, b: Floats) -> bool:
    """Equal as bits, so that NaN is equal to itself and -0 is not 0."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))
