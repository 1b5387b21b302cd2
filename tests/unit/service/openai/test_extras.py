"""The fields that engines add to OpenAI's: what they ask for and what comes back."""

from typing import Any

import pytest

from headway.core.base.errors import InvalidRequest, PromptTooLong
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Started
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.resolve import engine_requests
from headway.service.openai.responses import Answer, chat_answer, completion_answer
from tests.unit.service.openai.script import (
    FACTS,
    HEAD,
    TOKENIZER,
    body,
    chat_body,
    chunks_of,
    events_of,
    scored,
    strict,
)

pytestmark = pytest.mark.spec("M9")

LIMITS = ApiLimits()
PROMPT = [72, 105, 33]


def made_of(request: Any, *prompts: list[int]) -> tuple[EngineRequest, ...]:
    return engine_requests(request, prompts or [PROMPT], FACTS, "r", 0)


def answered(answer: Answer, made: tuple[EngineRequest, ...], outputs: list[list[int]]) -> Any:
    for prompt, each in enumerate(made):
        for event in events_of(each, outputs):
            answer.feed(event, prompt)
    return strict(answer.response())


def chunked(answer: Answer, made: tuple[EngineRequest, ...], outputs: list[list[int]]) -> list[Any]:
    stream = b""
    for prompt, each in enumerate(made):
        started = Started(request_id="r", at=Seconds(0.0), cached_tokens=1)
        for event in [started, *events_of(each, outputs)]:
            stream += answer.stream(event, prompt)
    return chunks_of(stream)


def chat(**fields: Any) -> Any:
    return parse_chat(chat_body(**fields), LIMITS)


def completion(**fields: Any) -> Any:
    return parse_completion(body(**{"prompt": "Hi!", **fields}), LIMITS)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        made_of(chat(**fields))
    return caught.value


def test_a_chat_tells_the_ids_of_prompt_and_answer() -> None:
    request = chat(return_token_ids=True, n=2, max_tokens=2)
    made = made_of(request)
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[65, 66], [67, 68]])
    assert whole["prompt_token_ids"] == PROMPT
    assert [choice["token_ids"] for choice in whole["choices"]] == [[65, 66], [67, 68]]


def test_without_being_asked_nothing_is_told_of_ids() -> None:
    request = chat(max_tokens=1)
    made = made_of(request)
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    assert "prompt_token_ids" not in whole
    assert "token_ids" not in whole["choices"][0]
    for chunk in chunked(chat_answer(HEAD, request, made, TOKENIZER), made, [[65]]):
        assert "prompt_token_ids" not in chunk
        assert all("token_ids" not in choice for choice in chunk["choices"])


def test_the_ids_of_a_stream_joined_are_those_of_the_whole_answer() -> None:
    emoji = list("😀".encode())
    request = chat(return_token_ids=True, max_tokens=9, stream=True)
    made = made_of(request)
    outputs = [[65, *emoji, 66]]
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, outputs)
    chunks = chunked(chat_answer(HEAD, request, made, TOKENIZER), made, outputs)
    told = [
        i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids", [])
    ]
    assert told == whole["choices"][0]["token_ids"] == [65, *emoji, 66, 256]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [PROMPT] + [None] * (
        len(chunks) - 1
    )


def test_each_choice_of_a_completion_tells_its_own_prompts_ids_once() -> None:
    request = completion(prompt=["ab", "cd"], n=2, return_token_ids=True, max_tokens=2)
    made = made_of(request, [97, 98], [99, 100])
    whole = answered(completion_answer(HEAD, request, made, TOKENIZER), made, [[1, 2], [3, 4]])
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [
        [97, 98],
        [97, 98],
        [99, 100],
        [99, 100],
    ]
    chunks = chunked(completion_answer(HEAD, request, made, TOKENIZER), made, [[1, 2], [3, 4]])
    firsts = [c["index"] for chunk in chunks for c in chunk["choices"] if "prompt_token_ids" in c]
    assert sorted(firsts) == [0, 1, 2, 3]


