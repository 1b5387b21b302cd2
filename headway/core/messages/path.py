"""What travels along a request's path: to the engine, and back as events.

These structs cross processes as msgpack. They only ever gain optional fields, and a
reader ignores fields that it does not know, so that two versions one apart work together.
"""

from enum import Enum

import msgspec

from headway.core.base.units import Seconds

LOGPROB_FLOOR = -9999.0  # stands for minus infinity, which JSON cannot carry


class FinishReason(Enum):
    """Why a choice, or a whole request, ended."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens or the end of the context
    CANCELLED = "cancelled"  # the client left, or a deadline passed
    ERROR = "error"  # `Finished.error` says what


class CacheMiss(Enum):
    """Why no more of a prompt came out of the prefix cache; for operators, not for clients.

    (That a prompt is known under another salt is what salts are there to hide.)
    """

    NONE = "none"  # all that can be shared was found
    DIFFERS = "differs"  # nothing computed lately goes on like it
    EVICTED = "evicted"  # the next block was there, and was dropped
    OTHER_SALT = "other_salt"  # it begins like a prompt that was computed under another salt
    NO_ROOM = "no_room"  # the next block is in the host tier, and no device block was free
    NOT_SHARED = "not_shared"  # the cache is off, or the request needs every position computed


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens; all values are already validated and inside their ranges."""

    max_tokens: int  # >= 1, and prompt + max_tokens <= context
    seed: int  # 0 .. 2**64 - 1; chosen at admission when the client sent none
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # output tokens only
    frequency_penalty: float = 0.0  # output tokens only
    repetition_penalty: float = 1.0  # prompt and output tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # the matched stop string stays in the text
    min_tokens: int = 0  # no end-of-sequence, stop token or stop string before
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    num_logprobs: int | None = None  # None: none; k >= 0: the token's own and the k best
    prompt_logprobs: bool = False  # also score every prompt token (echo with logprobs)
    allowed_token_ids: tuple[int, ...] = ()  # only these are drawn; empty: all
    # Of each, the last id is not drawn while the output ends in the ids before it.
    bad_words: tuple[tuple[int, ...], ...] = ()


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice of a request has given its client already, from a replica that is lost."""

    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None  # set: the choice has ended


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the engine takes it: tokens in, how to sample, whom it belongs to."""

    id: str  # internal and unique; the client's own id is only echoed
    prompt: tuple[int, ...]  # token ids, at least one
    sampling: Sampling
    num_choices: int = 1  # `n`; choices share the prompt's blocks
    cache_salt: bytes = b""  # different salts never share blocks
    slo_class: int = 1  # tenancy.SloClass: 0 vip, 1 standard, 2 internal
    tenant: str = ""  # shares its class by weight; "" is everybody without a tenant
    tenant_weight: float = 1.0  # > 0
    first_token_budget_s: float | None = None  # from arrival at the engine; None: no promise
    priority: int = 0  # orders the tenant's own requests of one deadline; lower goes first
    # One a choice where the request goes on from another replica; nothing of it is sent again.
    emitted: tuple[Emitted, ...] = ()


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token, and of the best candidates at its position.

    The distribution is the softmax of the logits after bias and penalties and before
    temperature, top-k, top-p and min-p. Values are finite: none is below LOGPROB_FLOOR.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request over all of its choices."""

    prompt_tokens: int
    completion_tokens: int  # ids emitted, an end-of-sequence token included
    cached_tokens: int = 0  # prompt tokens read from the prefix cache
    queue_s: float = 0.0  # from arrival at the engine to first being planned
    prefill_s: float = 0.0  # from first planned to first token
    decode_s: float = 0.0  # from first token to the end
    cached_host_tokens: int = 0  # of the cached ones: brought back from the host tier
    device_s: float = 0.0  # its share, by tokens, of the steps that it was part of
    num_chunks: int = 0  # steps that its prompt took
    preemptions: int = 0
    preemptions_swapped: int = 0  # of them: its blocks were kept in the host tier
    recomputed_tokens: int = 0  # computed again, after a preemption or on another replica
    is_estimated: bool = False  # no server told it: counted by bytes and chunks


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The request's first tokens were planned: it waits no longer."""

    request_id: str
    at: Seconds  # replica clock
    cached_tokens: int  # the prompt differs from what is cached in the block that begins here
    cached_host_tokens: int = 0  # those of them that were brought back from the host tier
    miss_reason: CacheMiss = CacheMiss.NONE


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """What one choice gained in one step."""

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    text: str  # what may leave now; never half a character, never part of a stop string
    at: Seconds  # replica clock
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token when asked for
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # with choice 0's first token only
    finish_reason: FinishReason | None = None  # set on the choice's last event
    stop_reason: str | int | None = None  # the stop string or stop token id that matched


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The request's only end: every request gets exactly one."""

    request_id: str
    reason: FinishReason
    usage: Usage
    error: str | None = None  # message for the client, with reason ERROR
    error_code: str | None = None  # `code` of the error's class
    retry_after_s: float | None = None  # with an error that waiting helps against
    replica: str = ""  # the last one that worked on it, where a pool has several
    failovers: int = 0  # times that it went on at another replica


Event = Started | Tokens | Finished


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """To a replica: start this request."""

    request: EngineRequest


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """To a replica: nobody waits for this request any more."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """To a replica: end the process now; the server has drained it or gives up waiting."""


Command = Submit | Cancel | Stop
