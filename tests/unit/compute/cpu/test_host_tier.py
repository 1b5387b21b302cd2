import logging
from collections.abc import Callable

import numpy as np
import pytest

from headway.compute.cpu.host_tier import SPARE_BYTES, HostMemory, HostTier, unknown
from headway.core.base.errors import CorruptBlock
from headway.core.messages.step import BlockMove

LAYERS, NUM_BLOCKS = 3, 10
BLOCK_BYTES = LAYERS * (4 * 2 * 2 + 5)  # of the two arrays below


def arrays() -> list[np.ndarray]:
    """Two arrays of different types and shapes, as K, V and scales may be."""
    rng = np.random.default_rng(5)
    return [
        rng.integers(0, 2**16, (LAYERS, NUM_BLOCKS, 4, 2), dtype=np.uint16),
        rng.integers(-128, 127, (LAYERS, NUM_BLOCKS, 5), dtype=np.int8),
    ]


def tier_of(
    pool: list[np.ndarray],
    num_blocks: int = 6,
    *,
    blocks_a_segment: int = 2,
    free: Callable[[], int | None] = unknown,
    is_checked: bool = False,
) -> HostTier:
    memory = HostMemory(free, is_checked, blocks_a_segment * BLOCK_BYTES)
    return HostTier(pool, num_blocks, memory)


@pytest.mark.spec("D3")
def test_a_block_comes_back_as_it_was_to_any_other_block() -> None:
    pool = arrays()
    want = [array.copy() for array in pool]
    tier = tier_of(pool)
    tier.move([BlockMove(3, 0), BlockMove(7, 1)], [])
    for array in pool:
        array[:, 3] = array[:, 7] = 0
    tier.move([], [BlockMove(9, 0), BlockMove(3, 1)])
    for got, before in zip(pool, want, strict=True):
        assert (got[:, 9] == before[:, 3]).all()
        assert (got[:, 3] == before[:, 7]).all()
        assert (got[:, 0] == before[:, 0]).all()


def test_saves_come_before_loads() -> None:
    pool = arrays()
    before = [array.copy() for array in pool]
    tier_of(pool).move([BlockMove(4, 1)], [BlockMove(2, 1)])
    assert all((a[:, 2] == b[:, 4]).all() for a, b in zip(pool, before, strict=True))


def test_memory_is_taken_in_segments_before_they_are_full_and_never_past_the_limit() -> None:
    pool = arrays()
    tier = tier_of(pool, num_blocks=5)
    assert tier.num_ready == 2
    ready = []
    for host in range(5):
        assert host < tier.num_ready, "what is not there yet would be used"
        tier.move([BlockMove(host, host)], [])
        ready.append(tier.num_ready)
    assert ready == sorted(ready)
    assert ready[-1] == 5


def test_nothing_is_taken_without_a_tier() -> None:
    tier = tier_of(arrays(), num_blocks=0)
    assert tier.num_ready == 0
    assert tier.move([], []) == 0.0


def test_when_memory_is_short_the_tier_stops_growing_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, left = arrays(), [SPARE_BYTES + 2 * BLOCK_BYTES, SPARE_BYTES + BLOCK_BYTES]
    tier = tier_of(pool, free=lambda: left.pop(0))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tier.move([BlockMove(1, 1)], [])
    assert tier.num_ready == 2
    assert [record.message for record in caplog.records] == ["kv_host_memory_not_grown"]
    tier.move([], [BlockMove(0, 1)])
    assert (pool[0][:, 0] == pool[0][:, 1]).all()


def test_a_block_that_changed_is_refused_by_its_number() -> None:
    pool = arrays()
    tier = tier_of(pool, is_checked=True)
    tier.move([BlockMove(3, 0), BlockMove(4, 1)], [BlockMove(5, 0)])
    tier._segments[0][1][1, 2, 0] ^= 1
    tier.move([], [BlockMove(6, 0)])
    with pytest.raises(CorruptBlock, match="block 1 of the host tier"):
        tier.move([], [BlockMove(7, 1)])


def test_a_closed_tier_holds_nothing_and_may_be_closed_again() -> None:
    tier = tier_of(arrays())
    tier.close()
    tier.close()
    assert not tier._segments
