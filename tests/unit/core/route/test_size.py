"""Sizes: the features that are seen, the score, and the classifier's arithmetic."""

import math
import time
from typing import Any

import pytest

from headway.core.base.errors import StartError
from headway.core.route.features import NAMES, Prompt, features, looked_at, score
from headway.core.route.size import (
    ClassifierSizer,
    ScoreSizer,
    Size,
    SizeModel,
    buckets_of,
    grams_of,
)
from headway.core.route.table import AutoSettings

AUTO = AutoSettings(small="s", medium="m", large="l")
BUCKETS = 64


def prompt(text: str, **fields: Any) -> Prompt:
    return Prompt(text, len(text), **fields)


def seen(text: str) -> dict[str, float]:
    return dict(zip(NAMES, features(prompt(text)), strict=True))


def model(
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0), grams: bytes = bytes(3 * BUCKETS)
) -> SizeModel:
    return SizeModel(
        made_by="a test",
        features=NAMES,
        num_buckets=BUCKETS,
        bias=bias,
        dense=((0.0,) * len(NAMES),) * 3,
        scale=1.0,
        grams=grams,
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("```python\ndef f(x):\n    return x == 1\n```", "code"),
        ("Refactor this Python function", "code_words"),
        ("Prove the theorem: \\frac{a}{b} converges", "math"),
        ("证明这个数列收敛", "math"),
        ("What is the capital of Peru?", "fact"),
        ("秘鲁的首都是什么？", "fact"),
        ("Answer yes or no", "short_answer"),
        ("只回答一个词", "short_answer"),
        ("Give a detailed, comprehensive account", "long_answer"),
        ("Analyze the trade-offs and design it", "reasoning"),
        ("请分析并设计方案", "reasoning"),
        ("Write an email", "writing"),
        ("写一封邮件", "writing"),
        ("First do this, then that, finally the rest", "steps"),
        ("今天天气很好", "cjk"),
        ("12345", "digits"),
    ],
)
def test_each_feature_sees_what_it_is_called(text: str, name: str) -> None:
    assert seen(text)[name] > 0.2
    assert seen("Well")[name] == 0.0


def test_features_stay_within_0_and_1_whatever_the_text() -> None:
    for text in ("", " ", "\n" * 5000, "a" * 10**6, "证" * 10**5, "==;{\n" * 4000, "\ud800"):
        assert all(0.0 <= value <= 1.0 for value in features(prompt(text))), text[:9]


def test_of_a_long_text_only_the_ends_are_read() -> None:
    text = "a" * 50 + "b" * 100 + "c" * 10
    assert looked_at(text, 50, 10) == "a" * 50 + "\n" + "c" * 10
    assert looked_at("short", 50, 10) == "short"


@pytest.mark.spec("B2")
def test_the_score_orders_easy_before_hard() -> None:
    texts = (
        "What is the capital of Peru?",
        "Write a short email that invites the team to lunch and lists three places.",
        "Design a storage engine: compare two architectures, analyze failure modes and edge cases, "
        "prove that no write is lost, and derive the complexity of each operation step by step.",
    )
    points = [score(features(prompt(text))) for text in texts]
    assert points == sorted(points)
    sizer = ScoreSizer(AUTO)
    assert sizer.size(prompt(texts[0])).size is Size.SMALL
    assert sizer.size(prompt(texts[2])).size is Size.LARGE


def test_long_prompts_go_to_the_large_model_and_long_answers_not_to_the_small() -> None:
    sizer = ScoreSizer(AUTO)
    assert sizer.size(Prompt("Hi", 24_000)).size is Size.LARGE
    assert sizer.size(Prompt("Hi", 23_999)).size is not Size.LARGE
    assert sizer.size(Prompt("Hi", 2, max_tokens=2048)).size is Size.MEDIUM
    assert sizer.size(Prompt("Hi", 2, max_tokens=2047)).size is Size.SMALL


