"""What of a request decides where it goes: its name, its prompt, whose it is, what it needs."""

from collections.abc import Mapping

from headway.core.route.choose import Ask
from headway.core.route.features import Prompt
from headway.service.gateway.generate import AnyRequest, Request
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.openai.schema import ChatRequest, CompletionRequest

MODALITY_OF: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
CHARS_PER_ID = 4  # of a prompt that came as token ids: about as long as English text
# Fields that name ids of one model's vocabulary, or ask for them.
OF_TOKENS = (
    *("logit_bias", "stop_token_ids", "allowed_token_ids", "return_token_ids"),
    *("prompt_logprobs",),
)


def ask_of(request: AnyRequest, request_id: str) -> Ask:
    """What of a request decides where it goes."""
    if isinstance(request, ForwardedRequest):
        return _forwarded(request, request_id)
    asker, sampling = request.asker, request.sampling
    prompt, has_ids = (
        (_chat_prompt(request), False)
        if isinstance(request, ChatRequest)
        else _completion_prompt(request)
    )
    is_scoring = isinstance(request, CompletionRequest) and request.is_scoring
    is_bound = (
        has_ids
        or is_scoring
        or request.prompt_logprobs is not None
        or bool(sampling.logit_bias or sampling.stop_token_ids or sampling.allowed_token_ids)
    )
    return Ask(
        request_id=request_id,
        model=request.model,
        tenant=asker.tenant,
        slo_class=asker.slo_class,
        prompt=prompt,
        user=request.user,
        modalities=modalities_of(request),
        is_bound=is_bound or request.return_token_ids,
        min_tokens=sampling.min_tokens,
    )


def _forwarded(request: ForwardedRequest, request_id: str) -> Ask:
    texts = [text.decode("utf-8", "replace") for text in request.texts()]
    prompt, fields = request.fields.get("prompt"), request.fields
    has_ids = isinstance(prompt, list) and not all(isinstance(each, str) for each in prompt)
    return Ask(
        request_id=request_id,
        model=request.model,
        tenant=request.asker.tenant,
        slo_class=request.asker.slo_class,
        prompt=Prompt(
            text=max(texts[-3:], key=len, default=""),
            num_chars=sum(map(len, texts)),
            max_tokens=request.max_tokens,
        ),
        user=request.user,
        modalities=request.modalities,
        is_bound=has_ids or any(fields.get(name) for name in OF_TOKENS),
    )


def modalities_of(request: Request) -> frozenset[str]:
    """What the messages hold beside text."""
    if not isinstance(request, ChatRequest):
        return frozenset()
    kinds = {
        str(part.get("type"))
        for message in request.messages
        if isinstance(parts := message.get("content"), list)
        for part in parts
    }
    return frozenset(MODALITY_OF[kind] for kind in kinds if kind in MODALITY_OF)


def _chat_prompt(request: ChatRequest) -> Prompt:
    texts = [_text_of(message.get("content")) for message in request.messages]
    asked = [
        text
        for message, text in zip(request.messages, texts, strict=True)
        if message["role"] == "user"
    ]
    return Prompt(
        text=asked[-1] if asked else texts[-1],
        num_chars=sum(map(len, texts)),
        num_turns=len(asked),
        max_tokens=request.sampling.max_tokens,
    )


def _completion_prompt(request: CompletionRequest) -> tuple[Prompt, bool]:
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    ids = [prompt for prompt in request.prompts if not isinstance(prompt, str)]
    num_chars = sum(map(len, texts)) + CHARS_PER_ID * sum(map(len, ids))
    longest = max(texts, key=len, default="")
    made = Prompt(text=longest, num_chars=num_chars, max_tokens=request.sampling.max_tokens)
    return made, bool(ids)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
