"""What a line at the prompt of `headway chat` means."""

import pytest

from headway.app.conversation import Act, Conversation


def test_questions_and_answers_go_on_in_the_same_chat() -> None:
    chat = Conversation("Be brief.")
    assert chat.take("Hi\n").act is Act.ASK
    chat.answered("Hello.")
    chat.take("And?")
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]


def test_a_question_without_any_answer_is_withdrawn() -> None:
    chat = Conversation()
    chat.take("Hi")
    chat.answered("")
    assert chat.messages == []


def test_a_part_of_an_answer_stays() -> None:
    chat = Conversation()
    chat.take("Hi")
    chat.answered("Hel")
    assert chat.messages[-1] == {"role": "assistant", "content": "Hel"}


def test_reset_forgets_all_but_the_system_message() -> None:
    chat = Conversation()
    assert chat.take("/system Be brief.").act is Act.SAY
    chat.take("Hi")
    chat.answered("Hello.")
    assert chat.take("/reset").act is Act.SAY
    assert chat.messages == [{"role": "system", "content": "Be brief."}]
    chat.take("/system")
    assert chat.messages == []


@pytest.mark.parametrize(
    ("line", "act"),
    [("", Act.NOTHING), ("  \n", Act.NOTHING), ("/exit", Act.END), ("/help", Act.SAY)],
)
def test_other_lines_send_nothing(line: str, act: Act) -> None:
    chat = Conversation()
    assert chat.take(line).act is act
    assert chat.messages == []


def test_an_unknown_command_is_named_and_not_sent() -> None:
    chat = Conversation()
    reply = chat.take("/frobnicate now")
    assert reply.act is Act.SAY
    assert "/frobnicate" in reply.text
    assert chat.messages == []


def test_a_message_given_on_the_command_line_may_look_like_a_command() -> None:
    chat = Conversation()
    chat.ask("/etc/hosts is what?")
    assert chat.messages == [{"role": "user", "content": "/etc/hosts is what?"}]
