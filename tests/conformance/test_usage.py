"""One suite for every store of records: memory, the embedded file, SQLite and PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.messages.record import RequestRecord, Route
from headway.core.messages.usage import GROUPS, RecordQuery, UsageQuery, UsageRow
from headway.service.store.database import file_url, open_database
from headway.service.store.drain import Records
from headway.service.store.embedded import EmbeddedFile, EmbeddedUsage
from headway.service.store.usage import SqlUsage
from headway.service.store.usage_memory import MemoryUsage
from tests.unit.service.store.records import NOON, record

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture(params=["memory", "embedded", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    if request.param == "memory":
        yield MemoryUsage()
        return
    if request.param == "embedded":
        file = EmbeddedFile(tmp_path / "headway.db")
        yield EmbeddedUsage(file)
        file.close()
        return
    url = (
        file_url(tmp_path / "headway.db")
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    database = open_database(url)
    yield SqlUsage(database)
    database.close()


def sums(rows: list[UsageRow]) -> dict[tuple[str, ...], int]:
    return {row.group: row.requests for row in rows}


def full(request_id: str) -> RequestRecord:
    """Every field has a value of its own."""
    return record(
        request_id,
        shown_id="client's own",
        gateway="host-1",
        route=Route(
            asked="large",
            model="llama",
            version="preview",
            arm="b",
            reason="size:large",
            degraded="max_tokens",
            max_tokens=64,
        ),
        replica="r-2",
        outcome="error",
        finish="error",
        error_code="replica_lost",
        limit="tokens",
        user="0123456789abcdef",
        num_choices=3,
        max_tokens=77,
        cached_host_tokens=2,
        sent_tokens=5,
        unsure_tokens=1,
        recomputed_tokens=16,
        preemptions=4,
        preemptions_swapped=3,
        failovers=2,
        num_chunks=6,
        cost=2**40,
    )


@pytest.mark.spec("A9")
def test_a_record_comes_back_as_it_went_in(store: Records) -> None:
    plain = RequestRecord(id="plain", began=NOON, outcome="invalid")
    store.add([full("full"), plain])
    assert store.find("full") == full("full")
    assert store.find("plain") == plain
    assert store.find("nobody") is None


@pytest.mark.spec("M5")
def test_a_record_that_is_there_already_changes_nothing(store: Records) -> None:
    store.add([record("a", completion_tokens=7)])
    store.add([record("a", completion_tokens=99, outcome="lost"), record("b")])
    store.add([record("b"), record("b"), record("c")])
    found = store.find("a")
    assert found is not None
    assert (found.completion_tokens, found.outcome) == (7, "ok")
    assert sums(store.usage(UsageQuery(group_by=()))) == {(): 3}


def test_a_client_finds_its_request_by_its_own_id_and_ours_goes_first(store: Records) -> None:
    store.add(
        [
            record("old", shown_id="mine", began=NOON),
            record("new", shown_id="mine", began=NOON + 1),
            record("mine", shown_id="other", began=NOON - 1),
        ]
    )
    by_ours, by_theirs = store.find("mine"), store.find("other")
    assert by_ours is not None
    assert by_theirs is not None
    assert (by_ours.id, by_theirs.id) == ("mine", "mine")
    store.add([record("x", shown_id="twice", began=NOON), record("y", shown_id="twice")])
    store.add([record("z", shown_id="twice", began=NOON + 5)])
    latest = store.find("twice")
    assert latest is not None
    assert latest.id == "z"


@pytest.mark.spec("A9")
def test_usage_is_added_up_by_group_and_time(store: Records) -> None:
    other = Route(asked="x", model="other", version="preview")
    store.add(
        [
            record("a1", cost=1, began=NOON),
            record("a2", cost=2, began=NOON + HOUR),
            record("a3", cost=4, began=NOON + 13 * HOUR, outcome="cancelled"),  # 1 December
            record("b1", cost=8, began=NOON, tenant="beta", key_id="k2", route=other),
            record("n", cost=0, began=NOON, tenant="", route=None, outcome="invalid"),
        ]
    )
    rows = store.usage(UsageQuery(group_by=("tenant", "model", "day")))
    assert {row.group: (row.requests, row.ok, row.cost) for row in rows} == {
        ("", "", "2026-11-30"): (1, 0, 0),
        ("acme", "m", "2026-11-30"): (2, 2, 3),
        ("acme", "m", "2026-12-01"): (1, 0, 4),
        ("beta", "other", "2026-11-30"): (1, 1, 8),
    }
    assert [row.group for row in rows] == sorted(row.group for row in rows)
    total = store.usage(UsageQuery(group_by=(), tenant="acme"))
    assert len(total) == 1
    assert total[0] == UsageRow(
        group=(),
        requests=3,
        ok=2,
        prompt_tokens=30,
        cached_tokens=12,
        completion_tokens=21,
        sent_tokens=21,
        queue_s=0.375,
        prefill_s=0.375,
        decode_s=3.0,
        device_s=1.5,
        cost=7,
    )
    assert sums(store.usage(UsageQuery(group_by=("month", "version")))) == {
        ("2026-11", ""): 1,
        ("2026-11", "preview"): 1,
        ("2026-11", "stable"): 2,
        ("2026-12", "stable"): 1,
    }
    assert sums(store.usage(UsageQuery(group_by=("hour",), tenant="acme"))) == {
        ("2026-11-30T12",): 1,
        ("2026-11-30T13",): 1,
        ("2026-12-01T01",): 1,
    }
    assert sums(store.usage(UsageQuery(group_by=("key", "outcome")))) == {
        ("k1", "cancelled"): 1,
        ("k1", "invalid"): 1,
        ("k1", "ok"): 2,
        ("k2", "ok"): 1,
    }
    within = UsageQuery(group_by=("tenant",), since=NOON + HOUR, until=NOON + 13 * HOUR)
    assert sums(store.usage(within)) == {("acme",): 1}
    assert sums(store.usage(UsageQuery(group_by=(), key="k2", model="other"))) == {(): 1}
    assert store.usage(UsageQuery(group_by=(), tenant="nobody")) == []


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_a_name(store: Records, group: str) -> None:
    store.add([full("a")])
    (row,) = store.usage(UsageQuery(group_by=(group,)))
    assert all(row.group)
    assert row.cost == 2**40


def test_pages_are_complete_and_in_order_also_where_times_are_equal(store: Records) -> None:
    times = {f"r{i:02}": NOON + i // 4 for i in range(30)}
    store.add([record(name, began=began) for name, began in times.items()])
    seen: list[str] = []
    query = RecordQuery(limit=7)
    while True:
        page = store.page(query)
        assert len(page.records) <= 7
        seen += [each.id for each in page.records]
        if page.next is None:
            break
        query = RecordQuery(limit=7, before=page.next)
    assert seen == sorted(times, reverse=True)


def test_a_list_can_be_narrowed(store: Records) -> None:
    store.add(
        [
            record("a", began=NOON),
            record("b", began=NOON + 1, outcome="lost"),
            record("c", began=NOON + 2, tenant="beta"),
            record("d", began=NOON + 3, route=Route(model="other")),
        ]
    )

    def ids(query: RecordQuery) -> list[str]:
        return [each.id for each in store.page(query).records]

    assert ids(RecordQuery(tenant="acme")) == ["d", "b", "a"]
    assert ids(RecordQuery(outcome="lost")) == ["b"]
    assert ids(RecordQuery(since=NOON + 2)) == ["d", "c"]
    assert ids(RecordQuery(model="other", tenant="acme")) == ["d"]


def test_what_is_old_is_deleted_oldest_first(store: Records) -> None:
    store.add([record(f"r{i}", began=NOON + i * DAY) for i in range(6)])
    assert store.expire(NOON + 4 * DAY, 3) == 3
    assert store.expire(NOON + 4 * DAY, 3) == 1
    assert store.expire(NOON + 4 * DAY, 3) == 0
    assert [each.id for each in store.page(RecordQuery()).records] == ["r5", "r4"]


def test_names_of_any_length_and_kind_cost_no_record(store: Records) -> None:
    odd = "x\0y" + "\N{SNOWMAN}" * 500 + "'; DROP TABLE requests; --"
    store.add([record("a", shown_id=odd, user=odd, route=Route(asked=odd, model="m"))])
    assert sums(store.usage(UsageQuery(group_by=("model",)))) == {("m",): 1}


def test_memory_keeps_the_latest_only() -> None:
    memory = MemoryUsage(kept=3)
    for i in range(5):
        memory.add([record(f"r{i}", shown_id="same" if i % 2 else f"s{i}", began=NOON + i)])
    assert [each.id for each in memory.page(RecordQuery()).records] == ["r4", "r3", "r2"]
    found = memory.find("same")
    assert found is not None
    assert found.id == "r3"
    assert memory.find("s0") is None
