"""Events as the engine would send them for a given list of ids, and readers of answers."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.core.base.units import Seconds
from headway.core.engine.stop import end_ids, take_token
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    TokenLogprob,
    Tokens,
    Usage,
)
from headway.core.text.streamer import TokenStreamer
from headway.service.openai.resolve import ModelFacts
from headway.service.openai.responses import AnswerHead
from tests.fakes import EOS, VOCABULARY, ByteTokenizer

TOKENIZER = ByteTokenizer()
FACTS = ModelFacts(names=("tiny", "tiny-too"), max_model_len=512, vocab_size=VOCABULARY)
HEAD = AnswerHead(id="chatcmpl-1", created=1_700_000_000, model="tiny", system_fingerprint="fp")


def body(**fields: object) -> bytes:
    """A request body."""
    return json.dumps(fields).encode()


def chat_body(**fields: object) -> bytes:
    """A chat body with one message, unless another is given."""
    return body(**{"messages": [{"role": "user", "content": "Hi"}], **fields})


def events_of(request: EngineRequest, outputs: Sequence[Sequence[int]]) -> list[Event]:
    """What an engine that draws these ids, one list a choice, sends; choices take turns.

    A list that ends before its limit is followed by an end of sequence.
    """
    choices = [_choice_events(request, choice, ids) for choice, ids in enumerate(outputs)]
    events: list[Event] = []
    for step in range(max(map(len, choices))):
        events += [choice[step] for choice in choices if step < len(choice)]
    made = sum(len(event.token_ids) for choice in choices for event in choice)
    usage = Usage(prompt_tokens=len(request.prompt), completion_tokens=made, cached_tokens=1)
    return [*events, Finished(request_id=request.id, reason=FinishReason.STOP, usage=usage)]


def _choice_events(request: EngineRequest, choice: int, ids: Sequence[int]) -> list[Tokens]:
    sampling = request.sampling
    streamer = TokenStreamer(TOKENIZER, sampling)
    events: list[Tokens] = []
    for position, token_id in enumerate([*ids, EOS]):
        gain = take_token(
            token_id, position, sampling, end_ids(sampling, TOKENIZER.eos_ids), streamer
        )
        has_scores = sampling.prompt_logprobs and choice == 0 and position == 0
        events.append(
            Tokens(
                request_id=request.id,
                choice=choice,
                token_ids=(token_id,),
                text=gain.text,
                at=Seconds(0.0),
                logprobs=()
                if sampling.num_logprobs is None
                else (scored(token_id, sampling.num_logprobs),),
                prompt_logprobs=prompt_scores(request) if has_scores else (),
                finish_reason=gain.finish_reason,
                stop_reason=gain.stop_reason,
            )
        )
        if gain.finish_reason is not None:
            break
    return events


def scored(token_id: int, num_top: int) -> TokenLogprob:
    """A log-probability that tells which token it belongs to, and neighbours as candidates."""
    top = tuple(((token_id + k) % VOCABULARY, -token_id / 100 - k) for k in range(num_top))
    return TokenLogprob(token_id, -token_id / 100, top)


def prompt_scores(request: EngineRequest) -> tuple[TokenLogprob | None, ...]:
    """None for the first token, then one score a token."""
    num_top = request.sampling.num_logprobs or 0
    return (None, *(scored(token_id, num_top) for token_id in request.prompt[1:]))


def merge(events: Sequence[Event], cuts: Sequence[bool]) -> list[Event]:
    """Join neighbouring `Tokens` of a choice where `cuts` says False, as a mailbox does."""
    out: list[Event] = []
    for i, event in enumerate(events):
        last = out[-1] if out else None
        is_joined = i < len(cuts) and not cuts[i]
        if (
            is_joined
            and isinstance(event, Tokens)
            and isinstance(last, Tokens)
            and last.choice == event.choice
        ):
            out[-1] = msgspec.structs.replace(
                event,
                token_ids=last.token_ids + event.token_ids,
                text=last.text + event.text,
                logprobs=last.logprobs + event.logprobs,
                prompt_logprobs=last.prompt_logprobs,
            )
        else:
            out.append(event)
    return out


def strict(data: bytes) -> Any:
    """JSON by a reader that takes neither NaN nor Infinity nor wrong UTF-8."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {data!r}")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def chunks_of(stream: bytes) -> list[Any]:
    """The events of a stream that ended well, without [DONE]."""
    assert stream.endswith(b"data: [DONE]\n\n")
    parts = stream.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [strict(part.removeprefix(b"data: ")) for part in parts]
