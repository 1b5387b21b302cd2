"""Bodies of requests as clients send them; field types and ranges are declared here once.

Both the checks (`parse`) and the API description (`openapi`) are made from these structs.
Every field is optional for the decoder and null equals absent; which ones must be there
is said in `parse`, where the message can be written for people.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headway.core.tenancy.tenant import SloClass, Tenant

MAX_LOGPROBS = 20  # OpenAI's own bound for top_logprobs; also ours for completions
MAX_INT = 2**31 - 1  # keeps counts inside what every later stage can hold
SMALLEST_TOP_P = 1e-9  # what top_p 0 becomes: the best token always stays

T = TypeVar("T")
Harmless = Annotated[T, Meta(description="Accepted; without effect on the answer.")]
# Of these and of `min_p` and `repetition_penalty` a model may have defaults of its own, which
# /v1/models tells; those named here are of a model that has none.
Temperature = Annotated[
    float, Meta(ge=0.0, le=2.0, description="0 is greedy; default: the model's, else 1.")
]
TopP = Annotated[
    float,
    Meta(ge=0.0, le=1.0, description="0 keeps only the best token; default: the model's, else 1."),
]
TopK = Annotated[
    int, Meta(ge=-1, le=MAX_INT, description="0 and -1 keep all; default: the model's, else all.")
]
Share = Annotated[float, Meta(ge=0.0, le=1.0, description="Default: the model's, else 0.")]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0, description="Over output tokens only.")]
RepetitionPenalty = Annotated[
    float,
    Meta(
        ge=0.01,
        le=10.0,
        description="Over prompt and output tokens; 1 is none. Default: the model's, else 1.",
    ),
]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Choices = Annotated[int, Meta(ge=1, le=MAX_INT, description="Answers to each prompt.")]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT)]
Truncation = Annotated[
    int,
    Meta(
        ge=-1,
        le=MAX_INT,
        description="Keep only so many tokens, the last ones, of a prompt; -1: what fits.",
    ),
]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Only together with `stream`: true."""

    include_usage: bool | None = None
    continuous_usage_stats: (
        Annotated[bool, Meta(description="The usage so far in every chunk.")] | None
    ) = None
    include_obfuscation: bool | None = None  # accepted and without effect: no padding is sent


class SharedFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and completions have in common."""

    model: Annotated[str, Meta(description="Default: the model this server was started with.")] | (
        None
    ) = None
    max_tokens: (
        Annotated[Count, Meta(description="At least 1. Default: what is left of the context.")]
        | None
    ) = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    n: Choices | None = None
    best_of: Annotated[int, Meta(description="Only equal to `n`.")] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: Annotated[int, Meta(description="-2**63 to 2**64 - 1.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: (
        Annotated[dict[str, Bias], Meta(description="Token id, as a string, to -100 ... 100.")]
        | None
    ) = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    user: Harmless[str] | None = None
    metadata: Harmless[dict[str, Any]] | None = None
    store: Harmless[bool] | None = None
    service_tier: (
        Annotated[
            Literal["auto", "default", "flex", "priority", "scale"],
            Meta(description="flex makes the request best effort; no value raises its class."),
        ]
        | None
    ) = None
    priority: (
        Annotated[
            int,
            Meta(
                ge=-MAX_INT,
                le=MAX_INT,
                description="Orders requests of one caller and deadline; lower goes first.",
            ),
        ]
        | None
    ) = None
    cache_salt: (
        Annotated[str, Meta(description="Requests with different salts never share cached blocks.")]
        | None
    ) = None
    truncate_prompt_tokens: Truncation | None = None
    return_token_ids: (
        Annotated[bool, Meta(description="Also the ids of the prompt and of the answer.")] | None
    ) = None
    prompt_logprobs: (
        Annotated[
            NumLogprobs, Meta(description="Score the prompt's tokens, with so many candidates.")
        ]
        | None
    ) = None
    allowed_token_ids: (
        Annotated[list[TokenId], Meta(description="Only these tokens are drawn.")] | None
    ) = None
    bad_words: (
        Annotated[list[str], Meta(description="Texts that the answer never completes.")] | None
    ) = None


class ChatBody(SharedFields, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions` and `/v1/chat`."""

    messages: list[dict[str, Any]] | None = None  # each is checked as a Message
    max_completion_tokens: (
        Annotated[Count, Meta(description="The newer name of `max_tokens`.")] | None
    ) = None
    parallel_tool_calls: Harmless[bool] | None = None
    prediction: Harmless[dict[str, Any]] | None = None
    safety_identifier: Harmless[str] | None = None
    prompt_cache_key: Harmless[str] | None = None
    prompt_cache_retention: Harmless[str] | None = None
    add_generation_prompt: (
        Annotated[bool, Meta(description="Open the assistant's turn; default true.")] | None
    ) = None
    continue_final_message: (
        Annotated[bool, Meta(description="Go on with the last message; its turn stays open.")]
        | None
    ) = None
    chat_template_kwargs: (
        Annotated[
            dict[str, Any], Meta(description="Switches that the model's chat template knows.")
        ]
        | None
    ) = None
    echo: (
        Annotated[bool, Meta(description="Begin with the assistant's message that is continued.")]
        | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None


class CompletionBody(SharedFields, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: (
        Annotated[
            str | list[str | int | list[int]],
            Meta(description="Text, list of texts, list of token ids, or list of such lists."),
        ]
        | None
    ) = None
    logprobs: NumLogprobs | None = None
    echo: bool | None = None


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content: text, or the refusal of an earlier answer."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier answer called; `arguments` is JSON as text, or an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of an earlier assistant message; handed to the chat template."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message; null, missing, "" and [] content are the same."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class SamplingChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample, checked, with defaults filled in where the model does not matter.

    `max_tokens` None means what is left of the context; `seed` None means that the caller
    of `resolve.engine_requests` draws one. None for a field that a model's makers may have a
    default for means that the request leaves it to them.
    """

    max_tokens: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    num_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is, and what that one's class is promised."""

    tenant: Tenant = Tenant()
    slo_class: SloClass = SloClass.STANDARD
    first_token_budget_s: float | None = None


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completion requests have in common once they are checked."""

    sampling: SamplingChoice
    model: str | None = None  # None: the served one
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    user: str | None = None
    cache_salt: bytes = b""
    asked_class: SloClass | None = None  # None: that of its tenant
    priority: int = 0
    asker: Asker = Asker()  # never the client's to say: stamped on by the gateway
    truncate_to: int | None = None  # prompt tokens; -1: what fits
    return_token_ids: bool = False
    prompt_logprobs: int | None = None
    bad_words: tuple[str, ...] = ()
    unknown_fields: tuple[str, ...] = ()  # ignored; for counting


class ChatRequest(ParsedRequest, frozen=True, kw_only=True):
    """A checked chat request; `messages` are plain dicts for the chat template.

    Each has `role` and whichever of `content` (str, list of {"type": "text", "text": str},
    None or missing), `name`, `tool_calls`, `tool_call_id` and `reasoning_content` were sent.
    """

    messages: tuple[dict[str, Any], ...]
    max_tokens_field: str = "max_tokens"  # the name under which the client sent it
    add_generation_prompt: bool = True
    continue_final: bool = False
    template_arguments: dict[str, Any] = {}
    echo: bool = False

    @property
    def echoed(self) -> str:
        """What the answer begins with: the assistant's message that it continues."""
        last = self.messages[-1]
        if not self.echo or last["role"] != "assistant":
            return ""
        content = last.get("content") or ""
        return content if isinstance(content, str) else "\n".join(p["text"] for p in content)


class CompletionRequest(ParsedRequest, frozen=True, kw_only=True):
    """A checked completion request; a prompt is text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    prompt_is_list: bool = False  # so that messages can say prompt[i]
    echo: bool = False
    max_tokens_field: str = "max_tokens"

    @property
    def is_scoring(self) -> bool:
        """True when nothing is to be generated: `echo` with `max_tokens` 0."""
        return self.echo and self.sampling.max_tokens == 0
