"""What is kept of one request after it has ended: the ledger's row, and why things went so."""

import msgspec


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes, and why; shown in its answer's headers and in its record."""

    asked: str = ""  # the model as the client named it; "" for none
    model: str  # the pool's name: one model and version
    version: str = "stable"
    arm: str = ""  # of an A/B split; "" where there is none
    reason: str = "name"  # one word, or `word:detail`: name, alias, preview, split, size:large, ...
    degraded: str = ""  # what was done instead of refusing: "model", "max_tokens"; "" for nothing
    max_tokens: int | None = None  # bound that degrading puts on the answer


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request, complete; every request has exactly one. Holds no text of prompt or answer."""

    id: str  # the gateway's own
    shown_id: str = ""  # the client's X-Request-Id
    gateway: str = ""  # which process served it
    tenant: str = ""
    key_id: str = ""
    endpoint: str = ""
    slo_class: str = ""
    route: Route | None = None  # None: it ended before it was routed
    replica: str = ""  # the last one that worked on it: of ours a number, else host:port
    began: float  # seconds since 1970
    took_s: float = 0.0
    first_token_s: float | None = None
    outcome: str  # core.base.metrics.Outcome
    finish: str = ""  # messages.path.FinishReason of its last choice
    error_code: str = ""
    limit: str = ""  # which limit of its tenant refused it
    user: str = ""  # a hash of the request's `user`; "" for none
    is_stream: bool = False
    num_choices: int = 0  # of all its prompts together
    max_tokens: int = 0  # of all its choices together
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of them: read from the prefix cache
    cached_host_tokens: int = 0  # of those: brought back from the host tier
    completion_tokens: int = 0  # generated, also those that nobody read any more
    sent_tokens: int = 0  # of them: handed to the connection
    unsure_tokens: int = 0  # beside those: the gateway died while it handed them over
    recomputed_tokens: int = 0  # computed again after a preemption or on another replica
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    device_s: float = 0.0  # its share of the steps that it was part of
    num_chunks: int = 0  # steps that its prompt took
    preemptions: int = 0
    preemptions_swapped: int = 0  # of them: its blocks were kept in the host tier
    failovers: int = 0  # times it went on at another replica
    miss_reason: str = ""  # messages.path.CacheMiss
    cost: int = 0  # micros of the currency of the prices
    is_estimated: bool = False  # tokens counted by bytes and chunks: no server told them