def test_a_prompts_scores_come_with_as_many_candidates_as_were_asked_for() -> None:
    request = chat(prompt_logprobs=1, logprobs=True, top_logprobs=3, max_tokens=1)
    made = made_of(request)
    assert made[0].sampling.num_logprobs == 3
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    first, second, third = whole["prompt_logprobs"]
    assert first is None
    assert second == {"105": {"logprob": -1.05, "rank": 1, "decoded_token": "i"}}
    assert list(third) == ["33"]
    assert len(whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_a_token_that_is_no_candidate_has_no_rank() -> None:
    request = completion(prompt_logprobs=0, max_tokens=1)
    made = made_of(request)
    whole = answered(completion_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    assert whole["choices"][0]["prompt_logprobs"][1] == {
        "105": {"logprob": scored(105, 0).logprob, "rank": None, "decoded_token": "i"}
    }
    assert whole["choices"][0]["logprobs"] is None


def test_candidates_for_the_prompt_do_not_show_in_the_answer() -> None:
    request = chat(prompt_logprobs=5, logprobs=True, top_logprobs=1, max_tokens=1)
    made = made_of(request)
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    assert len(whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 1
    assert len(whole["prompt_logprobs"][1]) == 5


def test_prompt_logprobs_are_not_streamed() -> None:
    assert refused(prompt_logprobs=1, stream=True).param == "prompt_logprobs"


@pytest.mark.parametrize("asks_at_the_end", [True, False])
def test_continuous_usage_rises_to_the_last_one(asks_at_the_end: bool) -> None:
    options = {"continuous_usage_stats": True, "include_usage": asks_at_the_end}
    request = chat(stream=True, stream_options=options, max_tokens=3)
    made = made_of(request)
    chunks = chunked(chat_answer(HEAD, request, made, TOKENIZER), made, [[65, 66, 67]])
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {3}
    assert {chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in chunks} == {1}
    assert (chunks[-1]["choices"] == []) is asks_at_the_end


@pytest.mark.parametrize(
    ("keep", "left"), [(1, PROMPT[-1:]), (2, PROMPT[-2:]), (3, PROMPT), (100, PROMPT), (-1, PROMPT)]
)
def test_a_prompt_is_cut_at_its_front(keep: int, left: list[int]) -> None:
    request = completion(truncate_prompt_tokens=keep, max_tokens=2)
    assert list(made_of(request)[0].prompt) == left


def test_what_fits_leaves_room_for_the_answer_that_was_asked_for() -> None:
    request = completion(truncate_prompt_tokens=-1, max_tokens=100)
    (made,) = made_of(request, list(range(256)) * 4)
    assert len(made.prompt) == FACTS.max_model_len - 100
    (made,) = made_of(completion(truncate_prompt_tokens=-1), list(range(256)) * 4)
    assert (len(made.prompt), made.sampling.max_tokens) == (FACTS.max_model_len - 1, 1)


def test_truncation_does_not_hide_an_answer_that_cannot_fit() -> None:
    with pytest.raises(PromptTooLong):
        made_of(completion(truncate_prompt_tokens=-1, max_tokens=FACTS.max_model_len))


def test_an_echo_of_a_cut_prompt_is_what_was_left_of_it() -> None:
    request = completion(echo=True, truncate_prompt_tokens=2, max_tokens=1)
    made = made_of(request)
    whole = answered(completion_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    assert whole["choices"][0]["text"] == "i!A"


@pytest.mark.parametrize("keep", [0, -2, 1.5, "2"])
def test_a_wrong_truncation_names_the_field(keep: object) -> None:
    assert refused(truncate_prompt_tokens=keep).param == "truncate_prompt_tokens"


def test_a_truncation_beyond_the_context_is_refused() -> None:
    error = refused(truncate_prompt_tokens=FACTS.max_model_len + 1)
    assert error.param == "truncate_prompt_tokens"
    assert str(FACTS.max_model_len) in error.message


def test_allowed_ids_and_bad_words_reach_the_engine() -> None:
    request = completion(allowed_token_ids=[7, 9, 7], bad_words=["no", "no"])
    assert request.bad_words == ("no",)
    (made,) = engine_requests(request, [PROMPT], FACTS, "r", 0, ((5, 6),))
    assert made.sampling.allowed_token_ids == (7, 9)
    assert made.sampling.bad_words == ((5, 6),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [3, 257]}, "allowed_token_ids[1]"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": "no"}, "bad_words"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": ["a", "x" * 2000]}, "bad_words[1]"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (
            {"continue_final_message": True, "messages": [{"role": "assistant", "content": ""}]},
            "continue_final_message",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    "field", ["chat_template_kwargs", "continue_final_message", "add_generation_prompt"]
)
def test_completions_refuse_what_belongs_to_chat(field: str) -> None:
    value: object = {"x": 1} if field == "chat_template_kwargs" else field.startswith("continue")
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param == field


def test_continuing_a_message_opens_no_new_turn() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    request = chat(messages=messages, continue_final_message=True)
    assert (request.continue_final, request.add_generation_prompt) == (True, False)
    assert chat().add_generation_prompt
    assert not chat(add_generation_prompt=False).add_generation_prompt


def test_an_echo_in_a_chat_is_the_message_that_is_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    fields = {"messages": messages, "continue_final_message": True, "echo": True, "logprobs": True}
    request = chat(**fields, max_tokens=2)
    made = made_of(request)
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[32, 65]])
    assert whole["choices"][0]["message"]["content"] == "Well, A"
    assert len(whole["choices"][0]["logprobs"]["content"]) == 2
    chunks = chunked(chat_answer(HEAD, request, made, TOKENIZER), made, [[32, 65]])
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert text == "Well, A"


def test_an_echo_after_a_users_message_repeats_nothing() -> None:
    request = chat(echo=True, max_tokens=1)
    made = made_of(request)
    whole = answered(chat_answer(HEAD, request, made, TOKENIZER), made, [[65]])
    assert whole["choices"][0]["message"]["content"] == "A"


@pytest.mark.parametrize(
    "fields",
    [{"return_token_ids": True}, {"stream_options": {"continuous_usage_stats": True}}],
)
def test_the_native_events_have_no_place_for_them(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parse_native(chat_body(**fields), {}, LIMITS)
