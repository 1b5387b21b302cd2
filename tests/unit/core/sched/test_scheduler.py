"""What a tight pool costs: names are made once, and few sequences are thrown out again."""

from collections.abc import Sequence

import pytest

from headway.core.engine.core import EngineCore
from headway.core.kv import hashing
from headway.core.messages.health import ReplicaStatus
from headway.core.sched import room
from tests.drive import Drive
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings, greedy, request
from tests.mixed import INTERNAL, VIP, asked, machine


def drive(**settings: int | bool) -> Drive:
    core = EngineCore(engine_settings(**settings), ByteTokenizer())  # type: ignore[arg-type]
    return Drive(core, ScriptedExecutor(core))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of all blocks that were named."""
    lengths: list[int] = []
    chain = hashing.chain

    def counted(parent: bytes, tokens: Sequence[int]) -> bytes:
        lengths.append(len(tokens))
        return chain(parent, tokens)

    monkeypatch.setattr(hashing, "chain", counted)
    return lengths


def test_a_prompt_that_waits_for_room_is_hashed_once(hashed: list[int]) -> None:
    run = drive(num_blocks=16)
    run.add(request("first", range(30), sampling=greedy(20)), request("waits", range(99, 139)))
    for _ in range(12):
        run.step()
    assert run.core.status().num_waiting == 1
    assert len(hashed) <= (30 + 12) // 4 + 40 // 4
    run.run()
    assert run.answers["waits"].finished is not None


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_computed_again_is_not_hashed_again(hashed: list[int], n: int) -> None:
    run = drive(num_blocks=16)
    run.run([request(f"r{i}", range(i, i + 9), n=n, sampling=greedy(20)) for i in range(4)])
    assert run.core.status().preemptions > 0
    assert len(hashed) <= 4 * n * (29 // 4)


def test_names_kept_with_a_sequence_are_those_of_its_tokens() -> None:
    run = drive(num_blocks=16)
    run.add(*(request(f"r{i}", range(i, i + 9), n=2, sampling=greedy(20)) for i in range(4)))
    seen = 0
    while run.step():
        scheduler = run.core.scheduler
        for sequence in [*scheduler.queue, *scheduler.running.values()]:
            name = hashing.root("", b"")
            for index, kept in enumerate(sequence.names):
                name = hashing.chain(name, sequence.tokens[4 * index : 4 * index + 4])
                assert kept == name
                seen += 1
    assert seen > 100


def crowd(monkeypatch: pytest.MonkeyPatch, return_blocks: int, num_blocks: int) -> ReplicaStatus:
    """Eight answers that the pool cannot hold together, to their end."""
    monkeypatch.setattr(room, "RETURN_BLOCKS", return_blocks)
    run = drive(num_blocks=num_blocks, max_num_seqs=8, max_model_len=128, max_num_batched_tokens=64)
    answers = run.run([request(f"r{i}", range(i, i + 9), sampling=greedy(60)) for i in range(8)])
    assert all(answer.finished is not None for answer in answers.values())
    return run.core.status()


def test_a_sequence_that_was_thrown_out_comes_back_to_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, pools = room.RETURN_BLOCKS, (36, 40, 48)
    hasty = [crowd(monkeypatch, 1, num_blocks).preemptions for num_blocks in pools]
    patient = [crowd(monkeypatch, usual, num_blocks).preemptions for num_blocks in pools]
    assert sum(patient) < sum(hasty)
    assert all(p <= h for p, h in zip(patient, hasty, strict=True))


def test_sequences_that_each_need_the_whole_pool_end_one_after_the_other() -> None:
    run = drive(num_blocks=16)
    run.run([request(f"r{i}", range(i, i + 9), sampling=greedy(55)) for i in range(3)])
    assert {answer.finished is not None for answer in run.answers.values()} == {True}
    assert [len(answer.tokens[0]) for answer in run.answers.values()] == [55, 55, 55]
    assert run.core.status().preemptions <= 3


def test_lifted_requests_have_few_slots_while_others_wait_and_at_least_one() -> None:
    run = machine(max_num_seqs=4, ageing=5.0, num_blocks=400)
    run.add(*(asked(f"old{i}", range(i, i + 3), INTERNAL, sampling=greedy(30)) for i in range(9)))
    run.add(*(asked(f"vip{i}", range(i, i + 3), VIP, sampling=greedy(20)) for i in range(40)))
    most = 0
    while not all(run.answers[f"vip{i}"].finished for i in range(40)):
        run.step()
        scheduler = run.core.scheduler
        if scheduler.queue.waiting_of(VIP).sequences:
            most = max(most, sum(s.is_lifted for s in scheduler.running.values()))
    assert most == 1
    assert any(run.answers[f"old{i}"].finished for i in range(9))
