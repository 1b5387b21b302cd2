"""From the spool into the store: batches, stores that are away, and what dead gateways left."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.core.messages.record import RequestRecord, Route
from headway.core.messages.usage import RecordQuery, UsageQuery
from headway.service.store import drain as drain_module
from headway.service.store.drain import BATCH_ROWS, DAY_S, Drain, DrainNeeds
from headway.service.store.spool import Spool
from tests.unit.service.store.records import NOON, MoodyStore, record

SEGMENT = 8192


def price(model: str, prompt: int, cached: int, completion: int) -> int:
    assert model in {"m", ""}
    return 100 * prompt + completion


class Bench:
    """A drain that is driven by hand, over a store that may be away."""

    def __init__(self, root: Path, name: str = "mine", store: MoodyStore | None = None) -> None:
        root.mkdir(exist_ok=True)
        self.now = NOON
        self.store = store or MoodyStore()
        self.spool = Spool(root / name, 1 << 20, SEGMENT)
        self.drain = self.drain_of(root)

    def drain_of(self, root: Path, **fields: Any) -> Drain:
        needs = DrainNeeds(self.spool, self.store, root, price, lambda: self.now)
        return Drain(needs._replace(**fields))

    def die(self) -> None:
        """As a process that is killed."""
        os.close(self.spool._lock_file)

    @property
    def ids(self) -> list[str]:
        """What is in the store, the latest last."""
        return [each.id for each in reversed(self.store.page(RecordQuery(limit=1000)).records)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_what_closed_is_written_once_and_in_batches(root: Path) -> None:
    bench = Bench(root)
    names = [f"r{i:04}" for i in range(BATCH_ROWS + 20)]
    for i, name in enumerate(names):
        bench.spool.closed(record(name, began=NOON + i))
    assert bench.drain.turn()
    assert bench.drain.turn()
    assert bench.ids == names
    assert max(bench.store.batches) <= BATCH_ROWS
    assert sum(bench.store.batches) == len(names) == bench.drain.counts.num_written
    assert (bench.drain.is_behind, bench.drain.lag_s) == (False, 0.0)
    assert len(list((root / "mine").glob("*.log"))) == 1


def test_while_the_store_is_away_nothing_is_lost_and_it_is_said(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(root)
    bench.store.is_away = True
    bench.spool.closed(record("a"))
    for _ in range(3):
        bench.now += 10
        assert not bench.drain.turn()
    assert bench.drain.counts.num_errors == 3
    assert bench.drain.lag_s == 30
    assert [each.message for each in caplog.records] == ["ledger_store_is_away"]
    bench.store.is_away = False
    with caplog.at_level("INFO"):
        assert bench.drain.turn()
    assert caplog.records[-1].message == "ledger_store_is_back"
    assert bench.ids == ["a"]
    assert bench.drain.lag_s == 0.0


def test_a_record_that_the_store_refuses_holds_up_no_other(root: Path) -> None:
    bench = Bench(root)
    bench.store.refuses = {"b"}
    for name in ("a", "b", "c"):
        bench.spool.closed(record(name))
    assert bench.drain.turn()
    assert sorted(bench.ids) == ["a", "c"]
    assert bench.drain.counts.num_refused == 1


def test_what_the_spool_did_not_take_is_written_from_memory(root: Path) -> None:
    bench = Bench(root)
    bench.spool.beside.append(record("beside"))
    assert bench.drain.is_behind
    bench.store.is_away = True
    assert not bench.drain.turn()
    bench.store.is_away = False
    assert bench.drain.turn()
    assert bench.ids == ["beside"]
    assert not bench.spool.beside


def test_damage_is_counted_and_passed_over(root: Path) -> None:
    bench = Bench(root)
    bench.spool.closed(record("a", began=NOON))
    begin = bench.spool.end.offset
    bench.spool.closed(record("b"))
    bench.spool.closed(record("c", began=NOON + 1))
    path = root / "mine" / "00000001.log"
    data = bytearray(path.read_bytes())
    data[begin + 30] ^= 1
    path.write_bytes(data)
    assert bench.drain.turn()
    assert bench.ids == ["a", "c"]
    assert bench.drain.counts.num_damaged == 1


def test_a_file_whose_end_cannot_be_read_does_not_stop_the_next_ones(root: Path) -> None:
    bench = Bench(root)
    names = [f"r{i:02}" for i in range(30)]
    for i, name in enumerate(names):
        bench.spool.closed(record(name, began=NOON + i))
    path = root / "mine" / "00000001.log"
    size = path.stat().st_size
    with path.open("r+b") as file:  # the last frame of the first file loses its checksum
        file.seek(size - 3)
        file.write(b"???")
    assert bench.drain.turn()
    assert len(bench.ids) == len(names) - 1
    assert bench.drain.counts.num_damaged == 1
    assert not path.exists()


@pytest.mark.spec("A9")
def test_whoever_asked_is_told_what_a_dead_gateway_had_under_way(root: Path) -> None:
    dead = Bench(root, "dead")
    for name in ("closed", "unsent", "midway"):
        dead.spool.opened(record(name, outcome="lost", prompt_tokens=10, completion_tokens=0))
    dead.spool.closed(record("closed"))
    dead.spool.give("midway", 4)
    dead.spool.gave("midway", 4)
    dead.die()
    told: list[RequestRecord] = []
    Bench(root).drain_of(root, on_lost=told.append).take_over()
    assert {each.id: (each.completion_tokens, each.cost) for each in told} == {
        "unsent": (0, 0),
        "midway": (4, 1004),
    }


def test_what_a_dead_gateway_left_becomes_one_record_each(root: Path) -> None:
    dead = Bench(root, "dead")
    for name in ("closed", "unsent", "midway", "in-its-write"):
        dead.spool.opened(record(name, outcome="lost", prompt_tokens=10, completion_tokens=0))
    dead.spool.closed(record("closed"))
    for name, sure, given in (("midway", 4, 4), ("in-its-write", 4, 5)):
        dead.spool.give(name, given)
        dead.spool.gave(name, sure)
    dead.die()
    bench = Bench(root)
    bench.drain.take_over()
    assert bench.drain.counts.num_lost == 3
    found = {each.id: each for each in bench.store.page(RecordQuery()).records}
    assert found["closed"].outcome == "ok"
    assert {found[name].outcome for name in ("unsent", "midway", "in-its-write")} == {"lost"}
    told = {
        name: (each.prompt_tokens, each.completion_tokens, each.sent_tokens, each.unsure_tokens)
        for name, each in found.items()
    }
    assert told["unsent"] == (0, 0, 0, 0)
    assert told["midway"] == (10, 4, 4, 0)
    assert told["in-its-write"] == (10, 4, 4, 1)
    assert (found["unsent"].cost, found["midway"].cost) == (0, 1004)
    assert not (root / "dead").exists()
    assert (root / "mine").exists()


def test_a_request_that_went_nowhere_yet_can_be_lost_too(root: Path) -> None:
    dead = Bench(root, "dead")
    dead.spool.opened(record("a", outcome="lost", route=None))
    dead.spool.gave("a", 2)
    dead.die()
    bench = Bench(root)
    bench.drain.take_over()
    assert bench.ids == ["a"]


def test_taking_over_may_be_interrupted_and_repeated(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "BATCH_ROWS", 4)
    dead = Bench(root, "dead")
    for i in range(20):
        dead.spool.opened(record(f"r{i:02}", outcome="lost", began=NOON + i))
        if i % 2:
            dead.spool.closed(record(f"r{i:02}", began=NOON + i))
    dead.die()
    store = MoodyStore()
    add, num_calls = store.add, 0

    def adds(records: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise KeyboardInterrupt
        add(records)

    monkeypatch.setattr(store, "add", adds)
    first = Bench(root, "first", store)
    with pytest.raises(KeyboardInterrupt):
        first.drain.take_over()
    first.die()
    assert len(first.ids) == 8
    second = Bench(root, "second", store)
    second.drain.take_over()
    assert second.ids == [f"r{i:02}" for i in range(20)]
    rows = store.usage(UsageQuery(group_by=("outcome",)))
    assert [(row.group, row.requests) for row in rows] == [(("lost",), 10), (("ok",), 10)]
    assert sorted(path.name for path in root.iterdir()) == ["second"]


def test_another_gateway_that_lives_is_left_alone(root: Path) -> None:
    other, bench = Bench(root, "other"), Bench(root)
    other.spool.closed(record("a"))
    bench.drain.take_over()
    assert bench.ids == []
    assert other.drain.turn()
    assert other.ids == ["a"]


def test_records_older_than_the_retention_are_deleted_in_small_batches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "EXPIRE_ROWS", 3)
    bench = Bench(root)
    bench.store.add([record(f"r{i}", began=NOON - i * DAY_S) for i in range(10)])
    bench.drain.expire()
    assert len(bench.ids) == 10
    batches: list[int] = []
    expire: Callable[[float, int], int] = bench.store.expire

    def expires(before: float, most: int) -> int:
        batches.append(expire(before, most))
        return batches[-1]

    monkeypatch.setattr(bench.store, "expire", expires)
    bench.drain_of(root, retention_days=2).expire()
    assert bench.ids == ["r2", "r1", "r0"]
    assert batches == [3, 3, 1]


def test_the_thread_writes_what_comes_and_ends_with_everything_written(root: Path) -> None:
    bench = Bench(root)
    bench.drain.start()
    bench.spool.closed(record("a"))
    assert bench.drain.flush(10.0)
    assert bench.ids == ["a"]
    bench.spool.closed(record("b"))
    bench.drain.stop(10.0)
    assert sorted(bench.ids) == ["a", "b"]
    assert not (root / "mine").exists()


def test_the_first_question_waits_for_what_a_dead_gateway_had_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Bench(root, "dead")
    dead.spool.closed(record("a"))
    dead.die()
    bench = Bench(root)
    asked = threading.Event()
    add = bench.store.add

    def adds(records: Any) -> None:
        assert asked.wait(10.0)
        add(records)

    monkeypatch.setattr(bench.store, "add", adds)
    bench.drain.start()
    assert not bench.drain.flush(0.05)
    asked.set()
    assert bench.drain.flush(10.0)
    assert bench.ids == ["a"]
    bench.drain.stop(10.0)


def test_a_question_waits_for_what_the_spool_did_not_take_too(root: Path) -> None:
    bench = Bench(root)
    bench.store.is_away = True
    bench.drain.start()
    bench.spool.beside.append(record("a"))
    assert not bench.drain.flush(0.05)
    bench.store.is_away = False
    assert bench.drain.flush(10.0)
    assert bench.ids == ["a"]
    bench.drain.stop(10.0)


def test_a_disk_that_cannot_be_synced_while_the_store_is_away_ends_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    dead = Bench(root, "dead")  # so that it is not its own record that meets the store first
    dead.spool.closed(record("a"))
    dead.die()
    bench = Bench(root)
    monkeypatch.setattr(bench.spool, "sync", fails)
    bench.store.is_away = True
    bench.drain.start()
    assert not bench.drain.flush(0.05)
    bench.store.is_away = False
    assert bench.drain.flush(10.0)
    assert bench.ids == ["a"]
    told = {each.message: vars(each).get("reason") for each in caplog.records}
    assert told["ledger_not_synced"] == "No space left on device"
    bench.drain.stop(10.0)


def test_what_cannot_be_written_at_the_end_stays_for_the_next_start(root: Path) -> None:
    bench = Bench(root)
    bench.store.is_away = True
    bench.drain.start()
    bench.spool.closed(record("a"))
    assert not bench.drain.flush(0.05)
    bench.drain.stop(10.0)
    assert (root / "mine").exists()
    after = Bench(root, "after")
    after.drain.start()
    after.drain.stop(10.0)
    after = Bench(root, "once-more", after.store)
    after.drain.take_over()
    assert after.ids == ["a"]


def test_the_route_of_a_lost_request_is_what_was_known(root: Path) -> None:
    dead = Bench(root, "dead")
    route = Route(asked="m", model="m", version="preview", reason="preview")
    dead.spool.opened(record("a", outcome="lost", route=route))
    dead.die()
    bench = Bench(root)
    bench.drain.take_over()
    found = bench.store.find("a")
    assert found is not None
    assert found.route == route


@pytest.mark.spec("A9")
def test_a_spool_that_cannot_be_read_keeps_nobody_elses_from_the_store(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, dead = Bench(root, "a-broken"), Bench(root, "dead")
    broken.spool.closed(record("there"))
    (root / "a-broken" / "slots").unlink()
    (root / "a-broken" / "slots").mkdir()  # for the disk that gives an error
    dead.spool.closed(record("closed"))
    for each in (broken, dead):
        each.die()
    bench = Bench(root)
    bench.drain.take_over()
    assert bench.ids == ["closed"]
    assert sorted(each.name for each in root.iterdir()) == ["a-broken", "mine"]
    (told,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert told.message == "ledger_spool_not_taken_over"
    assert vars(told)["spool"] == str(root / "a-broken")
    assert vars(told)["reason"] == "Is a directory"
    (root / "a-broken" / "slots").rmdir()  # once it can be read
    bench.drain.take_over()
    assert sorted(bench.ids) == ["closed", "there"]


def test_a_clock_that_is_set_back_keeps_nobody_from_what_others_left(root: Path) -> None:
    def leave(name: str) -> None:
        dead = Bench(root, f"dead-{name}")
        dead.spool.closed(record(name))
        dead.die()

    def wait_for(*names: str) -> None:
        deadline = time.monotonic() + 10.0
        while not set(names) <= set(bench.ids) and time.monotonic() < deadline:
            bench.drain.flush(0.01)  # wakes the thread
        assert set(names) <= set(bench.ids)

    leave("a")
    bench = Bench(root)
    bench.drain.start()
    wait_for("a")
    leave("b")
    bench.now -= DAY_S
    wait_for("b")
    bench.drain.stop(10.0)


def test_records_that_nothing_has_taken_at_the_end_are_told_of(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(root)
    bench.store.is_away = True
    bench.drain.start()
    bench.spool.beside.extend([record("a"), record("b")])
    bench.drain.stop(10.0)
    (told,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert (told.message, vars(told)["records"]) == ("ledger_dropped", 2)
