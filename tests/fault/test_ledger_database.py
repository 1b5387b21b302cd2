"""The ledger while its database is away: answers do not wait for it, and nothing is lost."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from headway.core.messages.usage import RecordQuery, UsageQuery
from headway.service.store.database import open_database
from headway.service.store.drain import Drain, DrainNeeds
from headway.service.store.spool import Spool
from headway.service.store.usage import SqlUsage
from tests.services.servers import postgres
from tests.unit.service.store.records import NOON, record

DEADLINE_S = 60.0
MOST_S = 0.05  # most calls of the ledger; a busy machine may stop any one of them for longer


@pytest.mark.spec("M13")
def test_a_postgresql_that_stops_and_comes_back_has_every_record_once(tmp_path: Path) -> None:
    with postgres() as server:
        database = open_database(server.fresh("ledger"))
        store = SqlUsage(database)
        spool = Spool(tmp_path / "spool" / "mine", 1 << 24)
        drain = Drain(DrainNeeds(spool, store, tmp_path / "spool", lambda *_: 0, time.time))
        drain.start()
        spool.closed(record("before"))
        assert drain.flush(DEADLINE_S)
        server.stop()
        names = [f"r{i:04}" for i in range(1200)]
        took = []
        for i, name in enumerate(names):
            began = time.perf_counter()
            spool.opened(record(name, outcome="lost", began=NOON + i))
            spool.give(name, 3)
            spool.gave(name, 3)
            spool.closed(record(name, began=NOON + i))
            took.append(time.perf_counter() - began)
        assert sorted(took)[-len(took) // 50] < MOST_S
        assert not drain.flush(0.2)
        assert drain.is_behind
        server.start()
        assert drain.flush(DEADLINE_S)
        drain.stop(DEADLINE_S)
        assert drain.counts.num_errors > 0
        assert (spool.num_dropped, spool.num_errors) == (0, 0)
        (total,) = store.usage(UsageQuery(group_by=()))
        assert total.requests == len(names) + 1
        latest = store.page(RecordQuery(limit=3)).records
        assert [each.id for each in latest] == names[:-4:-1]
        assert list((tmp_path / "spool").iterdir()) == []
        database.close()


STANDBY = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE "
    "'cannot execute INSERT in a read-only transaction' USING ERRCODE = '25006'; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT ON requests EXECUTE FUNCTION refuse()",
)


@pytest.mark.spec("A9")
@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        (STANDBY, "DROP TRIGGER refuse ON requests"),
        (("ALTER TABLE requests RENAME TO hidden",), "ALTER TABLE hidden RENAME TO requests"),
        (("REVOKE INSERT ON requests FROM writer",), "GRANT INSERT ON requests TO writer"),
    ],
    ids=["as on a standby", "while the table is restored", "without the right to write"],
)
def test_a_postgresql_that_takes_no_record_loses_none(
    tmp_path: Path, postgres_url: str, breaks: Sequence[str], mends: str
) -> None:
    owner = open_database(postgres_url)

    def run(*statements: str) -> None:
        def each(connection: Connection) -> None:
            for statement in statements:
                connection.execute(text(statement))

        owner.write(each)

    run(
        "DROP ROLE IF EXISTS writer",
        "CREATE ROLE writer LOGIN",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO writer",
    )
    database = open_database(postgres_url.replace("//headway@", "//writer@"))
    store = SqlUsage(database)
    spool = Spool(tmp_path / "spool" / "mine", 1 << 24)
    drain = Drain(DrainNeeds(spool, store, tmp_path / "spool", lambda *_: 0, time.time))
    run(*breaks)
    for name in ("a", "b"):
        spool.closed(record(name))
    assert not drain.turn()
    assert (drain.counts.num_refused, drain.is_behind) == (0, True)
    run(mends)
    assert drain.turn()
    assert sorted(each.id for each in store.page(RecordQuery()).records) == ["a", "b"]
    database.close()
    run("DROP OWNED BY writer", "DROP ROLE writer")
    owner.close()
