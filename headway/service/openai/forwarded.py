"""A request for a model behind another server: that one checks it, we check what we use of it.

Fields that we do not know go on as they came, so that a server's own (tools, structured output,
reasoning) can be used through the gateway. Fields that would tell the server where to send, who
asks or whom to prefer never do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headway.core.base.errors import InvalidRequest, Unsupported, UnsupportedModality
from headway.core.tenancy.tenant import SloClass
from headway.service.openai.decode import decode_object, describe
from headway.service.openai.limits import ApiLimits
from headway.service.openai.refused import INTERNAL
from headway.service.openai.schema import Asker
from headway.service.openai.smuggled import (
    check_lengths,
    check_template_arguments,
    in_disguise,
)

# What proxies behind us would route by, or take for somebody's identity. Dropped, and counted.
ROUTING = frozenset(
    {
        *("api_base", "base_url", "api_key", "api_version", "organization", "model_list"),
        *("extra_headers", "extra_body", "extra_query", "headers", "custom_llm_provider"),
        *("deployment_id", "fallbacks", "mock_response", "num_retries", "timeout", "proxy"),
        *("litellm_params", "litellm_metadata", "priority", "request_id", "rid", "service_tier"),
        *("lora_path", "lora_request", "session_params", "id_slot"),
    }
)
MODALITIES: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "file_url": "file",
}
TEXT_PARTS = frozenset({"text", "input_text", "refusal", "thinking"})
# Each bounds what an answer may look like, at one server or another.
FORMS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("json_schema", "grammar", "regex", "ebnf", "structural_tag"),
)
EMBEDS = ("prompt_embeds", "image_embeds", "input_embeds", "inputs_embeds", "multi_modal_data")
# In this order, without doubles.
REFUSED = dict.fromkeys(
    each for each in (*INTERNAL, *EMBEDS, "chat_template") if each not in ROUTING
)
MAX_MEDIA_BYTES = 64  # of a URL's beginning that is looked at


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway uses of such a request, and all of it as it came."""

    fields: dict[str, Any]  # without ROUTING
    body: bytes = b""  # all of it as it came, for an engine of ours to check after all
    model: str | None = None
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    num_prompts: int = 1
    max_tokens: int | None = None  # of one choice
    max_tokens_field: str = "max_tokens"
    user: str | None = None
    asked_class: SloClass | None = None
    asker: Asker = Asker()  # stamped on by the gateway
    modalities: frozenset[str] = frozenset()  # beside text, in its messages or asked of the answer
    names_urls: bool = False  # a part names a URL that somebody would have to fetch
    unknown_fields: tuple[str, ...] = ()  # that were dropped; for counting
    is_watched: bool = False  # it matters when its first token comes, also where it is not streamed

    def texts(self) -> list[bytes]:
        """Its prompt in pieces, roles included; what differs in them differs for the model."""
        messages, found = self.fields.get("messages"), list[bytes]()
        if not isinstance(messages, list):
            return [*_texts(self.fields.get("prompt"))]
        for message in messages:
            found.append(f"\n{message.get('role')}\n".encode("utf-8", "replace"))
            content = message.get("content")
            if isinstance(content, str):
                found.append(content.encode("utf-8", "replace"))
            else:
                found += _texts(content)
            if message.get("tool_calls"):
                found.append(msgspec.json.encode(message["tool_calls"]))
        if self.fields.get("tools"):
            found.append(msgspec.json.encode(self.fields["tools"]))
        return found

    def prompt_bytes(self) -> int:
        """Size of its texts; ids count as 4 bytes each."""
        return sum(map(len, self.texts()))


def parse_forwarded_chat(body: bytes, limits: ApiLimits) -> ForwardedRequest:
    """The request of `/v1/chat/completions`; raises a ClientError."""
    return _chat(decode_object(body), limits)


def parse_forwarded_native(
    body: bytes, query: Mapping[str, str], limits: ApiLimits
) -> ForwardedRequest:
    """The request of `/v1/chat`, which always streams one choice of text."""
    fields = decode_object(body)
    if query.get("model") is not None:
        if fields.get("model") not in (None, query["model"]):
            raise InvalidRequest(
                "'model' differs between the query and the body; send one.", param="model"
            )
        fields["model"] = query["model"]
    if fields.get("stream") is False:
        raise Unsupported("'stream' cannot be false here: /v1/chat always streams.", param="stream")
    fields["stream"] = True
    for name in ("stream_options", "logprobs", "tools"):
        if fields.get(name):
            raise Unsupported(
                f"'{name}' cannot be used on /v1/chat; use /v1/chat/completions.", param=name
            )
    request = _chat(fields, limits)
    if request.n > 1:
        raise Unsupported("'n' cannot be above 1 on /v1/chat.", param="n")
    return request


