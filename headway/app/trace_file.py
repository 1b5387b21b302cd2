"""A recorded trace: one JSON object a line, a request each.

    {"arrival": 0.35, "prompt_tokens": 210, "output_tokens": 64}

Optional: "id", "max_tokens" (default: the output's), "tenant", "class" (vip, standard and
internal are ordered and promised as by the server; another name only groups the figures), and
for prompts that begin alike "prefix" (any name) with "prefix_tokens" (how much of the prompt).
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.base.units import Seconds
from headway.core.sim.workload import Planned, Workload, ids
from headway.core.tenancy.tenant import DEFAULT_TARGETS, NAMES, SloClass


class TracedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line; arrival in seconds from any start, lengths in tokens."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    id: str | None = None
    max_tokens: int | None = None
    group: str = msgspec.field(default="all", name="class")
    tenant: str = ""
    prefix: str | None = None
    prefix_tokens: int = 0


def read_trace(path: Path, seed: int) -> Workload:
    """The trace as arrivals; prompts are random ids, equal where prefixes are.

    Raises InvalidSetting that names the file and the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidSetting("--requests", f"cannot read {path}: {error.strerror}") from error
    traced = [_read(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not traced:
        raise InvalidSetting("--requests", f"{path} has no request")
    return workload_of(traced, seed)


def workload_of(traced: Iterable[TracedRequest], seed: int) -> Workload:
    """Arrivals in order, the first at 0."""
    ordered = sorted(traced, key=lambda request: request.arrival)
    start = ordered[0].arrival
    return Workload(
        arrivals=tuple(
            (Seconds(request.arrival - start), _planned(request, number, seed))
            for number, request in enumerate(ordered)
        )
    )


def _read(path: Path, number: int, line: bytes) -> TracedRequest:
    where = f"{path}, line {number}"
    try:
        request = msgspec.json.decode(line, type=TracedRequest)
    except msgspec.DecodeError as error:
        raise InvalidSetting("--requests", f"{where}: {error}") from error
    for name in ("prompt_tokens", "output_tokens"):
        if getattr(request, name) < 1:
            raise InvalidSetting(
                "--requests", f"{where}: {name} must be at least 1, got {getattr(request, name)}"
            )
    if request.max_tokens is not None and request.max_tokens < request.output_tokens:
        raise InvalidSetting(
            "--requests",
            f"{where}: max_tokens {request.max_tokens} is less than the "
            f"{request.output_tokens} tokens of the answer",
        )
    if not 0 <= request.prefix_tokens <= request.prompt_tokens:
        raise InvalidSetting(
            "--requests",
            f"{where}: prefix_tokens must be from 0 to prompt_tokens, got {request.prefix_tokens}",
        )
    return request


def _planned(request: TracedRequest, number: int, seed: int) -> Planned:
    shared = request.prefix_tokens if request.prefix is not None else 0
    slo_class = NAMES.get(request.group, SloClass.STANDARD)
    prefix = ids(shared, Random(f"{seed}/prefix/{request.prefix}"))
    own = ids(request.prompt_tokens - shared, Random(f"{seed}/prompt/{number}"))
    return Planned(
        id=request.id or f"r{number}",
        prompt=prefix + own,
        output_tokens=request.output_tokens,
        max_tokens=request.max_tokens or request.output_tokens,
        group=request.group,
        slo_class=slo_class,
        first_token_budget_s=DEFAULT_TARGETS.get(slo_class) if request.group in NAMES else None,
        tenant=request.tenant,
    )
