"""Log-probabilities for clients: always finite."""

from collections.abc import Iterable

from headway.core.messages.path import LOGPROB_FLOOR, TokenLogprob


def token_logprob(
    token_id: int, logit: float, best: Iterable[tuple[int, float]], total: float
) -> TokenLogprob:
    """What a client is told of one token; all logits are relative to the row's largest.

    best   (id, logit) of the candidates to list, in any order; equal ones are listed by id,
           as the greedy choice breaks ties
    total  log of the sum of the exponentials of the whole row
    """
    ordered = sorted(best, key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(
        token_id=token_id,
        logprob=max(logit - total, LOGPROB_FLOOR),
        top=tuple((each, max(value - total, LOGPROB_FLOOR)) for each, value in ordered),
    )