def parse_forwarded_completion(body: bytes, limits: ApiLimits) -> ForwardedRequest:
    """The request of `/v1/completions`; raises a ClientError."""
    fields = decode_object(body)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str | list) or not prompt:
        raise InvalidRequest("'prompt' must be a text or a list, and not empty.", param="prompt")
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    num_prompts = len(prompt) if many else 1
    if num_prompts > limits.max_prompts:
        raise InvalidRequest(
            f"'prompt' has {num_prompts} prompts; at most {limits.max_prompts} are accepted.",
            param="prompt",
        )
    request = _shared(fields, limits)
    return msgspec.structs.replace(request, num_prompts=num_prompts)


def parse_forwarded_tokenize(body: bytes, limits: ApiLimits) -> ForwardedRequest:
    """The request of `/tokenize`: a text, or the messages of a chat; raises a ClientError."""
    fields = decode_object(body)
    has_prompt, has_messages = (fields.get(name) is not None for name in ("prompt", "messages"))
    if has_prompt == has_messages:
        raise InvalidRequest("Send either 'prompt' or 'messages'.", param="prompt")
    if has_messages:
        return _chat({key: value for key, value in fields.items() if key != "prompt"}, limits)
    if not isinstance(fields["prompt"], str):
        raise InvalidRequest("'prompt' must be a text.", param="prompt")
    return _shared({key: value for key, value in fields.items() if key != "messages"}, limits)


def model_of(body: bytes, query: Mapping[str, str]) -> str | None:
    """The model that a body names, or None; raises InvalidRequest where it is no JSON object."""
    if query.get("model") is not None:
        return query["model"]
    try:
        name = msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        name = decode_object(body).get("model")
    return name if isinstance(name, str) else None


def plain(request: ForwardedRequest) -> ForwardedRequest | None:
    """One that any engine could take, answered in the same form; None where a text is no answer.

    For a text of the operator's own: whoever asked for JSON, or for a call of a tool, could make
    nothing of it.
    """
    fields = request.fields
    shape = fields.get("response_format")
    is_text = not isinstance(shape, dict) or shape.get("type", "text") == "text"
    if not is_text or any(fields.get(name) for name in FORMS) or _must_call(fields):
        return None
    kept: dict[str, Any] = {"stream": request.stream, "n": request.n}
    if request.include_usage:
        kept["stream_options"] = {"include_usage": True}
    if "messages" in fields:
        kept["messages"] = [{"role": "user", "content": "-"}]
    else:
        kept["prompt"] = ["-"] * request.num_prompts
    return msgspec.structs.replace(request, fields=kept, body=msgspec.json.encode(kept))


def _must_call(fields: Mapping[str, Any]) -> bool:
    choice = fields.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


class _Named(msgspec.Struct):
    model: str | None = None


def _chat(fields: dict[str, Any], limits: ApiLimits) -> ForwardedRequest:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("'messages' must be a list, and not empty.", param="messages")
    if len(messages) > limits.max_messages:
        raise InvalidRequest(
            f"'messages' has {len(messages)} entries; at most {limits.max_messages} are accepted.",
            param="messages",
        )
    kinds: set[str] = set()
    names_urls = False
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"'messages[{i}]' must be an object with a 'role'.", param=f"messages[{i}]"
            )
        found, has_url = _modalities(message.get("content"), f"messages[{i}].content")
        kinds |= found
        names_urls = names_urls or has_url
    asked = fields.get("modalities")
    if isinstance(asked, list):
        kinds |= {each for each in asked if isinstance(each, str) and each != "text"}
    request = _shared(fields, limits)
    return msgspec.structs.replace(request, modalities=frozenset(kinds), names_urls=names_urls)


