"""Events of the engine to what each choice gained: the one core of every kind of answer.

Streams and whole answers are both written from what stands here, so they cannot disagree.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.errors import HeadwayError, InternalError
from headway.core.messages.path import Event, Finished, FinishReason, Started, TokenLogprob, Tokens
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai.answer_schema import FinishName, PromptTokensDetails, UsageBody
from headway.service.openai.errors import HIDDEN, failure_of
from headway.service.openai.logprobs import Entry, EntryTracker, fewer, prompt_entries

FINISH_NAMES: dict[FinishReason, FinishName] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


Prompts = tuple[tuple[int, ...], ...]


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that the answer repeats before its own text."""

    text: str
    prompt: tuple[int, ...]


class AnswerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What of the request matters for its answer.

    `echoes` is empty or one a prompt. `is_scoring` drops all that is generated: the engine
    makes at least one token, the client asked for none.
    """

    n: int = 1
    num_prompts: int = 1
    num_prompt_tokens: int = 0  # over all prompts
    num_logprobs: int | None = None  # candidates a token; None: no log-probabilities
    num_prompt_logprobs: int | None = None  # the same for the prompt's tokens
    skip_special: bool = True
    include_stop: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    prompts: Prompts = ()  # their ids, one entry a prompt, where the client wants ids
    echoes: tuple[Echo, ...] = ()
    is_scoring: bool = False

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer's tokens are scored."""
        return self.num_logprobs is not None

    @property
    def has_ids(self) -> bool:
        """Whether the client wants token ids."""
        return bool(self.prompts)


class Delta(NamedTuple):
    """What one choice gained from one event."""

    choice: int  # index of the answer: prompt * n + choice
    text: str
    entries: tuple[Entry, ...]
    is_first: bool
    finish: FinishName | None
    stop_reason: str | int | None
    token_ids: tuple[int, ...] = ()  # of the text, and of what gave none since the last one


class Choice:
    """One choice as far as it has come."""

    def __init__(
        self, index: int, tracker: EntryTracker | None, num_left: int, include_stop: bool
    ) -> None:
        self.index = index
        self.pieces: list[str] = []
        self.entries: list[Entry] = []
        self.token_ids: list[int] = []
        self.num_told = 0  # of the ids: those that a delta has carried
        self.finish: FinishName | None = None
        self.stop_reason: str | int | None = None
        self._tracker = tracker
        self._include_stop = include_stop
        self._num_left = num_left  # characters that have left, the echoed prompt included
        self.is_started = False  # an event has been taken

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    def take(self, event: Tokens, head: tuple[str, list[Entry]] | None) -> Delta:
        """Add an event; `head` is the echoed prompt, given with the choice's first one."""
        is_first, self.is_started = not self.is_started, True
        text, entries = ("", []) if head is None else head
        self._num_left += len(event.text)
        self.finish = FINISH_NAMES.get(event.finish_reason) if event.finish_reason else None
        self.stop_reason = event.stop_reason
        entries = entries + self._entries(event)
        text += event.text
        self.pieces.append(text)
        self.entries += entries
        self.token_ids += event.token_ids
        finish, stop, ids = self.finish, self.stop_reason, self._untold_ids(text)
        return Delta(self.index, text, tuple(entries), is_first, finish, stop, ids)

    def _untold_ids(self, text: str) -> tuple[int, ...]:
        """As with entries, ids without text wait for the next piece."""
        if not text and self.finish is None:
            return ()
        untold = tuple(self.token_ids[self.num_told :])
        self.num_told = len(self.token_ids)
        return untold

    def _entries(self, event: Tokens) -> list[Entry]:
        if self._tracker is None:
            return []
        for scored in event.logprobs:
            self._tracker.add(scored)
        if event.finish_reason is not None:
            is_cut = event.finish_reason is FinishReason.STOP
            is_kept = self._include_stop and event.stop_reason is not None
            has_end_token = is_cut and not isinstance(event.stop_reason, str) and not is_kept
            return self._tracker.finish(self._num_left, is_cut, has_end_token)
        # Entries without text wait for the next piece: no chunk is sent for them alone.
        return self._tracker.release(self._num_left) if event.text else []


