"""What of a request matters for its answer."""

from collections.abc import Sequence

from headway.core.messages.path import EngineRequest
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai.accumulate import AnswerPlan, Echo
from headway.service.openai.logprobs import prompt_text
from headway.service.openai.schema import ChatRequest, CompletionRequest


def chat_plan(request: ChatRequest, made: Sequence[EngineRequest]) -> AnswerPlan:
    """The plan of a chat; `made` is its engine request."""
    # Its tokens are scored with the prompt's, not with the answer's: the echo is text only.
    echoes = (Echo(text=request.echoed, prompt=()),) if request.echoed else ()
    return _plan(request, made, echoes, is_scoring=False)


def completion_plan(
    request: CompletionRequest, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> AnswerPlan:
    """The plan of a completion; `made` are its engine requests, one a prompt."""
    echoes = tuple(
        Echo(text=_echoed(request, index, each, tokenizer), prompt=each.prompt)
        for index, each in enumerate(made)
        if request.echo
    )
    return _plan(request, made, echoes, is_scoring=request.is_scoring)


def _plan(
    request: ChatRequest | CompletionRequest,
    made: Sequence[EngineRequest],
    echoes: tuple[Echo, ...],
    *,
    is_scoring: bool,
) -> AnswerPlan:
    return AnswerPlan(
        n=request.n,
        num_prompts=len(made),
        num_prompt_tokens=sum(len(each.prompt) for each in made),
        num_logprobs=request.sampling.num_logprobs,
        num_prompt_logprobs=request.prompt_logprobs,
        skip_special=request.sampling.skip_special_tokens,
        include_stop=request.sampling.include_stop,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
        prompts=tuple(each.prompt for each in made) if request.return_token_ids else (),
        echoes=echoes,
        is_scoring=is_scoring,
    )


def _echoed(request: CompletionRequest, index: int, made: EngineRequest, of: Tokenizer) -> str:
    """The text as it was sent, or that of the ids which truncation left of it."""
    if request.truncate_to is None:
        return prompt_text(request.prompts[index], of)
    return prompt_text(made.prompt, of)
