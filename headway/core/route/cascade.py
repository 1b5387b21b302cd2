"""A small model answers first; whether its answer is good enough to be the answer."""

import msgspec

from headway.core.messages.path import Event, FinishReason, Tokens


class CascadeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which two pools, and when the first one's answer is not enough."""

    first: str  # pool of the small model
    then: str  # pool that answers when the first is not sure
    min_mean_logprob: float = -0.5  # of the answer's tokens, natural logarithm
    escalate_on_length: bool = False  # also when it was cut off by max_tokens


class Confidence:
    """How sure a model was of the answer it gave, from its tokens' log-probabilities."""

    def __init__(self) -> None:
        self._total = 0.0
        self._num_tokens = 0  # that were scored
        self._has_unscored = False
        self._is_cut = False

    def saw(self, event: Event) -> None:
        """An event of the answer."""
        if isinstance(event, Tokens):
            for scored in event.logprobs:
                self._total += scored.logprob
                self._num_tokens += 1
            self._has_unscored |= len(event.logprobs) < len(event.token_ids)
            self._is_cut |= event.finish_reason is FinishReason.LENGTH

    @property
    def mean_logprob(self) -> float:
        """0 for an answer without tokens."""
        return self._total / self._num_tokens if self._num_tokens else 0.0

    def doubt(self, settings: CascadeSettings) -> str:
        """Why the answer is not enough: "logprob", "length", "empty", "unscored"; "" if it is.

        What nobody has scored nobody is sure of.
        """
        if self._num_tokens == 0:
            return "unscored" if self._has_unscored else "empty"
        if self.mean_logprob < settings.min_mean_logprob:
            return "logprob"
        if self._is_cut and settings.escalate_on_length:
            return "length"
        return ""
