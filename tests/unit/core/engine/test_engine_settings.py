import pytest

from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.model_card import ModelCard
from headway.core.engine.settings import (
    EngineSettings,
    ResolvedEngine,
    check,
    host_blocks,
    resolve,
    waiting_limit,
)

CARD = ModelCard(
    path="m.gguf",
    name="toy",
    architecture="llama",
    num_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rope_dim=4,
    rope_theta=10000.0,
    vocab_size=10,
    context_length=100,
    norm_eps=1e-5,
)
BLOCK_BYTES = 2 * 2 * 1 * 4 * 4 * 16  # K and V, layers, KV heads, head size, float32, tokens


def resolved(settings: EngineSettings, free_bytes: int = 10**9) -> ResolvedEngine:
    return resolve(settings, CARD, free_bytes, bytes_per_value=4)


@pytest.mark.spec("M8")
def test_open_settings_are_filled_from_the_model_and_the_memory() -> None:
    got = resolved(EngineSettings(max_num_seqs=4))
    assert (got.max_model_len, got.num_blocks) == (100, 4 * 7)
    assert got.max_waiting_tokens == 3200


def test_the_pool_is_no_larger_than_its_share_of_memory() -> None:
    got = resolved(EngineSettings(max_model_len="auto"), free_bytes=10 * BLOCK_BYTES)
    assert got.num_blocks == 4
    assert got.max_model_len == 64


def test_the_waiting_limit_is_the_gateways_also_when_auto_shrinks_the_context() -> None:
    settings = EngineSettings(max_model_len="auto")
    got = resolved(settings, free_bytes=10 * BLOCK_BYTES)
    assert got.max_model_len == 64
    assert got.max_waiting_tokens == waiting_limit(settings, CARD.context_length) == 3200


def test_auto_keeps_the_models_context_when_it_fits() -> None:
    assert resolved(EngineSettings(max_model_len="auto")).max_model_len == 100


@pytest.mark.spec("M8")
def test_startup_config_01_a_pool_too_small_for_one_sequence_names_what_would_fit() -> None:
    with pytest.raises(NotEnoughMemory, match=r"holds 32 tokens.*--max-model-len 32 or less"):
        resolved(EngineSettings(kv_cache_memory_bytes=2 * BLOCK_BYTES))


def test_startup_config_01_more_than_the_free_memory_is_refused_with_the_most_there_is() -> None:
    with pytest.raises(NotEnoughMemory, match=r"more than the 1000 bytes that are free"):
        resolved(EngineSettings(kv_cache_memory_bytes=1 << 30), free_bytes=1000)


def test_less_than_one_block_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=rf"takes {BLOCK_BYTES} bytes"):
        resolved(EngineSettings(kv_cache_memory_bytes=10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EngineSettings(block_size=0), "--block-size: must be a power of two"),
        (EngineSettings(block_size=12), "got 12"),
        (EngineSettings(max_num_seqs=0), "--max-num-seqs: must be at least 1, got 0"),
        (EngineSettings(max_num_batched_tokens=-1), "--max-num-batched-tokens"),
        (EngineSettings(max_waiting_tokens=0), "--max-waiting-tokens"),
        (EngineSettings(prefix_cache_ttl=-1.0), "--prefix-cache-ttl: must be at least 0"),
        (EngineSettings(max_model_len="long"), "or 'auto', got 'long'"),
        (EngineSettings(max_model_len=1), "at least 2"),
        (EngineSettings(max_model_len=101), "use at most 100"),
    ],
)
def test_startup_config_01_impossible_settings_are_named(
    settings: EngineSettings, message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        check(settings, CARD)


def test_the_host_tier_is_off_unless_it_is_asked_for_and_counts_whole_blocks() -> None:
    assert host_blocks(EngineSettings(), BLOCK_BYTES, 10**9) == 0
    asked = EngineSettings(kv_host_memory_bytes=3 * BLOCK_BYTES + 5)
    assert host_blocks(asked, BLOCK_BYTES, 10**9) == 3
    assert host_blocks(asked, BLOCK_BYTES, None) == 3


@pytest.mark.spec("M8")
def test_a_host_tier_that_cannot_be_is_refused_with_the_most_there_is() -> None:
    with pytest.raises(NotEnoughMemory, match=r"1073741824 is more than the 1000 .* use 1000 or"):
        host_blocks(EngineSettings(kv_host_memory_bytes=1 << 30), BLOCK_BYTES, 1000)
    with pytest.raises(NotEnoughMemory, match="use 0 or less"):
        host_blocks(EngineSettings(kv_host_memory_bytes=1 << 30), BLOCK_BYTES, -7)
    with pytest.raises(InvalidSetting, match=rf"takes {BLOCK_BYTES} bytes; use 0"):
        host_blocks(EngineSettings(kv_host_memory_bytes=1), BLOCK_BYTES, 10**9)
