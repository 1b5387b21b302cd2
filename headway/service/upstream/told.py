"""What a server tells of its load, out of its own metrics."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from headway.service.upstream.settings import Kind

PART = re.compile(rb'[{,]priority="[^"]')
VLLM_NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
NAMES: Mapping[Kind, tuple[str, str, str]] = {
    Kind.VLLM: VLLM_NAMES,
    Kind.HEADWAY: VLLM_NAMES,
    Kind.SGLANG: ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
    Kind.LLAMACPP: (
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:kv_cache_usage_ratio",
    ),
}


class Told(NamedTuple):
    """Requests and memory of one server, whoever sent them."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0  # 0 .. 1


class _Slot(msgspec.Struct):
    is_processing: bool


class _Load(msgspec.Struct):
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    token_usage: float = 0.0


class _Loads(msgspec.Struct):
    loads: list[_Load]


def read_told(text: bytes, kind: Kind) -> Told | None:
    """The load in a scraped page; None where there is nothing of it.

    Series of one name (one an engine) are added up, but for the usage: its largest counts. SGLang,
    where it schedules by priority, tells the sum under priority="" and its parts beside it.
    """
    names = NAMES.get(kind)
    if names is None:
        return None
    found: dict[str, list[float]] = {name: [] for name in names}
    for line in text.splitlines():
        if line.startswith(b"#") or b":" not in line:
            continue
        series, _, value = line.rpartition(b" ")
        name = series.partition(b"{")[0].decode("ascii", "replace").strip()
        if name in found and not PART.search(series):
            number = _number(value)
            if number is not None:
                found[name].append(number)
    if not any(found.values()):
        return None
    running, waiting, usage = (found[name] for name in names)
    return Told(sum(running), sum(waiting), max(usage, default=0.0))


def read_loads(page: bytes) -> Told | None:
    """The same out of SGLang's `/v1/loads`, which needs no switch at its start."""
    try:
        loads = msgspec.json.decode(page, type=_Loads).loads
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not loads:
        return None
    return Told(
        float(sum(each.num_running_reqs for each in loads)),
        float(sum(each.num_waiting_reqs for each in loads)),
        max(each.token_usage for each in loads),
    )


def read_slots(page: bytes) -> Told | None:
    """The same out of llama.cpp's `/slots`, which knows of none that wait."""
    try:
        slots = msgspec.json.decode(page, type=list[_Slot])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Told(float(sum(each.is_processing for each in slots))) if slots else None


# Where those tell their load whose metrics were not switched on at their start.
INSTEAD: Mapping[Kind, tuple[str, Callable[[bytes], Told | None]]] = {
    Kind.SGLANG: ("/v1/loads?include=core", read_loads),
    Kind.LLAMACPP: ("/slots", read_slots),
}


def _number(text: bytes) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0.0 <= number < 1e9 else None
