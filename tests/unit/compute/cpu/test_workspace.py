from pathlib import Path

import numpy as np
import pytest

from headway.compute.cpu.loading import load_model
from headway.compute.cpu.pack import COLUMNS
from headway.compute.cpu.settings import CpuSettings
from headway.compute.cpu.step import BLOCK_ROWS
from headway.compute.cpu.workspace import HEAD_ROWS, Workspace
from tests.fakes import engine_settings
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

THREADS = 3
ROWS = THREADS * BLOCK_ROWS


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama(head_dim=32), quantized="Q8_0")
    model = load_model(read_card(path), CpuSettings(), lambda done, total: None)
    engine = engine_settings(max_num_batched_tokens=24, max_num_seqs=300)
    return Workspace(model.card, model.weights, engine, THREADS)


def test_a_step_gets_rows_for_its_tokens_where_they_outlive_a_block(workspace: Workspace) -> None:
    for count in (1, 24, 5):
        x = workspace.take_tokens(count)
        assert x.shape == (count, 64)
        own, normed, xq, xs, xsum, qkv, mixed, *near = workspace.token_arguments
        assert own.ctypes.data == x.ctypes.data
        assert qkv.shape == (count, 6 * COLUMNS)  # q, k and v: 256 columns
        assert mixed.shape == (count, 128)
        assert [each.shape for each in (normed, *near)] == [
            (ROWS, 64),
            (ROWS, 4 * COLUMNS),  # gate and up: 192 columns
            (ROWS, 96),
            (ROWS, 2 * COLUMNS),  # 64 columns
        ]
        assert (xq.dtype, xs.dtype, xsum.dtype) == (np.int8, np.float32, np.int32)


def test_quantized_inputs_of_every_matrix_fit_for_blocks_and_for_head_rows(
    workspace: Workspace,
) -> None:
    workspace.take_tokens(24)
    _, _, xq, xs, xsum, *_ = workspace.token_arguments
    assert workspace.max_head_rows == 300
    assert xq.size >= max(ROWS * 128, 300 * 64)
    assert min(xs.size, xsum.size // 2) >= max(ROWS * 4, 300 * 2)


def test_buffers_begin_at_cache_lines_and_are_the_same_in_every_step(workspace: Workspace) -> None:
    def addresses() -> list[int]:
        workspace.take_tokens(7)
        arrays = (*workspace.token_arguments, *workspace.head_arguments(2), workspace.scratch)
        return [each.ctypes.data for each in arrays]

    first = addresses()
    assert not any(address % 64 for address in first)
    assert addresses() == first


def test_logits_are_a_copy_without_padding(workspace: Workspace) -> None:
    _, buffer = workspace.head_arguments(2)
    buffer[:] = np.arange(buffer.size).reshape(buffer.shape)
    logits = workspace.logits(2)
    assert logits.shape == (2, 257)
    assert logits.flags.c_contiguous
    assert np.array_equal(logits, buffer[:, :257])
    buffer[:] = 0
    assert logits[1, 256] != 0


def test_at_least_some_rows_have_room_for_logits(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama(head_dim=32))
    model = load_model(read_card(path), CpuSettings(), lambda done, total: None)
    small = Workspace(model.card, model.weights, engine_settings(max_num_seqs=1), threads=1)
    assert small.max_head_rows == HEAD_ROWS


def test_partial_sums_grow_when_needed_and_then_stay(workspace: Workspace) -> None:
    assert workspace.partials(0).size == 0
    grown = workspace.partials(100)
    assert grown.size >= 100
    assert workspace.partials(50) is grown
    assert workspace.partials(grown.size) is grown
    assert workspace.partials(grown.size + 1).size > grown.size


def test_each_thread_has_scratch_of_its_own(workspace: Workspace) -> None:
    assert workspace.scratch.shape[0] == THREADS
    assert workspace.scratch.shape[1] > 0