def test_a_large_prompt_of_code_or_mathematics_is_told_as_such() -> None:
    sizer = ScoreSizer(AUTO)
    code = "Debug this deadlock in the Python function:\n```\ndef f(x):\n    return g(x)\n```"
    assert sizer.size(Prompt(code, 30_000)).special == "code"
    assert (
        sizer.size(Prompt("Prove the theorem and the lemma on primes.", 30_000)).special == "math"
    )
    assert sizer.size(Prompt("Tell me a story.", 30_000)).special == ""
    assert sizer.size(Prompt("What is def f(x)?", 17)).special == ""


def test_grams_are_words_pairs_and_pieces_of_chinese() -> None:
    assert set(grams_of("prove 17 theorems")) == {
        *("prove", "0", "theorems"),
        *("^ prove", "prove 0", "0 theorems", "theor-"),
    }
    assert set(grams_of("证明它")) == {"证", "明", "它", "证明", "明它", "证明它"}
    assert "用" in set(grams_of("用python写"))
    assert "python" in set(grams_of("用python写"))


def test_buckets_do_not_grow_with_the_text() -> None:
    assert buckets_of("", BUCKETS) == frozenset()
    assert buckets_of("\ud800", BUCKETS)
    many = buckets_of("word " * 10 + "".join(f" w{i}" for i in range(10**5)), 2**20)
    assert len(many) < 2000


def test_without_weights_only_the_biases_count() -> None:
    sizer = ClassifierSizer(AUTO, model(bias=(math.log(0.6), math.log(0.3), math.log(0.1))))
    assert sizer.probabilities(prompt("x")) == pytest.approx((0.6, 0.3, 0.1))


def test_a_gram_s_weights_move_its_text_only() -> None:
    grams = bytearray(3 * BUCKETS)
    for each in buckets_of("hard", BUCKETS):
        grams[2 * BUCKETS + each] = 20
    sizer = ClassifierSizer(AUTO, model(grams=bytes(grams)))
    assert sizer.size(prompt("hard")).size is Size.LARGE
    assert sizer.probabilities(prompt("")) == pytest.approx((1 / 3,) * 3)


@pytest.mark.parametrize(
    ("confidence", "size"),
    [(0.1, Size.SMALL), (0.25, Size.SMALL), (0.5, Size.MEDIUM), (0.8, Size.LARGE)],
)
def test_the_smallest_that_suffices_with_enough_confidence_is_taken(
    confidence: float, size: Size
) -> None:
    settings = AutoSettings(small="s", medium="m", large="l", confidence=confidence)
    bias = (math.log(0.3), math.log(0.4), math.log(0.3))
    assert ClassifierSizer(settings, model(bias=bias)).size(prompt("x")).size is size


def test_weights_of_another_release_are_refused() -> None:
    made = model()
    for wrong in (
        SizeModel(**{**{f: getattr(made, f) for f in made.__struct_fields__}, "grams": b"x"}),
        SizeModel(**{**{f: getattr(made, f) for f in made.__struct_fields__}, "features": ("a",)}),
    ):
        with pytest.raises(StartError, match="train again"):
            ClassifierSizer(AUTO, wrong)


WORDS = "Please prove that the function f(x) == y + 1; converges. " * 100


def fastest(text: str) -> float:
    """Seconds of the processor for one decision, at best."""
    sizer, times = ClassifierSizer(AUTO, model()), []
    for _ in range(5):
        began = time.process_time()
        sizer.size(prompt(text))
        times.append(time.process_time() - began)
    return min(times)


def test_the_time_does_not_grow_with_the_prompt() -> None:
    assert fastest(WORDS * 200) < 5 * fastest(WORDS) + 0.001


@pytest.mark.parametrize(
    "text",
    ["\n" * 5000, "\n \t" * 2000, "QUJD" * 2000, "SELECT " * 800, "(a" * 2000, "-\n" * 2000],
)
def test_no_prompt_makes_it_slow(text: str) -> None:
    assert fastest(text) < 5 * fastest(WORDS) + 0.001
