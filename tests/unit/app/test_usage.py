"""`headway usage` and `headway explain`, on a database and at a server."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.app.cli import main
from headway.core.messages.record import Route
from headway.service.gateway.assemble import Access
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store import usage
from headway.service.store.database import file_url, open_database
from headway.service.store.usage import SqlUsage
from headway.service.store.usage_memory import MemoryUsage
from tests.unit.service.gateway.fakes import run, site
from tests.unit.service.store.records import NOON, record

KEY = "an-admin-key-of-the-operator"
SOME = [
    record("a", cost=1, shown_id="team/job:a+1"),
    record("b", cost=2, tenant="beta", route=Route(model="other")),
    record("c", cost=4, began=NOON + 86400),
]
Headway = Callable[..., int]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of whoever runs the tests must not count."""
    for name in ("DATABASE_URL", "DATA_DIR", "ADMIN_KEY", "CONFIG"):
        monkeypatch.delenv(f"HEADWAY_{name}", raising=False)


@pytest.fixture(params=["database", "server"])
def headway(request: pytest.FixtureRequest, tmp_path: Path) -> Headway:
    """Runs a command where the records are; its exit code."""
    if request.param == "database":
        database = open_database(file_url(tmp_path / "headway.db"))
        SqlUsage(database).add(SOME)
        database.close()
        return lambda *arguments: main([*arguments, "--data-dir", str(tmp_path)])

    def at_a_server(*arguments: str) -> int:
        codes: list[int] = []

        async def scenario() -> None:
            store = MemoryUsage()
            store.add(SOME)
            pages = UsagePages(MemoryLedger(store))
            access = Access(admin_keys=(KEY,), admin_routes=pages.routes())
            async with site(access=access) as here:
                place = ["--url", f"http://127.0.0.1:{here.port}", "--admin-key", KEY]
                codes.append(await asyncio.to_thread(main, [*arguments, *place]))

        run(scenario())
        return codes[0]

    return at_a_server


@pytest.mark.spec("A9")
def test_usage_is_printed_as_a_table_with_a_total(
    headway: Headway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway("usage", "--by", "tenant,model") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["tenant", "model", "requests", "ok"]
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:-1]] == [
        ("acme", "m", "2", "5"),
        ("beta", "other", "1", "2"),
    ]
    assert (lines[-1][0], lines[-1][1], lines[-1][-1]) == ("total", "3", "7")


def test_usage_is_printed_as_csv_and_as_json(
    headway: Headway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway("usage", "--by", "day", "--from", "2026-12", "--csv") == 0
    assert [line.split(",")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["day", "requests"],
        ["2026-12-01", "1"],
    ]
    assert headway("usage", "--by", "", "--to", "2026-12-01", "--tenant", "acme", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group_by"], found["data"][0]["cost_micros"]) == ([], 1)
    assert headway("usage", "--by", "", "--csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["requests", "3"]
    assert headway("usage", "--by", "", "--tenant", "nobody", "--csv") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert headway("usage", "--key", "nobody's") == 0
    assert capsys.readouterr().out == "no request is recorded for this\n"


@pytest.mark.spec("M6")
def test_a_request_is_explained_in_a_paragraph_or_whole(
    headway: Headway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway("explain", "team/job:a+1") == 0
    text = capsys.readouterr().out
    assert text.startswith("This request to chat_completions came from tenant 'acme'")
    assert headway("explain", "a", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] + "\n" == text
    assert found["request"]["id"] == "a"
    assert headway("explain", "nobody") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["usage", "--data-dir", "none"], "has no database"),
        (["explain", "a", "--data-dir", "none"], "has no database"),
        (["usage", "--by", "prompt", "--data-dir", str(tmp_path)], "--by: must be of tenant"),
        (["usage", "--from", "soon", "--data-dir", str(tmp_path)], "--from: must be a date"),
        (["usage", "--from", "2026-12", "--to", "2026-11"], "--to: must be later"),
        (["usage", "--url", "http://127.0.0.1:9"], "--admin-key"),
        (["explain", "a", "--url", "http://127.0.0.1:9", "--admin-key", KEY], "no server answers"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [["usage"], ["explain", "a"], ["admin", "tenant", "list"], ["admin", "tenant", "show", "acme"]],
)
def test_asking_where_nothing_is_makes_no_database_there(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--data-dir", str(tmp_path / "mistyped")]) == 2
    error = capsys.readouterr().err
    assert f"there is no database {tmp_path}/mistyped/headway.db" in error
    assert "--data-dir" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("A9")
def test_more_groups_than_an_answer_holds_are_said_and_not_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(file_url(tmp_path / "headway.db"))
    SqlUsage(database).add(SOME)
    database.close()
    monkeypatch.setattr(usage, "MAX_ROWS", 2)
    place = ["--data-dir", str(tmp_path)]
    assert main(["usage", "--by", "tenant", *place]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["usage", "--by", "tenant,day", *place]) == 2
    said = capsys.readouterr()
    assert "more than 2 groups" in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
