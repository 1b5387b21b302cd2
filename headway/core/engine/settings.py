"""Settings of the engine, and how the open ones are decided at start."""

import math

import msgspec

from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds, blocks_for

AUTO = "auto"
WAITING_CONTEXTS = 32  # full contexts of prompt tokens that may wait, unless it is set
DEFAULT_MEMORY_SHARE = 0.4  # of the memory left after the weights; the rest is the machine's


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set; `None` means decide at start.

    `max_model_len` "auto" shrinks the context to what the KV pool holds; None takes the
    model's own context and refuses to start when the pool cannot hold one such sequence.
    """

    max_model_len: int | str | None = None  # tokens of prompt and answer together
    max_num_seqs: int = 32  # sequences in one step
    max_num_batched_tokens: int = 256  # tokens in one step
    itl_target: float = 0.15  # seconds a running stream should wait for a token; 0: no target
    block_size: int = 16  # tokens in one KV block
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    prefix_cache_ttl: float = 0.0  # seconds without use; 0: cached blocks stay until evicted
    kv_host_memory_bytes: int = 0  # for KV blocks that leave the device; 0: none is kept
    ageing: float = 30.0  # seconds of waiting that lift a request by one class
    long_prompt: int | None = None  # tokens above which a prompt is long; None: 6 full steps
    long_output: int = 1024  # the same for max_tokens
    slow_lane_share: float = 0.5  # of a step's prompt tokens, for long requests beside short ones
    max_waiting_requests: int = 256  # sequences: a request with n=4 counts as 4
    max_waiting_tokens: int | None = None  # prompt tokens; None: 32 full contexts


class ResolvedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The same with every question answered; nothing below asks again."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    enable_prefix_caching: bool
    max_waiting_requests: int
    max_waiting_tokens: int
    num_host_blocks: int = 0  # at most; their memory is taken as it is needed
    prefix_cache_ttl: float = 0.0
    itl_target: Seconds | None = None  # None: a step may take as long as its tokens take
    ageing: Seconds = Seconds(30.0)
    long_prompt: int | None = 1 << 30  # None: by what a step is measured to hold
    long_output: int = 1 << 30
    slow_lane_share: float = 0.5


def check(settings: EngineSettings, card: ModelCard) -> None:
    """Refuse what is impossible before any memory is taken; raises InvalidSetting."""
    check_numbers(settings)
    _check_max_model_len(settings.max_model_len, card)


def check_numbers(settings: EngineSettings) -> None:
    """The same, as far as no model has to be known."""
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_waiting_requests"):
        if getattr(settings, name) < 1:
            raise InvalidSetting(
                f"--{name.replace('_', '-')}",
                f"must be at least 1, got {getattr(settings, name)}",
            )
    if not 0.0 <= settings.itl_target < math.inf:
        raise InvalidSetting(
            "--itl-target", f"must be seconds, 0 for no target, got {settings.itl_target}"
        )
    _check_order(settings)
    size = settings.block_size
    if size < 1 or size & (size - 1):
        raise InvalidSetting("--block-size", f"must be a power of two of at least 1, got {size}")
    if settings.max_waiting_tokens is not None and settings.max_waiting_tokens < 1:
        raise InvalidSetting(
            "--max-waiting-tokens", f"must be at least 1, got {settings.max_waiting_tokens}"
        )
    if settings.prefix_cache_ttl < 0:
        raise InvalidSetting(
            "--prefix-cache-ttl", f"must be at least 0 seconds, got {settings.prefix_cache_ttl:g}"
        )


def _check_order(settings: EngineSettings) -> None:
    if not 0.0 < settings.ageing < math.inf:
        raise InvalidSetting("--ageing", f"must be seconds above 0, got {settings.ageing}")
    if not 0.0 < settings.slow_lane_share <= 1.0:
        raise InvalidSetting(
            "--slow-lane-share", f"must be above 0 and at most 1, got {settings.slow_lane_share}"
        )
    for name, value in (("prompt", settings.long_prompt), ("output", settings.long_output)):
        if value is not None and value < 1:
            raise InvalidSetting(f"--long-{name}", f"must be at least 1 token, got {value}")


def _check_max_model_len(length: int | str | None, card: ModelCard) -> None:
    name = "--max-model-len"
    if isinstance(length, str):
        if length != AUTO:
            raise InvalidSetting(name, f"must be a number of tokens or 'auto', got {length!r}")
    elif length is not None and length < 2:
        raise InvalidSetting(name, f"must be at least 2 tokens, got {length}")
    elif length is not None and length > card.context_length:
        raise InvalidSetting(
            name,
            f"{length} is over the {card.context_length} tokens that {card.name} was made for; "
            f"use at most {card.context_length}",
        )


def resolve(
    settings: EngineSettings, card: ModelCard, free_bytes: int, bytes_per_value: float
) -> ResolvedEngine:
    """Fill every None once, from the memory that is left after the weights.

    free_bytes is what the machine could still give; bytes_per_value is the size of one
    stored K or V value, with its part of a scale. Raises NotEnoughMemory with the largest
    setting that would fit.
    """
    check(settings, card)
    block_bytes = card.kv_bytes_per_token(bytes_per_value) * settings.block_size
    wanted_len = settings.max_model_len
    full_len = wanted_len if isinstance(wanted_len, int) else card.context_length
    num_blocks = _num_blocks(settings, full_len, free_bytes, block_bytes)
    capacity = num_blocks * settings.block_size
    max_model_len = min(full_len, capacity) if wanted_len == AUTO else full_len
    if capacity < max_model_len or max_model_len < 2:
        raise NotEnoughMemory(
            f"the KV pool holds {capacity} tokens ({num_blocks} blocks of {block_bytes} bytes), "
            f"less than one sequence of --max-model-len {max_model_len}; use --max-model-len auto, "
            f"--max-model-len {max(capacity, 0)} or less, or --kv-cache-memory-bytes "
            f"{blocks_for(max_model_len, settings.block_size) * block_bytes} or more"
        )
    return ResolvedEngine(
        max_model_len=max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        itl_target=Seconds(settings.itl_target) if settings.itl_target else None,
        ageing=Seconds(settings.ageing),
        long_prompt=settings.long_prompt,
        long_output=settings.long_output,
        slow_lane_share=settings.slow_lane_share,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_waiting_requests=settings.max_waiting_requests,
        max_waiting_tokens=waiting_limit(settings, card.context_length),
        prefix_cache_ttl=settings.prefix_cache_ttl,
    )


def host_blocks(settings: EngineSettings, block_bytes: int, free_bytes: int | None) -> int:
    """Blocks of the host tier; free_bytes is what the machine has left beside the KV pool.

    None means that nobody knows. Raises InvalidSetting and NotEnoughMemory.
    """
    asked = settings.kv_host_memory_bytes
    if asked == 0:
        return 0
    if asked < block_bytes:
        raise InvalidSetting(
            "--kv-host-memory-bytes",
            f"{asked} is less than one block of {settings.block_size} tokens, which takes "
            f"{block_bytes} bytes; use 0 for no host tier",
        )
    if free_bytes is not None and asked > free_bytes:
        largest = max(0, free_bytes)
        raise NotEnoughMemory(
            f"--kv-host-memory-bytes {asked} is more than the {largest} bytes of the machine's "
            f"memory that are left beside the weights and the KV pool; use {largest} or less"
        )
    return asked // block_bytes


def waiting_limit(settings: EngineSettings, context_length: int) -> int:
    """Prompt tokens that may wait: one number for the gateway, asked first, and the engine.

    So it goes by the context that was asked for, not by what "auto" makes of it later.
    """
    if settings.max_waiting_tokens is not None:
        return settings.max_waiting_tokens
    length = settings.max_model_len
    return WAITING_CONTEXTS * (length if isinstance(length, int) else context_length)


def _num_blocks(settings: EngineSettings, full_len: int, free_bytes: int, block_bytes: int) -> int:
    asked = settings.kv_cache_memory_bytes
    if asked is not None:
        if asked < block_bytes:
            raise InvalidSetting(
                "--kv-cache-memory-bytes",
                f"{asked} is less than one block of {settings.block_size} tokens, "
                f"which takes {block_bytes} bytes",
            )
        if asked > free_bytes:
            raise NotEnoughMemory(
                f"--kv-cache-memory-bytes {asked} is more than the {free_bytes} bytes that are "
                f"free after loading the weights; use {free_bytes} or less"
            )
        return asked // block_bytes
    useful = settings.max_num_seqs * blocks_for(full_len, settings.block_size)
    return max(0, min(useful, int(free_bytes * DEFAULT_MEMORY_SHARE) // block_bytes))
