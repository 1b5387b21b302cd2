"""Nothing that a client sent or the model said stands in the log; ids do."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from headway.service.gateway.settings import GatewaySettings
from headway.service.observe import log
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    NATIVE,
    FakeReplica,
    close,
    run,
    say_hello,
    site,
    until,
)

MARK, KEY = "PROMPT-7Q", "sk-MARK-7Q"
MARKED = {"role": "user", "content": MARK}


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What is logged, by every logger of the process; at the default level unless told."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure(getattr(request, "param", "info"), stream=stream)
    clients = [logging.getLogger(each) for each in ("httpx", "httpcore")]
    levels = [each.level for each in clients]
    for client in clients:  # the test's own, which logs its own URLs
        client.setLevel(logging.WARNING)
    yield stream
    for client, before in zip(clients, levels, strict=True):
        client.setLevel(before)
    root.handlers[:] = handlers
    root.setLevel(level)


BODIES: list[tuple[str, Any]] = [
    (CHAT, {"messages": [MARKED]}),
    (CHAT, {"messages": [MARKED], "stream": True}),
    (CHAT, {"messages": [MARKED], "stop": [MARK], "user": MARK, "metadata": {"a": MARK}}),
    (CHAT, {"messages": MARK}),
    (CHAT, {"messages": [MARKED], "stop": {MARK: MARK}}),
    (CHAT, {"messages": [MARKED], "temperature": MARK}),
    (CHAT, {"messages": [{"role": "user", "content": MARK * 200}]}),
    (CHAT, {"messages": [MARKED], "tools": [{"type": "function", "function": {"name": MARK}}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "url": MARK}]}]}),
    (CHAT, {"messages": [MARKED], "model": MARK}),
    (COMPLETIONS, {"prompt": MARK, "echo": True}),
    (NATIVE, {"messages": [MARKED]}),
    (CHAT, b'{"messages": "' + MARK.encode()),
]


@pytest.mark.parametrize("written", ["info", "debug"], indirect=True)
def test_markers_and_keys_are_in_no_log_line_security_logs_01(written: io.StringIO) -> None:
    def fail(replica: FakeReplica, request: Any) -> None:
        raise RuntimeError(MARK)

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(settings=GatewaySettings(api_key=(KEY,)), replica=replica) as here:
            keys = {"Authorization": f"Bearer {KEY}", "X-API-Key": KEY}
            for path, body in BODIES:
                sent = {"content": body} if isinstance(body, bytes) else {"json": body}
                answer = await here.client.post(f"{path}?api_key={KEY}", headers=keys, **sent)
                assert answer.status_code < 500
                named = f"request_id={answer.headers['x-request-id']}"
                await until(lambda named=named: named in written.getvalue())  # type: ignore[misc]
                # Only the name of a model that is not here is told back, cut to 80 characters.
                if answer.status_code >= 400 and answer.json()["error"]["param"] != "model":
                    assert MARK not in answer.text
            wrong = {"Authorization": f"Bearer {KEY}x"}
            assert (await here.client.post(CHAT, json={}, headers=wrong)).status_code == 401
            replica.script = fail
            failed = await here.client.post(CHAT, json=BODIES[0][1], headers=keys)
            assert failed.status_code == 500
            replica.script = None
            _, writer = await here.send(CHAT, BODIES[1][1], keys)
            name = (await here.calls(len(replica.ids)))[-1]
            replica.say(name, MARK)
            await close(writer)
            await until(lambda: "outcome=cancelled" in written.getvalue())

    run(scenario())
    text = written.getvalue()
    assert MARK not in text
    assert KEY not in text
    assert "request_failed" in text


def test_a_request_is_one_line_with_its_outcome_and_its_tokens(written: io.StringIO) -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(replica=replica) as here:
            await here.client.post(CHAT, json=BODIES[0][1], headers={"X-Request-Id": "abc"})

    run(scenario())
    (line,) = written.getvalue().splitlines()
    for part in ("request_finished", "request_id=abc", "outcome=ok", "completion_tokens=3"):
        assert part in line
