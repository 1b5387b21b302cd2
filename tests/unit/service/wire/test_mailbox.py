import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headway.core.base.errors import ReplicaLost
from headway.core.base.units import Seconds
from headway.core.messages.path import (
    Event,
    Finished,
    FinishReason,
    Started,
    TokenLogprob,
    Tokens,
    Usage,
)
from headway.service.wire.mailbox import Mailboxes, RequestMailbox

STARTED = Started(request_id="r1", at=Seconds(0.0), cached_tokens=0)
FINISHED = Finished(
    request_id="r1",
    reason=FinishReason.LENGTH,
    usage=Usage(prompt_tokens=1, completion_tokens=3),
)


def token(
    number: int,
    *,
    choice: int = 0,
    request_id: str = "r1",
    finish: FinishReason | None = None,
    stop: str | None = None,
) -> Tokens:
    return Tokens(
        request_id=request_id,
        choice=choice,
        token_ids=(number,),
        text=str(number),
        at=Seconds(float(number)),
        logprobs=(TokenLogprob(token_id=number, logprob=-1.0),),
        prompt_logprobs=(None,) if number == 1 else (),
        finish_reason=finish,
        stop_reason=stop,
    )


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


async def drain(mailbox: RequestMailbox) -> list[Event]:
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        events.append(await mailbox.get())
    return events


def test_a_reader_that_keeps_up_gets_every_event_as_it_was_put() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        for event in (STARTED, token(1), token(2), FINISHED):
            mailbox.put(event)
            assert await mailbox.get() is event

    run(test())


def test_a_reader_that_waits_is_woken() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        reader = asyncio.ensure_future(mailbox.get())
        await asyncio.sleep(0)  # the reader runs up to its wait
        assert not reader.done()
        mailbox.put(token(1))
        assert await reader == token(1)

    run(test())


def test_unread_tokens_of_a_choice_become_one_event_with_everything_in_order() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        last = token(3, finish=FinishReason.STOP, stop="END")
        for event in (STARTED, token(1), token(2), last, FINISHED):
            mailbox.put(event)
        merged = Tokens(
            request_id="r1",
            choice=0,
            token_ids=(1, 2, 3),
            text="123",
            at=Seconds(3.0),
            logprobs=tuple(TokenLogprob(token_id=n, logprob=-1.0) for n in (1, 2, 3)),
            prompt_logprobs=(None,),
            finish_reason=FinishReason.STOP,
            stop_reason="END",
        )
        assert await drain(mailbox) == [STARTED, merged, FINISHED]

    run(test())


def test_choices_are_merged_apart_and_read_in_the_order_they_waited() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        for number in range(4):
            mailbox.put(token(number, choice=1 - number % 2))
        mailbox.put(FINISHED)
        first, second, _ = await drain(mailbox)
        assert isinstance(first, Tokens)
        assert isinstance(second, Tokens)
        assert (first.choice, first.token_ids) == (1, (0, 2))
        assert (second.choice, second.token_ids) == (0, (1, 3))

    run(test())


def test_after_a_merged_event_the_next_is_single_again() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        mailbox.put(token(1))
        mailbox.put(token(2))
        await mailbox.get()
        mailbox.put(token(3))
        assert await mailbox.get() == token(3)

    run(test())


def test_a_failure_comes_after_what_had_arrived_and_then_every_time() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        mailbox.put(token(1))
        mailbox.fail(ReplicaLost("killed", Seconds(2.0)))
        assert await mailbox.get() == token(1)
        for _ in range(2):
            with pytest.raises(ReplicaLost, match="killed") as caught:
                await mailbox.get()
            assert caught.value.retry_after_s == 2.0

    run(test())


def test_a_failure_wakes_the_reader() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        reader = asyncio.ensure_future(mailbox.get())
        await asyncio.sleep(0)
        mailbox.fail(ReplicaLost("killed", Seconds(2.0)))
        with pytest.raises(ReplicaLost):
            await reader

    run(test())


def test_a_failure_after_the_end_changes_nothing() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        mailbox.put(FINISHED)
        mailbox.fail(ReplicaLost("killed", Seconds(2.0)))
        assert await mailbox.get() == FINISHED

    run(test())


def test_nothing_may_follow_the_end() -> None:
    async def test() -> None:
        mailbox = RequestMailbox("r1")
        mailbox.put(FINISHED)
        with pytest.raises(AssertionError, match="Tokens after the end of r1"):
            mailbox.put(token(1))

    run(test())


def test_events_find_their_mailbox_and_strays_are_dropped() -> None:
    async def test() -> None:
        boxes = Mailboxes()
        mailbox = boxes.open("r1")
        boxes.deliver([token(1, request_id="unknown"), token(1), FINISHED])
        assert await drain(mailbox) == [token(1), FINISHED]
        assert len(boxes) == 0
        boxes.deliver([token(2)])  # late: its mailbox has ended
        assert len(boxes) == 0

    run(test())


def test_all_open_mailboxes_fail_together_and_ended_ones_do_not() -> None:
    async def test() -> None:
        boxes = Mailboxes()
        ended, lost, discarded = boxes.open("r1"), boxes.open("r2"), boxes.open("r3")
        boxes.deliver([FINISHED])
        boxes.discard("r3")
        boxes.fail_all("killed", Seconds(1.0))
        assert await ended.get() == FINISHED
        with pytest.raises(ReplicaLost):
            await lost.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(discarded.get(), 0)
        assert len(boxes) == 0

    run(test())


def test_an_id_in_use_is_a_bug() -> None:
    boxes = Mailboxes()
    boxes.open("r1")
    with pytest.raises(AssertionError, match="r1 is in use"):
        boxes.open("r1")
