"""On CPU tensors; streams and pinned memory need a GPU."""

import logging

import pytest
import torch

from headway.compute.gpu.kvpool.host import HostTier
from headway.core.messages.step import BlockMove

SIZES = (3, 10, 4, 2)  # layers, blocks, ...
BLOCK_BYTES = 3 * 4 * 2 * 4


def test_a_block_comes_back_as_it_was_to_any_other_block() -> None:
    pool = torch.rand(SIZES)
    before = pool.clone()
    tier = HostTier(pool, 6, 2 * BLOCK_BYTES)
    tier.move([BlockMove(3, 0), BlockMove(7, 1)], [BlockMove(9, 0)])
    pool[:, 3] = float("nan")
    tier.move([], [BlockMove(3, 1)])
    assert torch.equal(pool[:, 9], before[:, 3])
    assert torch.equal(pool[:, 3], before[:, 7])
    assert torch.equal(pool[:, 0], before[:, 0])


def test_memory_is_taken_in_segments_and_never_past_the_limit() -> None:
    tier = HostTier(torch.rand(SIZES), 5, 2 * BLOCK_BYTES)
    assert tier.num_ready == 2
    for host in range(5):
        assert host < tier.num_ready
        tier.move([BlockMove(host, host)], [])
    assert tier.num_ready == 5


def test_when_memory_is_short_the_tier_stops_growing_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = torch.rand(SIZES)
    tier = HostTier(pool, 5, 2 * BLOCK_BYTES)

    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "empty", fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tier.move([BlockMove(4, 1)], [BlockMove(0, 1)])
    assert tier.num_ready == 2
    assert len(caplog.records) == 1
    assert torch.equal(pool[:, 0], pool[:, 4])


def test_a_closed_tier_may_be_closed_again() -> None:
    tier = HostTier(torch.rand(SIZES), 0)
    assert tier.num_ready == 0
    tier.close()
    tier.close()