class Accumulator:
    """All choices of a request, fed with the events of its prompts in any interleaving."""

    def __init__(self, plan: AnswerPlan, tokenizer: Tokenizer) -> None:
        self.plan = plan
        self.failure: HeadwayError | None = None
        self._tokenizer = tokenizer
        self._finished: dict[int, Finished] = {}
        self._scored: dict[int, Sequence[TokenLogprob | None]] = {}
        self._cached: dict[int, int] = {}  # prompt tokens found in the prefix cache
        self.choices = [self._new_choice(i) for i in range(plan.num_prompts * plan.n)]

    @property
    def is_done(self) -> bool:
        """True when every prompt has ended, or one has failed."""
        return self.failure is not None or len(self._finished) == self.plan.num_prompts

    @property
    def num_told(self) -> int:
        """Tokens that deltas have carried, over all choices."""
        return sum(choice.num_told for choice in self.choices)

    def feed(self, event: Event, prompt: int = 0) -> list[Delta]:
        """What the event of that prompt adds; after it, `failure` may be set."""
        if isinstance(event, Started):
            self._cached[prompt] = event.cached_tokens
            return []
        if isinstance(event, Finished):
            self._end(event, prompt)
            return []
        if event.prompt_logprobs:
            self._scored.setdefault(prompt, event.prompt_logprobs)
        choice = self.choices[prompt * self.plan.n + event.choice]
        if self.plan.is_scoring:
            event = _without_answer(event)
        # A long prompt takes milliseconds: not for every token.
        head = None if choice.is_started else self._head(prompt)
        return [choice.take(event, head)]

    def usage(self) -> UsageBody:
        """Tokens of all prompts that have ended so far."""
        usages = [finished.usage for finished in self._finished.values()]
        num_prompt = sum(usage.prompt_tokens for usage in usages)
        num_made = 0 if self.plan.is_scoring else sum(u.completion_tokens for u in usages)
        return UsageBody(
            prompt_tokens=num_prompt,
            completion_tokens=num_made,
            total_tokens=num_prompt + num_made,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(usage.cached_tokens for usage in usages)
            ),
        )

    def usage_so_far(self) -> UsageBody:
        """The same in the middle of the answer."""
        num_prompt = self.plan.num_prompt_tokens
        num_made = sum(len(choice.token_ids) for choice in self.choices)
        return UsageBody(
            prompt_tokens=num_prompt,
            completion_tokens=num_made,
            total_tokens=num_prompt + num_made,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
        )

    def prompt_scores(self, prompt: int) -> Sequence[TokenLogprob | None] | None:
        """Log-probabilities of the prompt's tokens, if the client asked for them."""
        num_top = self.plan.num_prompt_logprobs
        if num_top is None:
            return None
        return [each and fewer(each, num_top) for each in self._scored.get(prompt, ())]

    def _new_choice(self, index: int) -> Choice:
        plan = self.plan
        num_echoed = len(plan.echoes[index // plan.n].text) if plan.echoes else 0
        tracker = None
        if plan.num_logprobs is not None:
            tracker = EntryTracker(
                self._tokenizer, plan.skip_special, num_echoed, plan.num_logprobs
            )
        return Choice(index, tracker, num_echoed, plan.include_stop)

    def _head(self, prompt: int) -> tuple[str, list[Entry]] | None:
        if not self.plan.echoes:
            return None
        echo = self.plan.echoes[prompt]
        num_top = self.plan.num_logprobs
        if num_top is None or not echo.prompt:
            return echo.text, []
        scored = [each and fewer(each, num_top) for each in self._scored.get(prompt, ())]
        return echo.text, prompt_entries(echo.prompt, echo.text, scored, self._tokenizer)

    def _end(self, finished: Finished, prompt: int) -> None:
        self._finished[prompt] = finished
        own = self.choices[prompt * self.plan.n : (prompt + 1) * self.plan.n]
        failure = failure_of(finished)
        if failure is None and any(choice.finish is None for choice in own):
            failure = InternalError(HIDDEN)  # a request that ended without all of its choices
        self.failure = self.failure or failure


def _without_answer(event: Tokens) -> Tokens:
    """For scoring: the token that the engine had to make is not part of the answer."""
    return msgspec.structs.replace(
        event,
        token_ids=(),
        text="",
        logprobs=(),
        stop_reason=None,
        finish_reason=None if event.finish_reason is None else FinishReason.LENGTH,
    )
