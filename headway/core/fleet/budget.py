"""Whether the engines of one server fit into its memory together, and who gets how much of it."""

from collections.abc import Sequence

import msgspec

from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.units import blocks_for

GIB = 1024**3
MIB = 1024**2
DEVICE_PROCESS_BYTES = 768 * MIB  # of an engine's process on a GPU: CUDA's own, and work space
PROCESS_BYTES = 192 * MIB  # of an engine's process beside weights and KV: code and work space


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one model takes once it is loaded; bytes, unless it says tokens."""

    where: str  # its place in the settings, with which messages begin
    weights: int
    kv_asked: int | None  # as set; None: it gets a part of what is left
    kv_most: int  # more would be of no use
    kv_block: int  # of one block
    block_size: int  # tokens
    context: int  # tokens that its KV cache must hold at least
    kv_host: int = 0  # for blocks that leave the KV cache
    replicas: int = 1  # engines that take all of this, each for itself


def divide(needs: Sequence[Need], free: int, share: float) -> tuple[int, ...]:
    """Bytes of KV cache for each engine of each model, with all of them loaded at once.

    free   what the machine could give now
    share  of what is left after weights and what was asked for: for those that did not say

    Raises NotEnoughMemory and InvalidSetting, which name the setting, its value and the largest
    that would fit.
    """
    weights = sum(need.replicas * (need.weights + PROCESS_BYTES) for need in needs)
    if weights > free:
        raise _too_heavy(needs, weights, free)
    left = free - weights
    left -= sum(need.replicas * ((need.kv_asked or 0) + need.kv_host) for need in needs)
    if left < 0:
        raise _asked_too_much(needs, -left, free)
    engines = [need for need in needs for _ in range(need.replicas) if need.kv_asked is None]
    parts = _level([need.kv_most for need in engines], int(left * share))
    granted = []
    for need in needs:
        part = need.kv_asked
        if part is None:  # the same for all of its engines, but for what rounding left
            part = min(parts[: need.replicas])
            del parts[: need.replicas]
        if part < blocks_for(need.context, need.block_size) * need.kv_block:
            raise _context_too_long(need, part)
        granted.append(part)
    return tuple(granted)


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine has to leave to others on its accelerator, whichever of them loads first."""

    taken: int = 0  # bytes of all others: weights, their processes, KV caches of a size that is set
    sharers: int = 1  # engines that share what is left, itself included

    def room(self, total: int, free: int, weights: int) -> int:
        """Bytes for this engine's KV cache.

        total    of the device
        free     of the device now, this engine's weights being there, and others' or not
        """
        if self.sharers == 1 and not self.taken:
            return free
        left = total - self.taken - weights - DEVICE_PROCESS_BYTES
        return max(0, min(free, left // self.sharers))


def share_device(needs: Sequence[tuple[int, int, int | None]]) -> tuple[DeviceShare, ...]:
    """For each model on one accelerator: what each of its engines has to leave to others.

    needs  replicas, bytes of weights, and bytes of KV cache as set or None, of each
    """

    def certain(weights: int, asked: int | None) -> int:
        return weights + DEVICE_PROCESS_BYTES + (asked or 0)

    everything = sum(count * certain(weights, asked) for count, weights, asked in needs)
    undecided = sum(count for count, _, asked in needs if asked is None)
    return tuple(
        DeviceShare(
            taken=everything - certain(weights, asked), sharers=undecided if asked is None else 1
        )
        for _, weights, asked in needs
    )


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
    largest = max(0, heaviest.weights - -(-(weights - free) // heaviest.replicas))
    return NotEnoughMemory(
        f"{heaviest.where}: model: its weights take {_size(heaviest.weights)}, and the "
        f"{_engines(needs)} take {_size(weights)} without any KV cache, of {_size(free)} of "
        f"memory that are free; beside the others, weights of at most {_size(largest)} fit: "
        f"use a smaller model, or serve fewer"
    )


def _asked_too_much(needs: Sequence[Need], excess: int, free: int) -> InvalidSetting:
    greediest = max(needs, key=lambda need: max(need.kv_asked or 0, need.kv_host))
    asked = greediest.kv_asked or 0
    name = "kv_cache_memory_bytes"
    if greediest.kv_host > asked:
        asked, name = greediest.kv_host, "kv_host_memory_bytes"
    most = max(0, asked - -(-excess // greediest.replicas))
    return InvalidSetting(
        f"{greediest.where}: {name}",
        f"{asked} is too much: with it the {_engines(needs)} take {_size(excess)} more than the "
        f"{_size(free)} of memory that are free; use {most} or less, or less "
        f"for the other models",
    )


def _context_too_long(need: Need, part: int) -> InvalidSetting:
    tokens = part // need.kv_block * need.block_size
    wanted = blocks_for(need.context, need.block_size) * need.kv_block
    return InvalidSetting(
        f"{need.where}: max_model_len",
        f"{need.context} tokens take {wanted} bytes of KV cache, and this model has {part} of the "
        f"memory; use at most {tokens}, or auto, or set kv_cache_memory_bytes",
    )


def _engines(needs: Sequence[Need]) -> str:
    count = sum(need.replicas for need in needs)
    return f"{count} models" if count == len(needs) else f"{count} engines"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
