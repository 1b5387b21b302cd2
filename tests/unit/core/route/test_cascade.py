"""Whether a first answer is sure enough."""

import pytest

from headway.core.base.units import Seconds
from headway.core.messages.path import Finished, FinishReason, TokenLogprob, Tokens, Usage
from headway.core.route.cascade import CascadeSettings, Confidence

SETTINGS = CascadeSettings(first="small", then="large", min_mean_logprob=-0.5)


def test_an_answer_that_nobody_has_scored_is_doubted() -> None:
    seen = Confidence()
    seen.saw(
        Tokens(request_id="r", choice=0, token_ids=(1, 2), text="x", at=Seconds(0.0), logprobs=())
    )
    assert seen.doubt(SETTINGS) == "unscored"


def said(*logprobs: float, finish: FinishReason | None = None) -> Tokens:
    scored = tuple(TokenLogprob(token_id=1, logprob=each) for each in logprobs)
    return Tokens(
        request_id="r",
        choice=0,
        token_ids=(1,) * len(logprobs),
        text="x",
        at=Seconds(0.0),
        logprobs=scored,
        finish_reason=finish,
    )


@pytest.mark.spec("B7")
@pytest.mark.parametrize(
    ("logprobs", "doubt"), [((-0.1, -0.2), ""), ((-0.5,), ""), ((-0.1, -1.0), "logprob")]
)
def test_an_answer_is_doubted_below_the_mean_log_probability(
    logprobs: tuple[float, ...], doubt: str
) -> None:
    seen = Confidence()
    for each in logprobs:
        seen.saw(said(each))
    assert seen.doubt(SETTINGS) == doubt


def test_an_answer_that_was_cut_off_is_doubted_only_where_that_is_set() -> None:
    seen = Confidence()
    seen.saw(said(-0.1, finish=FinishReason.LENGTH))
    assert seen.doubt(SETTINGS) == ""
    strict = CascadeSettings(first="small", then="large", escalate_on_length=True)
    assert seen.doubt(strict) == "length"


def test_an_answer_without_tokens_is_doubted() -> None:
    seen = Confidence()
    usage = Usage(prompt_tokens=1, completion_tokens=0)
    seen.saw(Finished(request_id="r", reason=FinishReason.STOP, usage=usage))
    assert seen.doubt(SETTINGS) == "empty"
    assert seen.mean_logprob == 0.0
