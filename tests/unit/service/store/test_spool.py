"""The spool: what it says after its process has died, wherever it was cut off."""

import os
from pathlib import Path

import pytest

from headway.core.messages.record import RequestRecord
from headway.service.store import spool as spool_module
from headway.service.store.frames import frame, frames
from headway.service.store.slots import Progress
from headway.service.store.spool import (
    MOST_BESIDE,
    Position,
    Spool,
    abandoned,
    closed_in,
    left_in,
)
from tests.unit.service.store.records import record

SEGMENT = 4096
ENOUGH = 1024 * 1024


def opened(folder: Path, max_bytes: int = ENOUGH) -> Spool:
    return Spool(folder, max_bytes, SEGMENT)


def die(spool: Spool) -> None:
    """What is left of a process that was killed: its files, and no lock."""
    os.close(spool._lock_file)


def lost(request_id: str, **fields: object) -> RequestRecord:
    return record(request_id, outcome="lost", **fields)


def left(folder: Path) -> dict[str, Progress | None]:
    return {each.record.id: each.progress for each in left_in(folder) if each.record is not None}


def closed(spool: Spool) -> list[str]:
    """Ids of all that closed, read as the writer's thread does."""
    found: list[str] = []
    position = Position(1, 0)
    while True:
        data = spool.read(position, 1 << 20)
        records, num_read, _ = closed_in(data, 1000)
        found += [each.id for each in records]
        position = Position(position.segment, position.offset + num_read)
        after = spool.after(position)
        if after is None:
            return found
        position = after


