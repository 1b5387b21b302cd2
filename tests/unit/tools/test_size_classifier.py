"""The classifier in the package, on prompts of families that it was not trained on."""

import time
from collections import Counter

import pytest

from headway.core.route.features import Prompt
from headway.core.route.size import ClassifierSizer, Size
from headway.core.route.table import AutoSettings
from headway.service.gateway.route_parts import make_sizer, packaged_model
from tools.size_prompts import LANGUAGES, Example, examples, load

AUTO = AutoSettings(small="s", medium="m", large="l")


@pytest.fixture(scope="module")
def prompts() -> list[Example]:
    return examples()


def test_there_are_prompts_enough_of_families_enough_in_both_languages(
    prompts: list[Example],
) -> None:
    assert len(prompts) >= 1000
    assert len({each.text for each in prompts}) == len(prompts)
    families = {each.family for each in prompts}
    unseen = set(load().unseen)
    assert len(families) >= 12
    assert len(unseen) >= 4
    assert unseen < families
    for language in LANGUAGES:
        counted = Counter(each.size for each in prompts if each.language == language)
        assert min(counted[size] for size in Size) >= 100


def test_the_same_seed_makes_the_same_prompts(prompts: list[Example]) -> None:
    assert examples() == prompts
    assert examples(seed=1) != prompts


@pytest.mark.spec("B6")
def test_the_packaged_weights_are_right_on_unseen_families(prompts: list[Example]) -> None:
    unseen = set(load().unseen)
    judged = [each for each in prompts if each.family in unseen]
    sizer = make_sizer(AUTO)
    right = sum(sizer.size(Prompt(e.text, len(e.text))).size is e.size for e in judged)
    always_large = sum(each.size is Size.LARGE for each in judged)
    assert right / len(judged) >= 0.85
    assert right > 1.5 * always_large


@pytest.mark.spec("B6")
def test_a_decision_on_a_long_prompt_takes_less_than_5_ms(prompts: list[Example]) -> None:
    sizer = ClassifierSizer(AUTO, packaged_model())
    text = max((each.text for each in prompts), key=len) * 100
    times = []
    for _ in range(20):
        began = time.thread_time()  # of this thread alone, whatever else runs
        sizer.size(Prompt(text, len(text)))
        times.append(time.thread_time() - began)
    assert min(times) < 0.005
