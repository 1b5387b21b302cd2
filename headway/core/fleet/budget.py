"""Whether the models of one server fit into its memory together, and who gets how much of it."""

from collections.abc import Sequence

import msgspec

from headway.core.base.errors import InvalidSetting, NotEnoughMemory

GIB = 1024**3
MIB = 1024**2
PROCESS_BYTES = 192 * MIB  # of an engine's process beside weights and KV: code and work space


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one model takes once it is loaded; all in bytes but `context`."""

    where: str  # its place in the settings, with which messages begin: "models[1]"
    weights: int
    kv_asked: int | None  # as set; None: it gets a part of what is left
    kv_token: int  # of one token
    context: int  # tokens that its KV cache must hold at least; 1 if it adapts to the memory
    kv_most: int  # more would be of no use


def divide(needs: Sequence[Need], free: int, share: float) -> tuple[int, ...]:
    """Bytes of KV cache for each model, all of them loaded at once.

    free   what the machine could give now
    share  of what is left after weights and what was asked for: for those that did not say

    Raises NotEnoughMemory and InvalidSetting, which name the setting, its value and the largest
    that would fit.
    """
    weights = sum(need.weights + PROCESS_BYTES for need in needs)
    if weights > free:
        raise _too_heavy(needs, weights, free)
    asked = sum(need.kv_asked or 0 for need in needs)
    left = free - weights - asked
    if left < 0:
        raise _asked_too_much(needs, -left, free)
    parts = _level([need.kv_most for need in needs if need.kv_asked is None], int(left * share))
    granted = []
    for need in needs:
        part = parts.pop(0) if need.kv_asked is None else need.kv_asked
        if part < need.context * need.kv_token:
            raise _context_too_long(need, part)
        granted.append(part)
    return tuple(granted)


def _level(most: Sequence[int], total: int) -> list[int]:
    """The same for all out of a total, but for none more than its most."""
    parts = [0] * len(most)
    order = sorted(range(len(most)), key=lambda index: most[index])
    for place, index in enumerate(order):
        parts[index] = min(most[index], total // (len(most) - place))
        total -= parts[index]
    return parts


def _too_heavy(needs: Sequence[Need], weights: int, free: int) -> NotEnoughMemory:
    heaviest = max(needs, key=lambda need: need.weights)
    largest = max(0, heaviest.weights - (weights - free))
    return NotEnoughMemory(
        f"{heaviest.where}.model: its weights take {_size(heaviest.weights)}, and the "
        f"{len(needs)} models together {_size(weights)} without any KV cache, but only "
        f"{_size(free)} of memory are free; beside the others at most {_size(largest)} fit here: "
        f"use a smaller one, or serve fewer"
    )


def _asked_too_much(needs: Sequence[Need], excess: int, free: int) -> InvalidSetting:
    greediest = max(needs, key=lambda need: need.kv_asked or 0)
    asked = greediest.kv_asked or 0
    largest = max(0, asked - excess)
    return InvalidSetting(
        f"{greediest.where}.kv_cache_memory_bytes",
        f"{asked} is too much: with it the {len(needs)} models take {_size(excess)} more than the "
        f"{_size(free)} of memory that are free here; use {largest} or less, or less for the "
        f"other models",
    )


def _context_too_long(need: Need, part: int) -> InvalidSetting:
    tokens = part // need.kv_token
    return InvalidSetting(
        f"{need.where}.max_model_len",
        f"{need.context} tokens take {need.context * need.kv_token} bytes of KV cache, but this "
        f"model's part of the memory is {part}; use auto, or {tokens} or less, or set "
        f"kv_cache_memory_bytes of the models",
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
