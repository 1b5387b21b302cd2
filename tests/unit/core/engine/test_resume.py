"""A request that is lost after any of its tokens goes on elsewhere as if nothing had happened."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import InvalidRequest
from headway.core.engine.core import EngineCore
from headway.core.messages.path import (
    Emitted,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Sampling,
    Tokens,
)
from headway.core.messages.step import SamplingState
from tests.drive import Drive
from tests.fakes import (
    EOS,
    ByteTokenizer,
    NextToken,
    ScriptedExecutor,
    engine_settings,
    greedy,
    hashed_next,
    request,
)


def fresh(next_token: NextToken = hashed_next, depth: int = 0) -> Drive:
    core = EngineCore(engine_settings(max_model_len=256, num_blocks=256), ByteTokenizer())
    return Drive(core, ScriptedExecutor(core, next_token), depth)


def whole(asked: EngineRequest, next_token: NextToken = hashed_next) -> list[Event]:
    return fresh(next_token).run([asked])[asked.id].events


def emitted_by(asked: EngineRequest, events: Sequence[Event]) -> tuple[Emitted, ...]:
    """What a client has after these events."""
    tokens: list[list[int]] = [[] for _ in range(asked.num_choices)]
    reasons: list[FinishReason | None] = [None] * asked.num_choices
    for event in events:
        if isinstance(event, Tokens):
            tokens[event.choice] += event.token_ids
            reasons[event.choice] = event.finish_reason
    return tuple(
        Emitted(token_ids=tuple(ids), finish_reason=reason)
        for ids, reason in zip(tokens, reasons, strict=True)
    )


def said(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What a client sees of them, choice by choice."""
    seen: list[Any] = [
        (e.choice, e.token_ids, e.text, e.logprobs, e.finish_reason, e.stop_reason)
        for e in events
        if isinstance(e, Tokens)
    ]
    seen.sort(key=lambda each: each[0])
    return seen


