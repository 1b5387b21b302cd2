"""The cutting of attention into units."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compute.cpu.attention_plan import (
    CHUNK,
    COUNT,
    END_CHUNK,
    FIRST,
    FIRST_CHUNK,
    KV_HEAD,
    SPLIT,
    AttentionPlan,
    plan_attention,
    shared_chunks,
)
from headway.compute.cpu.kvpool import KvShape

SHAPE = KvShape(num_layers=1, num_blocks=1, block_size=16, num_kv_heads=3, head_dim=64)


def plan_of(
    rows: list[tuple[int, int]], threads: int, table: np.ndarray | None = None
) -> AttentionPlan:
    """Plan with nine query heads; without a table no block is shared."""
    starts, num_tokens = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    width = int((starts + num_tokens).max()) // 16 + 1
    if table is None:
        table = np.arange(len(rows) * width, dtype=np.int32).reshape(len(rows), width)
    return plan_attention(starts, num_tokens, table, SHAPE, 9, threads)


def chunks_done(plan: AttentionPlan) -> dict[tuple[int, int, int], int]:
    """How often each (token, KV head, chunk) that the token can see is worked on."""
    done: dict[tuple[int, int, int], int] = {}
    for unit in plan.units.tolist():
        for token in plan.tokens[unit[FIRST] : unit[FIRST] + unit[COUNT]].tolist():
            for chunk in range(unit[FIRST_CHUNK], unit[END_CHUNK]):
                if chunk * CHUNK <= plan.positions[token]:
                    key = (token, unit[KV_HEAD], chunk)
                    done[key] = done.get(key, 0) + 1
            assert bool(unit[SPLIT]) == (plan.partial_base[token] >= 0)
    return done


def wanted(plan: AttentionPlan) -> dict[tuple[int, int, int], int]:
    """Each token, head and chunk up to the token's own position, once."""
    return {
        (token, head, chunk): 1
        for token, position in enumerate(plan.positions.tolist())
        for head in range(SHAPE.num_kv_heads)
        for chunk in range(position // CHUNK + 1)
    }


@given(
    rows=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 80)), min_size=1, max_size=12),
    threads=st.integers(1, 9),
    shared=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_every_chunk_of_every_token_is_done_exactly_once(
    rows: list[tuple[int, int]], threads: int, shared: int
) -> None:
    width = max(start + count for start, count in rows) // 16 + 1
    table = np.arange(len(rows) * width, dtype=np.int32).reshape(len(rows), width)
    table[:, :shared] = table[0, :shared]
    plan = plan_of(rows, threads, table)
    assert chunks_done(plan) == wanted(plan)
    assert plan.merge_bounds[-1] == len(plan.split_tokens) * SHAPE.num_kv_heads


@given(
    rows=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 20)), min_size=1, max_size=6),
    threads=st.integers(2, 9),
)
@settings(max_examples=60, deadline=None)
def test_partial_sums_do_not_overlap(rows: list[tuple[int, int]], threads: int) -> None:
    plan = plan_of(rows, threads)
    ends = 0
    for token in plan.split_tokens.tolist():
        assert plan.partial_base[token] == ends
        ends += (int(plan.positions[token]) // CHUNK + 1) * 9 * (64 + 16)
    assert ends == plan.partial_floats


def test_tokens_of_a_unit_ascend_in_position_also_where_rows_share_chunks() -> None:
    table = np.zeros((4, 64), dtype=np.int32)
    plan = plan_of([(800, 1), (300, 3), (1000, 1), (290, 1)], 2, table)
    shared = [unit for unit in plan.units.tolist() if unit[COUNT] > 3]
    assert len(shared) == SHAPE.num_kv_heads
    for unit in plan.units.tolist():
        tokens = plan.tokens[unit[FIRST] : unit[FIRST] + unit[COUNT]]
        assert (np.diff(plan.positions[tokens]) > 0).all()


def test_positions_follow_the_rows_starts() -> None:
    plan = plan_of([(5, 3), (0, 1), (300, 2)], 1)
    assert plan.positions.tolist() == [5, 6, 7, 0, 300, 301]


def test_the_largest_units_are_claimed_first() -> None:
    plan = plan_of([(255 + 10 * i, 1) for i in range(16)], 1)
    ends = plan.positions[plan.tokens[plan.units[:, FIRST]]]
    assert len(plan.units) == 16 * SHAPE.num_kv_heads
    assert (np.diff(ends) <= 0).all()


def test_one_long_context_is_cut_for_all_threads() -> None:
    plan = plan_of([(4095, 1)], 8)
    assert len(plan.units) >= 8
    lengths = plan.units[:, END_CHUNK] - plan.units[:, FIRST_CHUNK]
    assert lengths.max() - lengths.min() <= 1


def test_one_thread_never_splits() -> None:
    plan = plan_of([(4095, 1), (0, 100)], 1)
    assert plan.partial_floats == 0
    assert plan.split_tokens.size == 0


def test_a_shared_chunk_ends_before_each_rows_first_token() -> None:
    table = np.zeros((3, 64), dtype=np.int32)
    starts = np.array([511, 512, 800])
    found = shared_chunks(starts, np.ones(3, dtype=np.int64), table, 16, 16)
    assert found == [(0, [0, 1, 2]), (1, [1, 2])]


def test_rows_that_part_are_not_joined_again() -> None:
    table = np.zeros((2, 64), dtype=np.int32)
    table[1, 20] = 7
    found = shared_chunks(np.array([1000, 1000]), np.ones(2, dtype=np.int64), table, 16, 16)
    assert found == [(0, [0, 1])]


def test_rows_with_long_prompts_are_left_to_themselves() -> None:
    table = np.zeros((2, 64), dtype=np.int32)
    assert shared_chunks(np.array([600, 600]), np.array([1, 200]), table, 16, 16) == []
