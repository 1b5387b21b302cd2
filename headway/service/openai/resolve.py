"""A checked request, its prompt ids and the model's facts to what the engine takes."""

from collections.abc import Sequence

import msgspec

from headway.core.base.errors import InvalidRequest, PromptTooLong
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.text.tokenizer import Tokenizer
from headway.service.loaders.sampling_defaults import SamplingDefaults
from headway.service.openai.limits import ApiLimits
from headway.service.openai.schema import (
    SMALLEST_TOP_P,
    ChatRequest,
    CompletionRequest,
    ParsedRequest,
    SamplingChoice,
)


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of the served model to check a request against it."""

    names: tuple[str, ...]  # served names; the first is the default
    max_model_len: int  # tokens of prompt and answer together
    vocab_size: int
    sampling: SamplingDefaults = SamplingDefaults()  # for what a request leaves open


def check_against_model(request: ChatRequest | CompletionRequest, facts: ModelFacts) -> None:
    """Ids of the request inside the vocabulary; raises InvalidRequest that names the first."""
    top = facts.vocab_size - 1
    for token_id, _ in request.sampling.logit_bias:
        if token_id > top:
            name = f"logit_bias.{token_id}"
            raise InvalidRequest(f"'{name}': token ids of this model are 0 ... {top}.", param=name)
    for name in ("stop_token_ids", "allowed_token_ids"):
        for i, token_id in enumerate(getattr(request.sampling, name)):
            if token_id > top:
                raise _id_out_of_range(f"{name}[{i}]", token_id, top)
    if isinstance(request, CompletionRequest):
        for index, prompt in enumerate(request.prompts):
            if isinstance(prompt, str) or max(prompt) <= top:
                continue
            at = next(i for i, token_id in enumerate(prompt) if token_id > top)
            name = f"{_prompt_name(request, index)}[{at}]"
            raise _id_out_of_range(name, prompt[at], top)


class BoundedTokenizer:
    """A tokenizer for one prompt: refuses text that cannot fit before it is encoded.

    Encoding takes seconds for what a body can hold, counting its bytes none.
    """

    def __init__(
        self, tokenizer: Tokenizer, request: ParsedRequest, index: int, context: int
    ) -> None:
        self._tokenizer = tokenizer
        self._name = _prompt_name(request, index)
        self._context = context
        self._at_least = 0  # tokens so far

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """As the tokenizer does; raises PromptTooLong."""
        self._at_least += self._tokenizer.min_tokens(text)
        if self._at_least >= self._context:
            raise _leaves_no_answer(self._name, self._at_least, self._context, "at least ")
        return self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)


def engine_requests(
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[Sequence[int]],
    facts: ModelFacts,
    request_id: str,
    drawn_seed: int,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> tuple[EngineRequest, ...]:
    """One engine request a prompt, or an error and then none.

    `prompts` are the token ids, one entry for a chat. With a seed of its own every prompt
    samples as if it were sent alone; `drawn_seed` (0 ... 2**64 - 1) stands in for a missing
    one, and differs from prompt to prompt. `bad_words` are the request's, as ids. Raises
    InvalidRequest and PromptTooLong.
    """
    check_against_model(request, facts)
    asker = request.asker
    made = []
    for index, whole in enumerate(prompts):
        name = _prompt_name(request, index)
        if not whole:
            raise InvalidRequest(f"'{name}' is empty; send at least one token.", param=name)
        prompt = _truncated(request, whole, facts.max_model_len)
        seed = request.sampling.seed
        made.append(
            EngineRequest(
                id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
                prompt=tuple(prompt),
                sampling=_sampling(
                    request,
                    _max_tokens(request, name, len(prompt), facts.max_model_len),
                    (drawn_seed + index) % 2**64 if seed is None else seed,
                    facts,
                    bad_words,
                ),
                num_choices=request.n,
                cache_salt=_salt(asker.tenant.name, request.cache_salt),
                slo_class=asker.slo_class,
                tenant=asker.tenant.name,
                tenant_weight=asker.tenant.weight,
                first_token_budget_s=asker.first_token_budget_s,
                priority=request.priority,
            )
        )
    return tuple(made)


def _truncated(request: ParsedRequest, prompt: Sequence[int], context: int) -> Sequence[int]:
    """The prompt's last tokens, as many as the request wants to keep."""
    most = request.truncate_to
    if most is None:
        return prompt
    if most > context:
        raise InvalidRequest(
            f"'truncate_prompt_tokens' ({most}) is over this model's context of {context} tokens; "
            "-1 keeps what fits.",
            param="truncate_prompt_tokens",
        )
    if most < 0:
        most = max(1, context - max(1, request.sampling.max_tokens or 1))
    return prompt[-most:]


