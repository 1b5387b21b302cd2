from headway.core.base.units import Seconds
from headway.core.sched.queue import QueueLimits, WaitingQueue
from headway.core.sched.sequence import RequestGroup, Sequence
from tests.fakes import request


def sequence(sequence_id: int, length: int = 3, choice: int = 0) -> Sequence:
    group = RequestGroup(request(prompt=range(length)), Seconds(0.0))
    return Sequence(sequence_id, group, choice, ())


def queue(max_sequences: int = 2, max_tokens: int = 10) -> WaitingQueue:
    return WaitingQueue(QueueLimits(max_sequences, max_tokens))


def test_a_sequence_that_comes_back_stands_where_it_was() -> None:
    line = queue()
    for number in (1, 2, 3):
        line.push(sequence(number))
    first = next(iter(line))
    line.remove(first)
    line.push(first)
    assert [s.id for s in line] == [1, 2, 3]


def test_choices_of_one_request_weigh_their_prompt_once() -> None:
    line = queue()
    line.push(sequence(1, 5, choice=0))
    line.push(sequence(2, 5, choice=1))
    assert (len(line), line.num_tokens) == (2, 5)


def test_sequences_that_find_a_slot_do_not_wait() -> None:
    line = queue(max_sequences=2)
    assert line.problem_with(4, 1, free_slots=2) is None
    assert line.problem_with(5, 1, free_slots=2) is not None


def test_one_prompt_over_the_token_limit_is_taken_when_nothing_waits() -> None:
    line = queue(max_tokens=10)
    assert line.problem_with(1, 50, free_slots=0) is None
    line.push(sequence(1))
    assert "13 prompt tokens would wait, the limit is 10" in (line.problem_with(1, 10, 0) or "")
