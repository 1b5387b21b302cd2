"""Token ids of texts and back, by the calls that servers have of their own for it."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from headway.core.base.errors import (
    HeadwayError,
    ReplicaNotReady,
    Unsupported,
    UpstreamBroken,
    UpstreamTimeout,
)
from headway.core.base.units import Seconds
from headway.service.openai.answer_schema import Detokenized, Tokenized
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.upstream.failures import refusal_of
from headway.service.upstream.outgoing import check_modalities
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.replica import UpstreamReplica
from headway.service.upstream.settings import Kind

T = TypeVar("T")
RETRY_AFTER = Seconds(1.0)
PATIENCE_S = 30.0  # a long text takes a second or two
OK = 200
# Of a request: what such a call may be given. Nothing that has a server fetch something.
KNOWN = (
    *("prompt", "messages", "tools", "add_special_tokens", "add_generation_prompt"),
    *("continue_final_message", "chat_template_kwargs", "return_token_strs"),
)
OF_TEMPLATE = ("messages", "tools", "add_generation_prompt", "chat_template_kwargs")


class Call(NamedTuple):
    """How a kind of server is asked."""

    has_messages: bool  # takes a chat, and not only a text
    text: str  # of a detokenized answer: where the text stands


CALLS: Mapping[Kind, Call] = {
    Kind.VLLM: Call(has_messages=True, text="prompt"),
    Kind.HEADWAY: Call(has_messages=True, text="prompt"),
    Kind.SGLANG: Call(has_messages=False, text="text"),
    Kind.LLAMACPP: Call(has_messages=True, text="content"),  # by /apply-template before it
}


class TokenCalls:
    """Asks the servers of one pool; nothing of it is part of their queue here."""

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self._settings = pool.settings
        self._kind = pool.settings.kind

    async def tokenize(self, request: ForwardedRequest) -> Tokenized:
        """Of a text (`prompt`), or of a chat's `messages`; raises Unsupported and what it says.

        request  parsed as a completion or a chat is
        """
        check_modalities(request, self._settings)
        self._check("tokenize", is_chat="messages" in request.fields)
        return await self._within(self._tokenize(request.fields), PATIENCE_S)

    async def detokenize(self, ids: Sequence[int]) -> Detokenized:
        """The text of these; raises the same."""
        self._check("detokenize", is_chat=False)
        body = {"model": self._settings.upstream_model, "tokens": list(ids)}
        answer = await self._within(self._post("/detokenize", body), PATIENCE_S)
        return Detokenized(prompt=_text(answer, CALLS[self._kind].text))

    async def count(self, request: ForwardedRequest) -> int | None:
        """Tokens of a request's one prompt; None where they cannot be told soon."""
        fields, call = request.fields, CALLS.get(self._kind)
        is_one = request.num_prompts == 1 and not isinstance(fields.get("prompt"), list)
        if call is None or not is_one or ("messages" in fields and not call.has_messages):
            return None
        try:
            work = self._tokenize(fields)
            return (await self._within(work, self._settings.timeouts.probe)).count
        except HeadwayError:
            return None

    def _check(self, name: str, *, is_chat: bool) -> None:
        call = CALLS.get(self._kind)
        if call is None:
            raise Unsupported(
                f"{self._settings.names[0]} is answered by another server, which has no {name}.",
                param="model",
            )
        if is_chat and not call.has_messages:
            raise Unsupported(
                f"The server behind {self._settings.names[0]} encodes texts only; send 'prompt'.",
                param="messages",
            )

    async def _tokenize(self, fields: Mapping[str, Any]) -> Tokenized:
        if self._kind is Kind.LLAMACPP:
            return await self._llamacpp(fields)
        body = {name: fields[name] for name in KNOWN if name in fields}
        body["model"] = self._settings.upstream_model
        answer = await self._post("/tokenize", body)
        texts, count, ids = answer.get("token_strs"), answer.get("count"), answer.get("tokens")
        return Tokenized(
            tokens=_ids(ids),
            count=count if isinstance(count, int) else len(_ids(ids)),
            max_model_len=self._most(answer.get("max_model_len")),
            token_strs=texts if isinstance(texts, list) else None,
        )

    async def _llamacpp(self, fields: Mapping[str, Any]) -> Tokenized:
        text, add_special = fields.get("prompt"), fields.get("add_special_tokens") is not False
        if "messages" in fields:
            asked = {name: fields[name] for name in OF_TEMPLATE if name in fields}
            text, add_special = _text(await self._post("/apply-template", asked), "prompt"), True
        with_texts = bool(fields.get("return_token_strs"))
        body = {"content": text, "add_special": add_special, "parse_special": True}
        answer = await self._post("/tokenize", {**body, "with_pieces": with_texts})
        found, texts = answer.get("tokens"), None
        if with_texts and isinstance(found, list):
            texts = [_piece(each) for each in found]
            found = [each.get("id") for each in found if isinstance(each, dict)]
        ids = _ids(found)
        return Tokenized(
            tokens=ids, count=len(ids), max_model_len=self._most(None), token_strs=texts
        )

    def _most(self, told: object) -> int:
        """Tokens of prompt and answer; 0 where nobody says."""
        return told if isinstance(told, int) else self._pool.context_length() or 0

    async def _within(self, work: Awaitable[T], limit: float) -> T:
        try:
            async with asyncio.timeout(limit):
                return await work
        except TimeoutError:
            problem = f"the server behind this model did not encode it within {limit:g} s"
            raise UpstreamTimeout(problem, RETRY_AFTER) from None

    async def _post(self, path: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        replica = self._replica()
        data = msgspec.json.encode(body)
        status, page = await self._pool.prober.post(replica, path, data, 2 * PATIENCE_S)
        if status != OK:
            shown, own = self._settings.names[0], self._settings.upstream_model
            raise refusal_of(status, {}, page, () if own == shown else ((own, shown),)).error
        try:
            answer = msgspec.json.decode(page)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise _no_answer()
        return answer

    def _replica(self) -> UpstreamReplica:
        replica = self._pool.any_replica()
        if replica is None:
            raise ReplicaNotReady("the servers behind this model do not answer", RETRY_AFTER)
        return replica


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise _no_answer()
    return value


def _text(answer: Mapping[str, Any], name: str) -> str:
    text = answer.get(name)
    if not isinstance(text, str):
        raise _no_answer()
    return text


def _piece(told: object) -> str:
    """A token's text; bytes that are no whole characters as llama.cpp lists them."""
    piece = told.get("piece") if isinstance(told, dict) else None
    if isinstance(piece, list):
        return "bytes:" + "".join(f"\\x{each:02x}" for each in piece if isinstance(each, int))
    return piece if isinstance(piece, str) else ""


def _no_answer() -> UpstreamBroken:
    return UpstreamBroken("the server behind this model sent no tokens or text", RETRY_AFTER)
