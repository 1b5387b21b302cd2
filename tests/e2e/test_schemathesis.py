"""All that is described, with accounts on, and with a moody server behind, by schemathesis."""

import asyncio
import itertools
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.service.gateway.settings import GatewaySettings
from tests.clients.environments import environments
from tests.e2e.server import Server
from tests.e2e.test_real_clients import run
from tests.e2e.test_tenants import admin
from tests.unit.service.gateway.fakes import run as run_async
from tests.upstreams import Front, Pen, Seen, chunk, front, hello, upstream

TOOL = environments()["schemathesis"]
KEY = "an-admin-key-of-the-operator"
USUAL = ("status_code_conformance", "content_type_conformance")


def fuzz(
    folder: Path, document: str, url: str, headers: dict[str, str], *more: str
) -> tuple[int, str]:
    """How many calls schemathesis made, all as described; and what it said."""
    command = [str(TOOL.make().program("schemathesis")), "run", document, "--url", url]
    for name, value in headers.items():
        command += ["--header", f"{name}: {value}"]
    command += ["--seed", "11", "--request-timeout", "60", *more]
    told = run(command, folder, {})
    counts = re.search(r"(\d+) generated, (\d+) passed$", told, re.MULTILINE)
    assert counts is not None, told[-3000:]
    assert counts[1] == counts[2]
    return int(counts[1]), told


@pytest.mark.spec("A1")
def test_with_accounts_on_every_answer_is_described_for_good_and_bad_keys(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    server = start(
        "--data-dir", str(tmp_path / "data"), "--admin-key", KEY, "--max-model-len", "64"
    )
    here = ("--url", server.url, "--admin-key", KEY)
    admin("tenant", "create", "acme", *here)
    key = admin("key", "create", "acme", *here)["key"]
    document = tmp_path / "public.json"
    document.write_text(server.client.get("/openapi.json").text)
    checks = ("--checks", ",".join(("not_a_server_error", *USUAL)), "--phases", "fuzzing")
    good, _ = fuzz(
        tmp_path, str(document), server.url, {"Authorization": f"Bearer {key}"},
        *checks, "--max-examples", "6",
    )  # fmt: skip
    assert good > 40
    assert "/v1/connections/{id}/heartbeat" in document.read_text()
    for wrong in (f"Bearer {key[:-4]}aaaa", "Basic eDp5"):
        fuzz(
            tmp_path, str(document), server.url, {"Authorization": wrong},
            *checks, "--max-examples", "2",
        )  # fmt: skip
    # /admin: a tenant's key learns nothing but that it is wrong, and then to wait.
    described = server.client.get("/admin/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
    operator = tmp_path / "admin.json"
    operator.write_text(described.text)
    fuzz(
        tmp_path, str(operator), server.url, {"Authorization": f"Bearer {key}"},
        *checks, "--max-examples", "1",
    )  # fmt: skip
    usage = server.client.get("/admin/usage", headers={"Authorization": f"Bearer {KEY}"})
    assert usage.status_code in {200, 429}  # the guesses came from this address too
    assert server.status_of("/health") == 200


async def moods(turns: "itertools.cycle[int]", seen: Seen, pen: Pen) -> None:
    """A server that answers in another way each time."""
    match next(turns):
        case 0:
            await pen.answer(500, {"error": {"message": "no"}})
        case 1:
            await pen.answer(429, {"error": {"message": "busy"}}, "retry-after: 1")
        case 2:
            await pen.answer(200, b"\xff not json")
        case 3:
            pen.reset()
        case 4:
            await pen.answer(401, {"error": "who are you"})
        case 5:
            await pen.begin()
            await pen.events(chunk("Hel"))
            pen.reset()
        case 6:
            await pen.answer(422, {"detail": [{"loc": ["body"], "msg": "no"}]})
        case 7:
            await pen.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello")
        case _:
            await hello(seen, pen)


def test_whatever_a_server_behind_does_the_answer_is_a_described_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = itertools.cycle(range(12))

    async def script(seen: Seen, pen: Pen) -> None:
        await moods(turns, seen, pen)

    async def told(here: Front) -> int:
        document = tmp_path / "public.json"
        document.write_text(json.dumps((await here.client.get("/openapi.json")).json()))
        url = f"http://127.0.0.1:{here.port}"
        more = ("--checks", ",".join(USUAL), "--phases", "fuzzing", "--max-examples", "25")
        count, _ = await asyncio.to_thread(
            fuzz, tmp_path, str(document), url, {"Authorization": "Bearer key-a"}, *more
        )
        return count

    async def scenario() -> None:
        gateway = GatewaySettings(tenant=("a:standard:key-a",))
        async with upstream(script) as theirs, front([theirs], gateway=gateway) as here:
            assert await told(here) > 200
            assert len(theirs.seen) > 5  # not each time: its breaker opens

    with caplog.at_level(logging.ERROR):
        run_async(scenario())
    assert not [each.message for each in caplog.records if each.name.startswith("headway")]
