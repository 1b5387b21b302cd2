"""`headway admin` on a database, and at a server."""

import asyncio
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.app import cli
from headway.app.admin_show import show
from headway.core.tenancy.account import read_key
from headway.service.gateway.accounts import Accounts, call_here
from headway.service.gateway.assemble import Access
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import file_url, open_database
from tests.unit.service.gateway.fakes import site

KEY = "an-admin-key-of-the-operator"


class Office:
    """Runs `headway admin` at one place."""

    def __init__(self, *where: str) -> None:
        self._where = where

    def __call__(self, *arguments: str) -> int:
        """The exit code."""
        return cli.main(["admin", *arguments, *self._where])


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of whoever runs the tests must not count."""
    for name in ("DATABASE_URL", "DATA_DIR", "ADMIN_KEY", "CONFIG"):
        monkeypatch.delenv(f"HEADWAY_{name}", raising=False)


@pytest.fixture(params=["sqlite", "postgres", "http"])
def admin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    """The command over a fresh store."""
    if request.param == "sqlite":
        yield Office("--data-dir", str(tmp_path / "data"))
    elif request.param == "postgres":
        yield Office("--database-url", request.getfixturevalue("postgres_url"))
    else:
        with running_site() as url:
            yield Office("--url", url, "--admin-key", KEY)


@contextmanager
def running_site(*, has_admin: bool = True) -> Iterator[str]:
    """URL of a gateway with /admin, in a thread of its own."""
    urls: queue.Queue[str] = queue.Queue()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        access = Access(store=MemoryAccounts(), admin_keys=(KEY,) if has_admin else ())
        async with site(access=access) as here:
            urls.put(f"http://127.0.0.1:{here.port}")
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield urls.get(timeout=30)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def test_a_tenant_is_made_and_changed(admin: Office, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("tenant", "create", "acme", "--class", "vip", "--tokens-per-minute", "9") == 0
    assert "acme" in capsys.readouterr().out
    assert admin("tenant", "set", "acme", "--weight", "2", "--model", "m", "--json") == 0
    changed = said(capsys)
    assert (changed["weight"], changed["models"], changed["class"]) == (2.0, ["m"], "vip")
    assert changed["limits"]["tokens_per_minute"] == 9
    assert admin("tenant", "set", "acme", "--tokens-per-minute", "none", "--model", "all") == 0
    capsys.readouterr()
    assert admin("tenant", "show", "acme", "--json") == 0
    shown = said(capsys)
    assert shown["limits"]["tokens_per_minute"] is None
    assert shown["models"] == []


def test_a_key_is_shown_once_rotated_and_revoked(
    admin: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme") == 0
    capsys.readouterr()
    assert admin("key", "create", "acme", "--label", "ci", "--expires-in", "90d") == 0
    printed, beside = capsys.readouterr()
    key = read_key(printed.strip())
    assert key is not None
    assert f"only time that the key is shown. Key {key.id} of tenant acme: expires" in beside
    assert admin("key", "list", "--json") == 0
    listed = said(capsys)["data"]
    assert [(each["id"], each["label"]) for each in listed] == [(key.id, "ci")]
    assert listed[0]["expires"] - listed[0]["created"] == 90 * 86400
    assert admin("key", "rotate", key.id, "--overlap", "30m", "--json") == 0
    rotated = said(capsys)
    assert read_key(rotated["key"]) is not None
    assert admin("key", "revoke", key.id) == 0
    assert f"{key.id} of tenant acme: revoked" in capsys.readouterr().out
    assert admin("key", "list", "acme") == 0
    table = capsys.readouterr().out
    assert key.id in table
    assert key.secret not in table


def test_a_tenant_is_disabled_exported_deleted_and_erased(
    admin: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme") == 0
    assert admin("key", "create", "acme") == 0
    capsys.readouterr()
    assert admin("tenant", "disable", "acme") == 0
    assert "disabled" in capsys.readouterr().out
    assert admin("tenant", "enable", "acme") == 0
    assert admin("tenant", "list") == 0
    assert "enabled" in capsys.readouterr().out
    assert admin("tenant", "export", "acme") == 0
    assert len(said(capsys)["tables"]["tenant_keys"]) == 1
    assert admin("audit", "list", "--tenant", "acme", "--limit", "3") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert admin("tenant", "delete", "acme") == 1
    assert "--yes" in capsys.readouterr().err
    assert admin("tenant", "delete", "acme", "--yes") == 0
    assert admin("tenant", "erase", "acme", "--yes") == 0
    assert "erased tenant acme" in capsys.readouterr().out
    assert admin("tenant", "list", "--json") == 0
    assert said(capsys)["data"] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("tenant", "show", "nobody"), "no tenant 'nobody'"),
        (("tenant", "create", "a b"), "name has"),
        (("tenant", "set", "acme"), "nothing to set"),
        (("key", "create", "nobody"), "no tenant 'nobody'"),
        (("key", "revoke", "none"), "no key"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_1(
    admin: Office, arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "somebody") == 0  # there is a database now
    capsys.readouterr()
    assert admin(*arguments) == 1
    problem = capsys.readouterr().err
    assert reason in problem
    assert problem.count("\n") == 1


def test_a_key_made_on_the_database_is_good_at_a_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--data-dir", str(tmp_path))
    assert cli.main(["admin", "tenant", "create", "acme", *where]) == 0
    capsys.readouterr()
    assert cli.main(["admin", "key", "create", "acme", "--json", *where]) == 0
    key = said(capsys)["key"]
    database = open_database(file_url(tmp_path / "headway.db"))

    async def scenario() -> None:
        accounts = Accounts(SqlAccounts(database), call_here, lambda _: None)
        await accounts.load()
        principal = await accounts.check(key)
        assert principal is not None
        assert principal.tenant.name == "acme"
        accounts.close()

    asyncio.run(scenario())
    database.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--data-dir", "none"), "has no database"),
        (("--url", "http://127.0.0.1:1"), "--admin-key"),
        (("--url", "http://127.0.0.1:1", "--admin-key", KEY), "no server answers"),
        (("--database-url", "mysql://me:hush@h/x"), "must be sqlite:///FILE or postgresql://"),
    ],
)
def test_without_a_place_to_work_at_the_exit_code_is_2(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["admin", "tenant", "list", *arguments]) == 2
    problem = capsys.readouterr().err
    assert reason in problem
    assert "hush" not in problem
    assert KEY not in problem


def test_a_server_without_admin_is_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    with running_site(has_admin=False) as url:
        code = cli.main(["admin", "tenant", "list", "--url", url, "--admin-key", KEY])
    assert code == 1
    assert "--admin-key" in capsys.readouterr().err


def test_a_gateway_without_a_database_imports_no_library_of_one() -> None:
    program = (
        "import sys, headway.app.cli, headway.app.gateway\n"
        "names = ('sqlalchemy', 'alembic', 'psycopg', 'redis', 'jwt')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_times_are_read_with_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["admin", "key", "create", "acme", "--expires-in", "soon"])
    assert re.search(r"must be a time such as 90d", capsys.readouterr().err)


def test_the_life_of_a_key_has_a_bound_within_the_calendar(
    admin: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme") == 0
    capsys.readouterr()
    assert admin("key", "create", "acme", "--expires-in", "36501d") == 1
    assert "at most 3153600000 seconds" in capsys.readouterr().err
    assert admin("key", "create", "acme", "--expires-in", "0") == 1
    assert "got 0." in capsys.readouterr().err
    assert admin("key", "create", "acme", "--expires-in", "36500d") == 0
    assert admin("key", "list") == 0
    assert "expires 21" in capsys.readouterr().out


def test_a_date_beyond_the_calendar_does_not_end_a_list() -> None:
    key = {"id": "a", "tenant": "t", "label": "", "created": 0, "revoked": None}
    shown = show("key", "list", {"data": [{**key, "expires": 10**17}]}, as_json=False)
    assert "expires after the year 9999" in shown
    shown = show("key", "list", {"data": [{**key, "expires": 253402300799}]}, as_json=False)
    assert "expires 9999-12-31 23:59:59Z" in shown


@pytest.mark.parametrize("verb", ["revoke", "rotate"])
def test_a_whole_key_in_place_of_its_id_is_not_repeated(
    admin: Office, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "x2" * 20
    assert admin("tenant", "create", "acme") == 0
    assert admin("key", verb, f"hw-abcdefghijklmnop-{secret}") == 1
    problem = capsys.readouterr().err
    assert "give 'abcdefghijklmnop' alone" in problem
    assert secret not in problem


@pytest.mark.parametrize("name", ["a/b", "", "a?x=1", "тест", "a" * 65])
def test_what_is_no_name_of_a_tenant_names_no_other_path(
    admin: Office, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme") == 0
    assert admin("key", "list", name) == 1
    assert admin("tenant", "show", name) == 1
    assert f"There is no tenant {name[:80]!r}." in capsys.readouterr().err


def test_every_model_and_one_more_is_refused(
    admin: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme", "--model", "all", "--model", "m") == 1
    assert "give it alone" in capsys.readouterr().err


def test_a_weight_that_is_no_number_is_refused_the_same_everywhere(
    admin: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("tenant", "create", "acme", "--weight", "nan") == 1
    assert "'weight' must be a finite number" in capsys.readouterr().err
    assert admin("tenant", "create", "acme", "--weight", "1e9") == 1
    assert "0.001 to 1000, got 1e+09" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (("--url", "http://[::1", "--admin-key", KEY), "--url: 'http://[::1' is no URL"),
        (("--url", "http://127.0.0.1:99999", "--admin-key", KEY), "99999"),
        (("--url", "http://127.0.0.1:1", "--admin-key", "ключ" * 4), "--admin-key: must"),
        (("--url", "http://127.0.0.1:1", "--admin-key", "short"), "--admin-key: must have"),
    ],
)
def test_what_cannot_be_sent_is_one_line_and_status_2(
    where: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["admin", "tenant", "list", *where]) == 2
    problem = capsys.readouterr().err
    assert reason in problem
    assert problem.count("\n") == 1
