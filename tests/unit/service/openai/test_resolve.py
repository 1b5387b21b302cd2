import msgspec
import pytest

from headway.core.base.errors import InvalidRequest, PromptTooLong
from headway.service.loaders.sampling_defaults import SamplingDefaults
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion
from headway.service.openai.resolve import (
    answer_entries,
    check_answer_size,
    engine_requests,
)
from headway.service.openai.schema import ChatRequest, CompletionRequest
from tests.unit.service.openai.script import FACTS, body, chat_body

LIMITS = ApiLimits()
TOP = FACTS.vocab_size - 1
CONTEXT = FACTS.max_model_len


def chat(**fields: object) -> ChatRequest:
    return parse_chat(chat_body(**fields), LIMITS)


def completion(**fields: object) -> CompletionRequest:
    return parse_completion(body(**{"prompt": "Hi", **fields}), LIMITS)


def test_max_tokens_is_by_default_what_is_left_of_the_context() -> None:
    made = engine_requests(chat(), [range(30)], FACTS, "r", 5)
    assert [r.sampling.max_tokens for r in made] == [CONTEXT - 30]
    assert made[0].id == "r"
    assert made[0].prompt == tuple(range(30))


def test_streaming_sse_01_beyond_the_context_the_message_says_both_lengths() -> None:
    with pytest.raises(PromptTooLong) as caught:
        engine_requests(chat(max_tokens=4000), [[1] * 31], FACTS, "r", 0)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "max_tokens"
    for length in ("512", "31", "4000", "481"):
        assert length in caught.value.message


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 100])
def test_a_prompt_that_leaves_no_room_is_refused_by_its_own_name(length: int) -> None:
    with pytest.raises(PromptTooLong) as caught:
        engine_requests(completion(), [[1] * length], FACTS, "r", 0)
    assert caught.value.param == "prompt"
    assert str(length) in caught.value.message
    assert str(CONTEXT) in caught.value.message


def test_a_prompt_that_fills_all_but_one_place_is_served() -> None:
    made = engine_requests(completion(max_tokens=1), [[1] * (CONTEXT - 1)], FACTS, "r", 0)
    assert made[0].sampling.max_tokens == 1


def test_odd_prompts_bounds_01_a_prompt_of_no_ids_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine_requests(completion(prompt=["Hi", "Ho"]), [[1], []], FACTS, "r", 0)
    assert caught.value.param == "prompt[1]"


def test_odd_prompts_bounds_02_a_bias_outside_the_vocabulary_is_refused_by_its_key() -> None:
    for token_id in (TOP + 1, 200_000):
        with pytest.raises(InvalidRequest) as caught:
            engine_requests(chat(logit_bias={str(token_id): 1}), [[1]], FACTS, "r", 0)
        assert caught.value.param == f"logit_bias.{token_id}"
    made = engine_requests(chat(logit_bias={str(TOP): 1}), [[1]], FACTS, "r", 0)
    assert made[0].sampling.logit_bias == ((TOP, 1.0),)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([TOP + 1], "prompt[0]"),
        ([1, 9_000_000_000_000_000_000], "prompt[1]"),
        ([1, 10**30], "prompt[1]"),
        ([[1, 2], [3, TOP + 1]], "prompt[1][1]"),
    ],
)
def test_odd_prompts_bounds_03_an_id_outside_the_vocabulary_is_refused(
    prompt: list[int], param: str
) -> None:
    request = completion(prompt=prompt)
    ids = [p for p in request.prompts if isinstance(p, tuple)]
    with pytest.raises(InvalidRequest) as caught:
        engine_requests(request, ids, FACTS, "r", 0)
    assert caught.value.param == param


def test_a_stop_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine_requests(chat(stop_token_ids=[1, TOP + 1]), [[1]], FACTS, "r", 0)
    assert caught.value.param == "stop_token_ids[1]"


def test_odd_prompts_bounds_04_min_tokens_must_fit_what_is_left() -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine_requests(chat(min_tokens=CONTEXT), [[1]], FACTS, "r", 0)
    assert caught.value.param == "min_tokens"


