import pytest
import torch

from headway.compute.gpu.kvpool.device import KvPool, KvShape
from headway.core.base.errors import NotEnoughMemory

CPU = torch.device("cpu")


def pool(*, dtype: torch.dtype = torch.float32, num_blocks: int = 5) -> KvPool:
    shape = KvShape(num_layers=3, num_blocks=num_blocks, block_size=4, num_kv_heads=2, head_dim=8)
    return KvPool(shape, dtype, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_to_a_slot_is_found_in_its_block(dtype: torch.dtype) -> None:
    kv_pool = pool(dtype=dtype)
    kv = torch.arange(2 * 2 * 2 * 8, dtype=torch.float32).reshape(2, 2, 2, 8)
    kv_pool.write(1, torch.tensor([7, 16]), kv)
    assert torch.equal(kv_pool.layer(1)[[7, 16]].float(), kv)
    assert torch.equal(kv_pool.data[1, 1, 3].float(), kv[0])
    assert torch.equal(kv_pool.data[1, 4, 0].float(), kv[1])
    assert kv_pool.data.count_nonzero() == kv.count_nonzero()


def test_copies_take_whole_blocks_of_every_layer() -> None:
    kv_pool = pool()
    kv_pool.data.copy_(torch.rand(kv_pool.data.shape))
    before = kv_pool.data.clone()
    kv_pool.copy_blocks([0, 3], [4, 1])
    assert torch.equal(kv_pool.data[:, 4], before[:, 0])
    assert torch.equal(kv_pool.data[:, 1], before[:, 3])
    assert torch.equal(kv_pool.data[:, (0, 2, 3)], before[:, (0, 2, 3)])


def test_every_source_is_read_before_any_target_is_written() -> None:
    kv_pool = pool()
    kv_pool.data.copy_(torch.rand(kv_pool.data.shape))
    before = kv_pool.data.clone()
    kv_pool.copy_blocks([0, 1], [1, 0])
    assert torch.equal(kv_pool.data[:, 0], before[:, 1])
    assert torch.equal(kv_pool.data[:, 1], before[:, 0])


def test_a_pool_beyond_all_memory_is_refused_in_words() -> None:
    with pytest.raises(NotEnoughMemory, match="does not fit into memory"):
        pool(num_blocks=1 << 45)


def test_closing_lets_go_of_the_memory() -> None:
    kv_pool = pool()
    kv_pool.close()
    kv_pool.close()
    assert kv_pool.data.numel() == 0
