"""Right answers of the built-in model, one by one and under load with clients that leave."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.server import Server, text_of, until

CHAT = "/v1/chat/completions"
FACTS = json.loads((Path(__file__).parent / "facts.json").read_text())


def ask(server: Server, question: str) -> str:
    """The streamed answer to a question."""
    messages = [{"role": "user", "content": question}]
    return text_of(server.stream(CHAT, messages=messages, max_tokens=32))


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["answer"])
def test_a_factual_question_is_answered_right(server: Server, fact: dict[str, str]) -> None:
    assert fact["answer"] in ask(server, fact["question"])


@pytest.mark.spec("A8")
@pytest.mark.spec("L5")
def test_sixteen_get_whole_answers_while_sixteen_others_leave(server: Server) -> None:
    asked = [FACTS[index % len(FACTS)] for index in range(16)]

    def leave_midway(number: int) -> int:
        seen = 0
        messages = [{"role": "user", "content": f"Tell me a long story about {number} dragons."}]
        events = server.iterate(CHAT, messages=messages, max_tokens=400, ignore_eos=True)
        for _ in events:
            seen += 1
            if seen > 2 + number:
                events.close()  # type: ignore[attr-defined]  # a generator: closes the socket
                break
        return seen

    with ThreadPoolExecutor(32) as pool:
        leaving = [pool.submit(leave_midway, number) for number in range(16)]
        answers = list(pool.map(lambda fact: ask(server, fact["question"]), asked))
        assert [left.result() for left in leaving] == [3 + number for number in range(16)]
    wrong = [
        (fact, answer)
        for fact, answer in zip(asked, answers, strict=True)
        if fact["answer"] not in answer
    ]
    assert wrong == []
    until(server.is_idle_and_clean, 5.0, "all blocks are free")