def answer_entries(sent: Sequence[EngineRequest]) -> int:
    """Log-probabilities that the whole answer may hold: each is an entry of its JSON.

    Every choice has one for each of its tokens, and of the prompt's with `echo`, and as many
    candidates beside it as were asked for. 0 without log-probabilities.
    """
    return sum(_entries(each) for each in sent)


def check_answer_size(sent: Sequence[EngineRequest], limits: ApiLimits) -> None:
    """Raises InvalidRequest when the log-probabilities would make too large an answer."""
    entries = answer_entries(sent)
    if entries > limits.max_answer_entries:
        raise InvalidRequest(
            f"'logprobs' would make up to {entries} entries in the answer; at most "
            f"{limits.max_answer_entries} are made for one request. Ask for fewer tokens, "
            "choices, candidates or prompts.",
            param="logprobs",
        )


def _entries(request: EngineRequest) -> int:
    sampling = request.sampling
    if sampling.num_logprobs is None:
        return 0
    echoed = len(request.prompt) if sampling.prompt_logprobs else 0
    return (echoed + sampling.max_tokens) * request.num_choices * (sampling.num_logprobs + 1)


def _salt(tenant: str, salt: bytes) -> bytes:
    """Tenants never share blocks, whatever salts they send, nor does somebody without a tenant.

    A tenant's name has no NUL and is not empty, so the part before the first NUL tells whose.
    """
    return tenant.encode() + b"\0" + salt if tenant or b"\0" in salt else salt


def _is_scoring(request: ParsedRequest) -> bool:
    return isinstance(request, CompletionRequest) and request.is_scoring


def _prompt_name(request: ParsedRequest, index: int) -> str:
    if isinstance(request, CompletionRequest):
        return f"prompt[{index}]" if request.prompt_is_list else "prompt"
    return "messages"


def _id_out_of_range(name: str, token_id: int, top: int) -> InvalidRequest:
    shown = token_id if token_id < 10**20 else "a number of more than 20 digits"
    return InvalidRequest(
        f"'{name}' must be a token id of this model, 0 ... {top}, got {shown}.", param=name
    )


def _max_tokens(
    request: ChatRequest | CompletionRequest, name: str, num_prompt: int, context: int
) -> int:
    """Tokens to generate, at least 1 and inside the context."""
    left = context - num_prompt
    asked = request.sampling.max_tokens
    field = request.max_tokens_field
    if left < 1:
        raise _leaves_no_answer(name, num_prompt, context)
    if asked is not None and asked > left:
        raise PromptTooLong(
            f"This model's maximum context length is {context} tokens, but '{name}' has "
            f"{num_prompt} and {field} asks for {asked}: {num_prompt + asked} in all. "
            f"Shorten the prompt, or ask for at most {left}.",
            param=field,
        )
    granted = left if asked is None else max(asked, 1)  # scoring: one is made and dropped
    if request.sampling.min_tokens > granted:
        raise InvalidRequest(
            f"'min_tokens' ({request.sampling.min_tokens}) is over the {granted} tokens that "
            f"the answer can have beside a prompt of {num_prompt}.",
            param="min_tokens",
        )
    return granted


def _leaves_no_answer(name: str, num_prompt: int, context: int, more: str = "") -> PromptTooLong:
    return PromptTooLong(
        f"This model's maximum context length is {context} tokens, but '{name}' has {more}"
        f"{num_prompt}, which leaves none for the answer. Shorten it by at least "
        f"{num_prompt + 1 - context}.",
        param=name,
    )


def _sampling(
    request: ParsedRequest,
    max_tokens: int,
    seed: int,
    facts: ModelFacts,
    bad_words: tuple[tuple[int, ...], ...],
) -> Sampling:
    given: SamplingChoice = request.sampling
    asked, scored = given.num_logprobs, request.prompt_logprobs
    echo = isinstance(request, CompletionRequest) and request.echo and asked is not None
    said = {name: getattr(given, name) for name in SamplingChoice.__struct_fields__}
    # First what the request says, then what the model's makers do; then the API's own defaults.
    values = facts.sampling.given() | {k: v for k, v in said.items() if v is not None}
    values |= {
        "max_tokens": max_tokens,
        "seed": seed,
        "top_p": max(values.get("top_p", 1.0), SMALLEST_TOP_P),
        "top_k": values.get("top_k", 0) if values.get("top_k", 0) < facts.vocab_size else 0,
        "stop": () if _is_scoring(request) else given.stop,
        # One number for prompt and answer; what is too many of either is not shown.
        "num_logprobs": max((n for n in (asked, scored) if n is not None), default=None),
    }
    return Sampling(
        prompt_logprobs=echo or scored is not None,
        bad_words=bad_words,
        **values,
    )