def test_what_closed_is_read_in_order_and_what_was_opened_is_not(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for name in ("a", "b"):
        spool.opened(lost(name))
    spool.closed(record("b"))
    spool.closed(record("never-opened"))
    spool.closed(record("a"))
    assert closed(spool) == ["b", "never-opened", "a"]


def test_what_was_opened_and_never_closed_is_found_with_what_was_sent(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for name in ("done", "silent", "midway", "in-its-write"):
        spool.opened(lost(name))
    spool.closed(record("done"))
    for name, sure, given in (("midway", 5, 5), ("in-its-write", 5, 6)):
        spool.give(name, given)
        spool.gave(name, sure)
    die(spool)
    assert left(tmp_path / "s") == {
        "done": None,
        "silent": Progress(0, 0),
        "midway": Progress(5, 5),
        "in-its-write": Progress(5, 6),
    }


def test_a_slot_used_again_does_not_change_what_another_had_sent(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for i in range(50):
        spool.opened(lost(f"r{i}"))
        spool.give(f"r{i}", i)
        spool.gave(f"r{i}", i)
        if i % 2:
            spool.closed(record(f"r{i}"))
    found = left(tmp_path / "s")
    assert [found[f"r{i}"] for i in range(0, 50, 2)] == [Progress(i, i) for i in range(0, 50, 2)]
    assert all(found[f"r{i}"] is None for i in range(1, 50, 2))


def test_what_is_opened_twice_is_one_request_with_what_was_known_last(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a", prompt_tokens=0))
    spool.opened(lost("b", prompt_tokens=0))
    spool.opened(lost("a", prompt_tokens=12))
    spool.give("a", 3)
    spool.closed(record("b"))
    found = [each for each in left_in(tmp_path / "s") if each.progress is not None]
    assert [(each.record and each.record.prompt_tokens, each.progress) for each in found] == [
        (12, Progress(0, 3))
    ]
    spool.closed(record("a"))
    assert left(tmp_path / "s") == {"b": None, "a": None}


def test_progress_of_what_is_not_open_is_harmless(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.give("nobody", 3)
    spool.gave("nobody", 3)
    assert spool.num_open == 0


def test_files_that_were_read_go_and_what_is_open_moves_on_to_the_next(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("long"))
    spool.give("long", 1)
    spool.gave("long", 1)
    names = [f"r{i}" for i in range(60)]
    for name in names:
        spool.opened(lost(name))
        spool.closed(record(name))
    assert len(list((tmp_path / "s").glob("*.log"))) > 3
    assert closed(spool) == names
    (last,) = (tmp_path / "s").glob("*.log")
    assert last.name == f"{spool.end.segment:08}.log"
    assert spool.num_bytes == last.stat().st_size
    spool.give("long", 9)
    spool.gave("long", 9)
    assert left(tmp_path / "s")["long"] == Progress(9, 9)


def test_a_write_that_was_torn_is_forgotten_and_the_rest_is_kept(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a"))
    spool.give("a", 4)
    spool.gave("a", 4)
    size = spool.end.offset
    spool.closed(record("a"))
    die(spool)
    path = tmp_path / "s" / "00000001.log"
    whole = path.read_bytes()
    for cut in range(size, len(whole)):
        path.write_bytes(whole[:cut])
        found = list(left_in(tmp_path / "s"))
        assert [(each.record and each.record.id, each.progress) for each in found] == [
            ("a", Progress(4, 4))
        ]
    path.write_bytes(whole)
    assert left(tmp_path / "s") == {"a": None}


def test_a_damaged_frame_is_told_and_costs_that_frame_only(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.closed(record("a"))
    begin = spool.end.offset
    spool.closed(record("b"))
    spool.closed(record("c"))
    path = tmp_path / "s" / "00000001.log"
    data = bytearray(path.read_bytes())
    data[begin + 40] ^= 1
    path.write_bytes(data)
    found = [each.record.id if each.record else None for each in left_in(tmp_path / "s")]
    assert found == ["a", None, "c"]
    records, num_read, num_damaged = closed_in(bytes(data), 10)
    assert ([each.id for each in records], num_read, num_damaged) == (["a", "c"], len(data), 1)


def test_a_frame_that_holds_no_record_is_damage(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    path = tmp_path / "s" / "00000001.log"
    path.write_bytes(frame(b"c\xc1") + frame(b"o\0\0\0\0\xc1"))
    die(spool)
    assert [each.record for each in left_in(tmp_path / "s")] == [None, None]
    assert closed_in(path.read_bytes(), 10) == ([], path.stat().st_size, 1)


def test_a_full_spool_refuses_new_requests_before_it_refuses_the_ends_of_others(
    tmp_path: Path,
) -> None:
    spool = opened(tmp_path / "s", 64 * 1024)
    spool.opened(lost("first"))
    names = [f"r{i}" for i in range(200)]
    for name in names:
        spool.opened(lost(name))
    assert 0 < spool.num_open < 200
    assert spool.num_bytes <= 96 * 1024
    spool.closed(record("first"))
    spool.closed(record("r199"))  # never opened, for want of room; there is some for its end
    assert closed(spool) == ["first", "r199"]
    assert spool.num_dropped == 0


def test_what_a_full_spool_does_not_take_is_kept_in_memory_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MOST_BESIDE", 3)
    assert MOST_BESIDE > 3
    spool = opened(tmp_path / "s", 32 * 1024)
    names = [f"r{i}" for i in range(100)]
    for name in names:
        spool.closed(record(name))
    in_file = closed(spool)
    assert [*in_file, *(each.id for each in spool.beside)] == names[: len(in_file) + 3]
    assert spool.num_dropped == 100 - len(in_file) - 3
    assert spool.num_errors == 100 - len(in_file)


def test_a_disk_that_takes_half_a_frame_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(tmp_path / "s")
    spool.closed(record("a"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    spool.closed(record("b"))
    spool.opened(lost("c"))
    monkeypatch.undo()
    spool.closed(record("d"))
    assert closed(spool) == ["a", "d"]
    assert [each.id for each in spool.beside] == ["b"]
    assert (spool.num_errors, spool.num_open) == (2, 0)


def test_a_request_whose_end_could_not_be_written_is_still_open_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a"))
    spool.give("a", 3)
    spool.gave("a", 3)

    def fails(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    spool.closed(record("a"))
    monkeypatch.undo()
    spool.opened(lost("b"))
    spool.give("b", 8)
    assert left(tmp_path / "s") == {"a": Progress(3, 3), "b": Progress(0, 8)}


def test_a_folder_is_found_only_once_its_process_is_gone(tmp_path: Path) -> None:
    alive, dead = opened(tmp_path / "alive"), opened(tmp_path / "dead")
    assert list(abandoned(tmp_path)) == []
    die(dead)
    assert list(abandoned(tmp_path)) == [tmp_path / "dead"]
    alive.close(is_done=False)
    assert list(abandoned(tmp_path)) == [tmp_path / "alive", tmp_path / "dead"]


def test_one_folder_is_given_to_one_process_at_a_time(tmp_path: Path) -> None:
    die(opened(tmp_path / "dead"))
    for folder in abandoned(tmp_path):
        assert folder == tmp_path / "dead"
        assert list(abandoned(tmp_path)) == []


def test_a_spool_that_was_read_to_its_end_leaves_nothing_behind(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a"))
    spool.closed(record("a"))
    assert closed(spool) == ["a"]
    spool.close(is_done=True)
    assert list(tmp_path.iterdir()) == []


def test_a_spool_with_open_requests_stays_for_another_process(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a"))
    spool.close(is_done=True)
    assert left(tmp_path / "s") == {"a": Progress(0, 0)}


def test_what_comes_after_the_end_touches_no_file_and_counts_as_dropped(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    spool.opened(lost("a"))
    spool.close(is_done=True)
    before = {path: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    with (tmp_path / "other").open("wb"):  # takes the number of a file that was closed
        spool.give("a", 3)
        spool.gave("a", 3)
        spool.opened(lost("b"))
        spool.closed(record("a"))
    assert (tmp_path / "other").read_bytes() == b""
    assert {path: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before
    assert (spool.num_dropped, len(spool.beside)) == (1, 0)


def test_only_the_user_may_read_what_is_kept(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool" / "s")
    spool.sync()
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "spool" / "s").stat().st_mode & 0o777 == 0o700
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "spool" / "s").iterdir()}
    assert modes == {0o600}
    spool.close(is_done=True)


@pytest.mark.spec("A9")
def test_a_write_cut_off_at_any_byte_loses_that_frame_alone(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    spool = opened(folder)
    spool.opened(lost("done"))
    spool.opened(lost("open"))
    spool.give("open", 5)
    spool.gave("open", 3)
    spool.closed(record("done"))
    spool.opened(lost("last"))
    die(spool)
    log = folder / "00000001.log"
    data = log.read_bytes()
    ends = [0, *(found.end for found in frames(data))]
    assert len(ends) == 5
    for cut in range(len(data) + 1):
        log.write_bytes(data[:cut])
        num_whole = sum(end <= cut for end in ends) - 1
        found = list(left_in(folder))
        assert all(each.record is not None for each in found)  # torn is not damaged
        closed_ = [each.record.id for each in found if each.record and each.progress is None]
        assert closed_ == (["done"] if num_whole >= 3 else [])
        open_ = {each.record.id: each.progress for each in found if each.record and each.progress}
        expected = [set(), {"done"}, {"done", "open"}, {"open"}, {"open", "last"}][num_whole]
        assert set(open_) == expected
        if "open" in open_:
            assert open_["open"] == Progress(3, 5)
