"""How large a model a prompt needs: a transparent score, or a small trained classifier."""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec

from headway.core.base.errors import StartError
from headway.core.route.features import NAMES, Prompt, features, looked_at, score
from headway.core.route.table import AutoSettings

HEAD_CHARS, TAIL_CHARS = 800, 400  # that are read for n-grams: the request, not what it is about
WORD = re.compile(r"[\u3400-\u9fff]+|[^\W\d_\u3400-\u9fff]+|\d+|[^\w\s]")
CJK_RUN = re.compile(r"[\u3400-\u9fff]+")
CODE_FROM, MATH_FROM = 0.5, 0.5  # values of the features from which a prompt counts as such


class Size(Enum):
    """Of the model that answers."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Sized(NamedTuple):
    """What a prompt needs; `special` is "code" or "math" for a large one of that kind."""

    size: Size
    special: str = ""


class Sizer(Protocol):
    """Says how large a model a prompt needs."""

    def size(self, prompt: Prompt) -> Sized:
        """In less than 5 ms, however long the prompt is."""
        ...


class ScoreSizer:
    """By the points of `features.score`."""

    def __init__(self, settings: AutoSettings) -> None:
        self._settings = settings

    def size(self, prompt: Prompt) -> Sized:
        """Points against two thresholds."""
        values = features(prompt)
        points, settings = score(values), self._settings
        size = Size.SMALL
        if points >= settings.medium_from:
            size = Size.LARGE if points >= settings.large_from else Size.MEDIUM
        return _bounded(size, prompt, values, settings)


class SizeModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trained classifier as plain data: multinomial logistic regression.

    Weights are 8-bit; a class's value is its bias, plus the sum of `scale` times weight times
    value over the features, plus the mean of the same over the n-grams that the text has.
    """

    made_by: str  # for people: what it was trained on
    features: tuple[str, ...]
    num_buckets: int
    bias: tuple[float, float, float]  # small, medium, large
    dense: tuple[tuple[float, ...], ...]  # one row a class, one value a feature
    scale: float
    grams: bytes  # int8: num_buckets of the first class, then of the others


class ClassifierSizer:
    """By a trained classifier."""

    def __init__(self, settings: AutoSettings, model: SizeModel) -> None:
        if model.features != NAMES or len(model.grams) != 3 * model.num_buckets:
            raise StartError("the size classifier's weights are not of this release; train again")
        self._settings = settings
        self._model = model
        weights = array("b", model.grams)
        n = model.num_buckets
        self._grams = tuple(weights[i * n : (i + 1) * n] for i in range(3))

    def size(self, prompt: Prompt) -> Sized:
        """The smallest size that suffices with at least the confidence that is set."""
        values = features(prompt)
        small, medium, _ = self.probabilities(prompt, values)
        confidence = self._settings.confidence
        size = Size.LARGE
        if small >= confidence:
            size = Size.SMALL
        elif small + medium >= confidence:
            size = Size.MEDIUM
        return _bounded(size, prompt, values, self._settings)

    def probabilities(
        self, prompt: Prompt, values: Sequence[float] | None = None
    ) -> tuple[float, float, float]:
        """That a small, a medium, a large model is what the prompt needs."""
        model = self._model
        if values is None:
            values = features(prompt)
        buckets = buckets_of(prompt.text, model.num_buckets)
        each = model.scale / math.sqrt(len(buckets)) if buckets else 0.0
        logits = [
            bias
            + sum(weight * value for weight, value in zip(row, values, strict=True))
            + each * sum(grams[bucket] for bucket in buckets)
            for bias, row, grams in zip(model.bias, model.dense, self._grams, strict=True)
        ]
        top = max(logits)
        powers = [math.exp(logit - top) for logit in logits]
        small, medium, large = (power / sum(powers) for power in powers)
        return small, medium, large


def buckets_of(text: str, num_buckets: int) -> frozenset[int]:
    """Hashes of the text's words and n-grams: which buckets it has something in."""
    read = looked_at(text, HEAD_CHARS, TAIL_CHARS).lower()
    return frozenset(
        crc32(gram.encode("utf-8", "surrogatepass")) % num_buckets for gram in grams_of(read)
    )


def grams_of(text: str) -> Iterator[str]:
    """Words and pairs of words, the first letters of long words, and 1 to 3 characters of Chinese.

    Digits are one word, whatever they are.
    """
    before = "^"
    for word in WORD.findall(text):
        if CJK_RUN.fullmatch(word):
            yield from word
            yield from (word[i : i + 2] for i in range(len(word) - 1))
            yield from (word[i : i + 3] for i in range(len(word) - 2))
            before = word[-2:]
            continue
        if word.isdigit():
            word = "0"
        yield word
        yield f"{before} {word}"
        if len(word) > 5:
            yield f"{word[:5]}-"
        before = word


def _bounded(size: Size, prompt: Prompt, values: Sequence[float], settings: AutoSettings) -> Sized:
    """Not below what its length, and that of the answer it wants, call for."""
    if size is Size.SMALL and (prompt.max_tokens or 0) >= settings.long_answer_tokens:
        size = Size.MEDIUM
    if prompt.num_chars >= settings.long_prompt_chars:
        size = Size.LARGE
    if size is not Size.LARGE:
        return Sized(size)
    seen = dict(zip(NAMES, values, strict=True))
    if max(seen["code"], seen["code_words"]) >= CODE_FROM:
        return Sized(size, "code")
    return Sized(size, "math" if seen["math"] >= MATH_FROM else "")
