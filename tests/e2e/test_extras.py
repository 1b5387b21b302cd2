"""What engines add to OpenAI's API, on the real model."""

from typing import Any

import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.spec("M9")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASK = [{"role": "user", "content": "What is the capital of France?"}]


def post(server: Server, path: str, **body: Any) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(server: Server, text: str) -> list[int]:
    told = post(server, "/tokenize", prompt=text, add_special_tokens=False)
    assert told["count"] == len(told["tokens"])
    return list(told["tokens"])


@pytest.mark.parametrize("text", ["Hello, world!", "你好 👨‍👩‍👧", "  a\n\tb  "])
def test_ids_of_a_text_are_its_text_again(server: Server, text: str) -> None:
    assert post(server, "/detokenize", tokens=ids_of(server, text))["prompt"] == text


def test_a_chats_ids_are_those_that_the_engine_counts(server: Server) -> None:
    told = post(server, "/tokenize", messages=ASK)
    answer = post(server, CHAT, messages=ASK, max_tokens=1, return_token_ids=True)
    assert answer["prompt_token_ids"] == told["tokens"]
    assert answer["usage"]["prompt_tokens"] == told["count"]


def test_a_completion_of_the_chats_ids_is_the_chats_answer(server: Server) -> None:
    chat = post(server, CHAT, messages=ASK, max_tokens=8, temperature=0, return_token_ids=True)
    same = post(
        server, COMPLETIONS, prompt=chat["prompt_token_ids"], max_tokens=8, temperature=0,
        return_token_ids=True,
    )  # fmt: skip
    assert same["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
    assert same["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


def test_a_continued_message_goes_on_where_it_was_cut(server: Server) -> None:
    begun = [*ASK, {"role": "assistant", "content": "The capital of France is"}]
    answer = post(
        server, CHAT, messages=begun, continue_final_message=True, max_tokens=3, temperature=0
    )
    assert answer["choices"][0]["message"]["content"].startswith(" Paris")
    echoed = post(
        server, CHAT, messages=begun, continue_final_message=True, echo=True, max_tokens=3,
        temperature=0,
    )  # fmt: skip
    assert echoed["choices"][0]["message"]["content"].startswith("The capital of France is Paris")


def test_only_allowed_tokens_are_drawn(server: Server) -> None:
    allowed = [*ids_of(server, "yes"), *ids_of(server, " no")]
    answer = post(
        server, COMPLETIONS, prompt="Is it so?", allowed_token_ids=allowed, max_tokens=12,
        temperature=1, seed=3, return_token_ids=True,
    )  # fmt: skip
    assert set(answer["choices"][0]["token_ids"]) <= set(allowed)
    assert answer["usage"]["completion_tokens"] == 12


def test_a_bad_word_is_never_completed(server: Server) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    assert "Paris" in post(server, COMPLETIONS, **body)["choices"][0]["text"]
    answer = post(server, COMPLETIONS, **body, bad_words=["Paris"])
    assert "Paris" not in answer["choices"][0]["text"]


def test_a_prompts_scores_are_those_that_an_echo_tells(server: Server) -> None:
    text = "The quick brown fox jumps over the lazy dog"
    scored = post(server, COMPLETIONS, prompt=text, max_tokens=1, prompt_logprobs=2)
    echoed = post(server, COMPLETIONS, prompt=text, max_tokens=0, echo=True, logprobs=2)
    ids = ids_of(server, text)
    first, *others = scored["choices"][0]["prompt_logprobs"]
    assert first is None
    found = [
        entry[str(token_id)]["logprob"] for entry, token_id in zip(others, ids[1:], strict=True)
    ]
    assert found == echoed["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert all(1 in {score["rank"] for score in entry.values()} for entry in others)


def test_a_prompt_that_is_too_long_can_be_cut(server: Server) -> None:
    text = "word " * 20_000
    refused = server.client.post(COMPLETIONS, json={"prompt": text, "max_tokens": 2})
    assert refused.status_code == 400
    answer = post(server, COMPLETIONS, prompt=text, max_tokens=2, truncate_prompt_tokens=50)
    assert answer["usage"]["prompt_tokens"] == 50