def _shared(raw: dict[str, Any], limits: ApiLimits) -> ForwardedRequest:
    _refuse(raw)
    check_lengths(raw)
    check_template_arguments(raw)
    dropped = [name for name in raw if name in ROUTING or in_disguise(name, ROUTING)]
    fields = {name: value for name, value in raw.items() if name not in dropped} if dropped else raw
    options = _typed(fields, "stream_options", dict)
    stream = bool(_typed(fields, "stream", bool))
    if options is not None and not stream:
        raise InvalidRequest(
            "'stream_options' is only allowed together with 'stream': true.", param="stream_options"
        )
    n = _count(fields, "n", limits.max_choices) or 1
    new, old = _count(fields, "max_completion_tokens"), _count(fields, "max_tokens")
    return ForwardedRequest(
        fields=fields,
        model=_name(fields, "model", limits),
        stream=stream,
        include_usage=bool((options or {}).get("include_usage")),
        n=n,
        max_tokens=old if new is None else new,
        max_tokens_field="max_tokens" if new is None else "max_completion_tokens",
        user=_name(fields, "user", limits),
        asked_class=SloClass.INTERNAL if raw.get("service_tier") == "flex" else None,
        unknown_fields=tuple(dropped),
    )


def _refuse(fields: Mapping[str, Any]) -> None:
    """Fields that are one server's talk with another, or tensors."""
    if REFUSED.keys().isdisjoint(fields):
        return
    for name in REFUSED:
        if fields.get(name) is not None:
            raise Unsupported(f"'{name}' is not accepted from clients.", param=name)


def _modalities(content: object, name: str) -> tuple[set[str], bool]:
    """What beside text a content holds, and whether it names a URL to be fetched."""
    kinds: set[str] = set()
    has_url = False
    if isinstance(content, dict):
        raise InvalidRequest(f"'{name}' must be a text or a list of parts.", param=name)
    if not isinstance(content, list):
        return kinds, has_url
    for i, part in enumerate(content):
        where = f"{name}[{i}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest(f"'{where}' must be an object with a 'type'.", param=where)
        kind = part["type"]
        beside = [each for each in part if each in MODALITIES]  # a server may go by these instead
        if kind in TEXT_PARTS and not beside:
            continue
        if kind not in MODALITIES and kind not in TEXT_PARTS:
            raise UnsupportedModality(
                f"'{where}.type' is no kind of content that is known here.", param=f"{where}.type"
            )
        kinds |= {MODALITIES[each] for each in (kind, *beside) if each in MODALITIES}
        media = {key: value for key, value in part.items() if key != "text"}
        has_url = has_url or any(_is_remote(key, value) for key, value in _strings(media))
    return kinds, has_url


def _strings(part: object, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """All texts of a part, with the key that each stands under."""
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, dict) and depth < 8:
        for name, value in part.items():
            yield from _strings(value, name, depth + 1)
    elif isinstance(part, list) and depth < 8:
        for value in part:
            yield from _strings(value, key, depth + 1)


def _is_remote(key: str, value: str) -> bool:
    """Whether a server may take this text for an address and fetch it."""
    begin = value[:MAX_MEDIA_BYTES].lstrip().lower()
    if key in {"type", "detail", "format", "id", "uuid", "filename", "name"}:
        return "://" in begin
    if key == "data":  # base64 by itself, as in input_audio
        return ":" in begin
    return not begin.startswith("data:")


def _texts(content: object) -> Iterator[bytes]:
    if isinstance(content, str):
        yield content.encode("utf-8", "replace")
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, int):
                yield part.to_bytes(8, "little", signed=True)[:4] if abs(part) < 2**62 else b"????"
            elif isinstance(part, dict):
                yield from _texts(part.get("text") or "")
            else:
                yield from _texts(part)


def _name(fields: Mapping[str, Any], name: str, limits: ApiLimits) -> str | None:
    text: str | None = _typed(fields, name, str)
    if text is not None and len(text) > limits.max_name_chars:
        raise InvalidRequest(
            f"'{name}' has {len(text)} characters; at most {limits.max_name_chars} are accepted.",
            param=name,
        )
    return text


def _count(fields: Mapping[str, Any], name: str, most: int = 2**31 - 1) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidRequest(
            f"'{name}' must be an integer of 0 ... {most}, got {describe(value)}.", param=name
        )
    return value


def _typed(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        words = {str: "a string", bool: "true or false", dict: "an object"}
        raise InvalidRequest(f"'{name}' must be {words[kind]}, got {describe(value)}.", param=name)
    return value
