import pytest

from headway.core.base.units import blocks_for


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (33, 3)])
def test_the_last_block_may_be_partly_empty(length: int, blocks: int) -> None:
    assert blocks_for(length, 16) == blocks