def test_odd_prompts_bounds_04_scoring_makes_one_token_and_scores_the_prompt() -> None:
    request = completion(max_tokens=0, echo=True, logprobs=1, stop="x")
    made = engine_requests(request, [[1, 2]], FACTS, "r", 0)
    assert made[0].sampling.max_tokens == 1
    assert made[0].sampling.prompt_logprobs
    assert made[0].sampling.num_logprobs == 1


def test_each_prompt_is_one_engine_request_with_n_choices() -> None:
    made = engine_requests(completion(prompt=["a", "b"], n=3), [[1], [2]], FACTS, "r", 0)
    assert [(r.id, r.prompt, r.num_choices) for r in made] == [("r-0", (1,), 3), ("r-1", (2,), 3)]


def test_a_seed_of_its_own_makes_every_prompt_sample_as_if_alone() -> None:
    made = engine_requests(completion(prompt=["a", "a"], seed=7), [[1], [1]], FACTS, "r", 99)
    assert [r.sampling.seed for r in made] == [7, 7]


def test_a_drawn_seed_differs_from_prompt_to_prompt() -> None:
    made = engine_requests(completion(prompt=["a", "a"]), [[1], [1]], FACTS, "r", 2**64 - 1)
    assert [r.sampling.seed for r in made] == [2**64 - 1, 0]


def test_top_k_of_the_whole_vocabulary_keeps_all() -> None:
    made = engine_requests(chat(top_k=2**31 - 1), [[1]], FACTS, "r", 0)
    assert made[0].sampling.top_k == 0


ADVISED = msgspec.structs.replace(
    FACTS,
    sampling=SamplingDefaults(
        temperature=0.7, top_p=0.0, top_k=20, min_p=0.05, repetition_penalty=1.1
    ),
)


def test_what_a_request_leaves_open_is_as_the_model_s_makers_advise() -> None:
    (made,) = engine_requests(chat(), [[1]], ADVISED, "r", 0)
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.7, 20, 0.05)
    assert sampling.repetition_penalty == 1.1
    assert 0.0 < sampling.top_p < 1e-6
    assert (sampling.presence_penalty, sampling.seed) == (0.0, 0)


def test_what_a_request_says_goes_before_the_makers_advice() -> None:
    asked = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    (made,) = engine_requests(chat(**asked), [[1]], ADVISED, "r", 0)
    plain = engine_requests(chat(temperature=0), [[1]], FACTS, "r", 0)
    assert made == plain[0]


def test_without_advice_what_is_left_open_is_as_the_api_says() -> None:
    (made,) = engine_requests(chat(), [[1]], FACTS, "r", 0)
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.0, 1.0)


def test_advice_beyond_the_vocabulary_keeps_all() -> None:
    facts = msgspec.structs.replace(FACTS, sampling=SamplingDefaults(top_k=10**6))
    assert engine_requests(chat(), [[1]], facts, "r", 0)[0].sampling.top_k == 0


def test_the_salt_reaches_the_engine() -> None:
    assert engine_requests(chat(cache_salt="é"), [[1]], FACTS, "r", 0)[0].cache_salt == b"\xc3\xa9"


def test_every_log_probability_of_the_answer_counts_as_an_entry() -> None:
    plain = engine_requests(chat(n=3, max_tokens=5), [[1] * 9], FACTS, "r", 0)
    assert answer_entries(plain) == 0
    fields = {"n": 3, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    assert answer_entries(engine_requests(chat(**fields), [[1] * 9], FACTS, "r", 0)) == 5 * 3 * 3
    echoed = completion(prompt=["a", "b"], n=2, max_tokens=5, logprobs=0, echo=True)
    made = engine_requests(echoed, [[1] * 9, [1] * 4], FACTS, "r", 0)
    assert answer_entries(made) == (9 + 5) * 2 + (4 + 5) * 2


def test_too_many_log_probabilities_are_refused_with_their_number_and_the_limit() -> None:
    made = engine_requests(chat(n=3, max_tokens=5, logprobs=True), [[1]], FACTS, "r", 0)
    check_answer_size(made, ApiLimits(max_answer_entries=15))
    with pytest.raises(InvalidRequest) as caught:
        check_answer_size(made, ApiLimits(max_answer_entries=14))
    assert caught.value.param == "logprobs"
    assert "15 entries" in caught.value.message
    assert "at most 14" in caught.value.message
