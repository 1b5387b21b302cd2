"""A request that goes on where another replica lost it.

Its tokens are computed again like those of a preempted sequence. Its text is replayed: what the
text state holds back, half a character or the beginning of a stop string, follows from the tokens.
"""

from headway.core.base.errors import InvalidRequest
from headway.core.engine.stop import take_token
from headway.core.messages.path import Emitted, EngineRequest
from headway.core.text.streamer import TokenStreamer
from headway.core.text.tokenizer import Decodes


def streamers_of(
    request: EngineRequest, ends: tuple[int, ...], tokenizer: Decodes
) -> list[TokenStreamer]:
    """The text state of every choice, after what it has emitted.

    Raises InvalidRequest when a choice cannot have emitted that and go on.
    """
    emitted = request.emitted or (Emitted(),) * request.num_choices
    if len(emitted) != request.num_choices:
        raise InvalidRequest(
            f"{request.num_choices} choices go on, and {len(emitted)} are described"
        )
    streamers = []
    for choice, each in enumerate(emitted):
        streamer = TokenStreamer(tokenizer, request.sampling)
        if each.finish_reason is None:
            _replay(streamer, choice, each, request, ends)
        streamers.append(streamer)
    return streamers


def _replay(
    streamer: TokenStreamer,
    choice: int,
    emitted: Emitted,
    request: EngineRequest,
    ends: tuple[int, ...],
) -> None:
    for position, token_id in enumerate(emitted.token_ids):
        gain = take_token(token_id, position, request.sampling, ends, streamer)
        if gain.finish_reason is not None:
            raise InvalidRequest(
                f"choice {choice} cannot go on: it ended with its token {position + 1} of "
                f"{len(emitted.token_ids)} ({gain.finish_reason.value})"
            )
