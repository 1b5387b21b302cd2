"""Bodies of answers as clients read them; written by `responses`, described by `openapi`.

Fields that OpenAI always sends are always sent, null where there is nothing.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishName = Literal["stop", "length"]


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`param` names the field at fault; `code` is stable, `message` is for people."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Every error, as a response body and as an event of a stream."""

    error: ErrorDetail


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int = 0


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens over all prompts and choices; a prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int  # end-of-sequence tokens included
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate at one position; `bytes` are the token's own."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """Score of a token at one position of the prompt; `rank` 1 is the best, null: not known."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptScores = list[dict[str, PromptLogprob] | None]  # of each position, by token id


class ChatTokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One emitted token; `bytes` are those that stand in the message, [] when none do.

    Joined over all entries they are the message in UTF-8, before half characters at its
    end were replaced.
    """

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of a message's tokens."""

    content: list[ChatTokenLogprob] | None = None
    refusal: list[ChatTokenLogprob] | None = None


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The generated message."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of `n` answers; `stop_reason` is the stop string or token id that matched."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET  # where `return_token_ids` asked for them


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/chat/completions` without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptScores | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message; {} in the chunk that ends it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice's share of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat; the usage chunk has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # in the first chunk


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel lists, one entry a token; the first prompt token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters from the start of `text`


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or one choice's share of a chunk; prompts come first in `index`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # streamed: in the choice's first chunk
    prompt_logprobs: PromptScores | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/completions`, whole or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


class NativeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of `/v1/chat`; `index` counts events from 0."""

    token: str
    index: int
    finish_reason: FinishName | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int  # Unix time at which this server loaded it
    owned_by: str = "headway"
    # Tokens of prompt and answer together; missing where another server keeps it to itself.
    max_model_len: int | UnsetType = UNSET
    root: str | None = None  # the model's name in its file
    parent: str | None = None
    state: str = "ready"  # or starting, stalled, unloaded, unloading, failed, stopped
    # What the model's makers set for fields that a request leaves open; the others have 1, 1, 0,
    # 0 and 1.
    sampling_defaults: dict[str, float] = {}


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int  # tokens of prompt and answer together
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/detokenize`."""

    prompt: str


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/version`."""

    version: str