def end_of(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def check_every_cut(
    asked: EngineRequest, next_token: NextToken = hashed_next, depth: int = 0
) -> int:
    """Cut between any two events; the number of cuts."""
    full = whole(asked, next_token)
    cuts = [at for at in range(1, len(full)) if isinstance(full[at - 1], Tokens)]
    for at in cuts:
        before = full[:at]
        rest = msgspec.structs.replace(asked, emitted=emitted_by(asked, before))
        run = fresh(next_token, depth)
        after = run.run([rest])[asked.id].events
        assert said([*before, *after]) == said(full), f"cut after event {at}"
        got, want = end_of(after), end_of(full)
        assert got.reason is want.reason
        assert got.usage.prompt_tokens == want.usage.prompt_tokens
        assert got.usage.completion_tokens == want.usage.completion_tokens
    return len(cuts)


SAMPLED = Sampling(
    max_tokens=40,
    seed=7,
    temperature=1.0,
    presence_penalty=0.5,
    repetition_penalty=1.2,
    num_logprobs=1,
    ignore_eos=True,
)


@pytest.mark.spec("M2")
@pytest.mark.parametrize("depth", [0, 1])
def test_it_goes_on_after_every_token_index(depth: int) -> None:
    assert check_every_cut(request("r", range(21), sampling=SAMPLED), depth=depth) == 40


@pytest.mark.spec("M2")
@pytest.mark.parametrize("depth", [0, 1])
def test_several_choices_go_on_each_from_where_it_was(depth: int) -> None:
    asked = request("r", range(13), n=3, sampling=msgspec.structs.replace(SAMPLED, max_tokens=9))
    assert check_every_cut(asked, depth=depth) > 20


def scripted(script: bytes) -> NextToken:
    tokens = [*script, EOS]

    def next_token(history: Sequence[int], state: SamplingState, position: int) -> int:
        return int(tokens[position + state.choice])

    return next_token


@pytest.mark.spec("M2")
def test_a_stop_string_is_found_across_the_cut_and_nothing_of_it_leaves() -> None:
    asked = request(sampling=greedy(60, stop=("STOP HERE", "STOPPED")))
    script = "héllo → 世界 STOP STOPHERE ST STOP HERE never".encode()
    check_every_cut(asked, scripted(script))
    text = "".join(e.text for e in whole(asked, scripted(script)) if isinstance(e, Tokens))
    assert text.startswith("héllo → 世界")


@pytest.mark.spec("M2")
def test_choices_that_have_ended_stay_as_they_are() -> None:
    asked = request(n=3, sampling=greedy(30))
    check_every_cut(asked, scripted(b"abcdefgh"))


@pytest.mark.spec("M2")
def test_half_a_character_and_least_tokens_go_on_across_the_cut() -> None:
    asked = request(sampling=greedy(30, stop=("b",), min_tokens=6))
    check_every_cut(asked, scripted("abé世😀abc".encode()))


@pytest.mark.spec("M2")
def test_prompt_scores_are_told_once() -> None:
    sampling = Sampling(
        max_tokens=4, seed=0, temperature=0.0, num_logprobs=0, prompt_logprobs=True, ignore_eos=True
    )
    asked = request("r", range(9), sampling=sampling)
    full = whole(asked)
    first = next(at for at, event in enumerate(full) if isinstance(event, Tokens))
    rest = msgspec.structs.replace(asked, emitted=emitted_by(asked, full[: first + 1]))
    again = fresh().run([rest])["r"].events
    assert [len(e.prompt_logprobs) for e in full if isinstance(e, Tokens)] == [9, 0, 0, 0]
    assert [len(e.prompt_logprobs) for e in again if isinstance(e, Tokens)] == [0, 0, 0]


def test_what_is_computed_again_is_told() -> None:
    asked = request("r", range(20), sampling=SAMPLED)
    full = whole(asked)
    assert end_of(full).usage.recomputed_tokens == 0
    rest = msgspec.structs.replace(asked, emitted=emitted_by(asked, full[:11]))
    again = fresh().run([rest])["r"].events
    # Its tenth token was never computed: it was to be the next step's input.
    assert end_of(again).usage.recomputed_tokens == 20 + 9


def test_a_preempted_sequence_tells_what_it_computed_again() -> None:
    core = EngineCore(
        engine_settings(num_blocks=8, max_num_seqs=2, enable_prefix_caching=False), ByteTokenizer()
    )
    run = Drive(core, ScriptedExecutor(core))
    sampling = msgspec.structs.replace(SAMPLED, max_tokens=12)
    answers = run.run([request("a", range(8), sampling=sampling), request("b", range(8, 16))])
    answers = run.run([request(each, range(8), sampling=sampling) for each in ("c", "d")])
    assert core.status().preemptions > 0
    again = [answers[each].finished for each in ("a", "b", "c", "d")]
    assert sum(each.usage.recomputed_tokens for each in again if each is not None) > 0


def test_what_goes_on_is_not_refused_for_a_full_queue_or_a_promise() -> None:
    core = EngineCore(engine_settings(max_waiting_requests=1, max_num_seqs=1), ByteTokenizer())
    run = Drive(core, ScriptedExecutor(core))
    run.add(request("a"), request("b"))
    rest = msgspec.structs.replace(
        request("c"), emitted=(Emitted(token_ids=(1,)),), first_token_budget_s=0.001
    )
    run.add(rest)
    assert run.run()["c"].finished is not None


def test_a_request_of_which_only_the_end_was_lost_ends_at_once() -> None:
    run = fresh()
    gone = Emitted(token_ids=(1, 2), finish_reason=FinishReason.LENGTH)
    run.add(msgspec.structs.replace(request("r", n=2), emitted=(gone, gone)))
    [end] = run.core.take_events()
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, 4)
    assert not run.core.has_work()


@pytest.mark.parametrize(
    "emitted",
    [
        (Emitted(), Emitted()),
        (Emitted(token_ids=(1,) * 8),),
        (Emitted(token_ids=(1, EOS, 1)),),
    ],
)
def test_what_no_choice_can_have_emitted_is_refused(emitted: tuple[Emitted, ...]) -> None:
    run = fresh()
    with pytest.raises(InvalidRequest):
        run.add(msgspec.structs.replace(request("r", sampling=greedy(8)), emitted=emitted))
    assert not run.core.has_work()
