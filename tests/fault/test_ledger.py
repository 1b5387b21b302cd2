"""The ledger against the client's own sum, while clients leave and the gateway is killed."""

import asyncio
import json
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO

import psutil
import pytest

from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import RecordQuery, UsageQuery
from headway.service.store.database import file_url, open_database
from headway.service.store.usage import SqlUsage
from tests.fault.processes import make_child_importable
from tests.services.servers import free_port
from tests.soak.scale import scaled

WHOLE = 5000
SMALL = 500
WORKERS = 60
STEP_S = 0.004
STREAMED = 0.8
ABORTED = 0.1  # of all; only streams are left in the middle
KILLS = 2
DEADLINE_S = 60.0
CONTENT = re.compile(rb'"content":"(x+)"')
TEXT_AT_ONCE = 65536


@dataclass
class Heard:
    """What one client knows of its request."""

    num_tokens: int = 0  # received
    prompt_tokens: int | None = None  # as a complete answer in one piece says
    is_complete: bool = False
    has_left: bool = False


class Server:
    """The gateway's process, which may be killed and started again on its port."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_port()
        self._arguments = [str(data_dir), str(self.port), str(STEP_S)]
        self.process: Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it serves."""
        command = [sys.executable, "-m", "tests.fault.ledger_server", *self._arguments]
        self.process = Popen(command, stdout=PIPE)
        out: IO[bytes] | None = self.process.stdout
        assert out is not None
        assert out.readline().strip() == str(self.port).encode()

    def end(self, number: signal.Signals) -> None:
        """Signal it and wait."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(DEADLINE_S)
            assert process.stdout is not None
            process.stdout.close()

    def memory(self) -> int:
        """Its resident bytes."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def server(data_dir: Path) -> Iterator[Server]:
    """Started, and ended whatever happens."""
    here = Server(data_dir)
    here.start()
    try:
        yield here
    finally:
        here.end(signal.SIGKILL)


async def ask(port: int, name: str, chance: random.Random) -> Heard:
    """One request, as a client that counts what it gets; some leave in the middle."""
    num_tokens, is_stream = chance.randint(1, 40), chance.random() < STREAMED
    leaves_after = chance.randint(0, num_tokens) if chance.random() < ABORTED / STREAMED else None
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "h" * chance.randint(1, 50)}],
        "max_tokens": num_tokens,
        "stream": is_stream,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: {name}\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:  # it is being started again
            await asyncio.sleep(0.05)
    writer.write(head.encode() + data)
    heard = Heard()
    got = await _receive(reader, writer, heard, leaves_after if is_stream else None)
    if is_stream:
        heard.num_tokens = sum(len(match) for match in CONTENT.findall(got))
        heard.is_complete = b"data: [DONE]" in got
    elif got.endswith(b"}"):
        usage = json.loads(got.partition(b"\r\n\r\n")[2])["usage"]
        heard.num_tokens, heard.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        heard.is_complete = True
    writer.close()
    return heard


async def _receive(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    heard: Heard,
    leaves_after: int | None,
) -> bytes:
    """All bytes until the end; leaving is closing one's own side, and reading on."""
    got = b""
    try:
        while data := await reader.read(TEXT_AT_ONCE):
            got += data
            num_tokens = sum(len(match) for match in CONTENT.findall(got))
            if leaves_after is not None and not heard.has_left and num_tokens >= leaves_after:
                heard.has_left = True
                writer.write_eof()
    except OSError:  # the gateway was killed
        return got
    return got


async def load(here: Server, names: Sequence[str], done: Callable[[int], None]) -> dict[str, Heard]:
    """Every name is one request; `done` is told how many have ended."""
    heard: dict[str, Heard] = {}
    left = iter(names)

    async def work(seed: int) -> None:
        chance = random.Random(seed)
        for name in left:
            heard[name] = await ask(here.port, name, chance)
            done(len(heard))

    await asyncio.gather(*(work(seed) for seed in range(WORKERS)))
    return heard


def recorded(data_dir: Path) -> dict[str, RequestRecord]:
    """All records by the client's names; fails where there are two of one."""
    database = open_database(file_url(data_dir / "headway.db"))
    try:
        store, found, query = SqlUsage(database), {}, RecordQuery(limit=1000)
        while True:
            page = store.page(query)
            for record in page.records:
                assert record.shown_id not in found, f"{record.shown_id} has two records"
                found[record.shown_id] = record
            if page.next is None:
                break
            query = RecordQuery(limit=1000, before=page.next)
        (total,) = store.usage(UsageQuery(group_by=()))
        assert total.requests == len(found)
        assert total.sent_tokens == sum(record.sent_tokens for record in found.values())
        assert total.cost == sum(record.cost for record in found.values())
        return found
    finally:
        database.close()


def check_one(name: str, heard: Heard, record: RequestRecord | None) -> None:
    """What the ledger says of one request against what its client knows."""
    if record is None:  # it was killed before it was read, and nothing came back
        assert heard == Heard(), name
        return
    assert record.sent_tokens <= heard.num_tokens <= record.sent_tokens + record.unsure_tokens, name
    if heard.is_complete and not heard.has_left:
        assert record.outcome == "ok" or record.unsure_tokens, f"{name}: {record.outcome}"
    if record.outcome == "ok":
        assert record.completion_tokens == record.sent_tokens == heard.num_tokens
        assert record.cost == 100 * record.prompt_tokens + record.completion_tokens
        assert heard.prompt_tokens in (None, record.prompt_tokens)
    elif record.outcome == "cancelled":
        assert heard.has_left, name
        assert record.completion_tokens >= record.sent_tokens
    else:
        assert record.outcome == "lost", f"{name}: {record.outcome}"
        assert not (heard.is_complete and record.unsure_tokens == 0), name
    assert record.unsure_tokens == 0 or record.outcome == "lost"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_child_importable(lambda name, value: monkeypatch.setenv(name, value))


@pytest.mark.spec("A9")
@pytest.mark.spec("M5")
@pytest.mark.soak
def test_the_ledger_equals_the_clients_own_sum_over_aborts_and_kills(tmp_path: Path) -> None:
    num_requests = max(SMALL, scaled(WHOLE))
    kills = [num_requests * (i + 1) // (KILLS + 1) for i in range(KILLS)]
    memory: list[int] = []
    with server(tmp_path) as here:

        def done(count: int) -> None:
            if kills and count >= kills[0]:
                kills.pop(0)
                here.end(signal.SIGKILL)
                here.start()
            elif not kills and count % (num_requests // 20) == 0:
                memory.append(here.memory())

        names = [f"client-{i}" for i in range(num_requests)]
        heard = asyncio.run(load(here, names, done))
        here.end(signal.SIGTERM)
    found = recorded(tmp_path)
    assert set(found) <= set(heard)
    for name in names:
        check_one(name, heard[name], found.get(name))
    outcomes = Counter(record.outcome for record in found.values())
    unsure = sum(record.unsure_tokens for record in found.values())
    told = sum(each.num_tokens for each in heard.values())
    sent = sum(record.sent_tokens for record in found.values())
    assert outcomes["cancelled"] > num_requests * ABORTED / 2
    assert 0 < outcomes["lost"] <= KILLS * WORKERS
    assert sent <= told <= sent + unsure
    assert unsure <= KILLS * WORKERS  # at most what was in its write when the gateway died
    assert not list((tmp_path / "spool").iterdir())
    if num_requests == WHOLE:
        half = len(memory) // 2
        assert max(memory[half:]) <= 1.03 * max(memory[:half]), memory


def test_a_gateway_killed_again_and_again_records_every_request_once(tmp_path: Path) -> None:
    heard: dict[str, Heard] = {}
    num_rounds = 5
    with server(tmp_path) as here:
        for number in range(num_rounds):
            names = [f"round-{number}-{i}" for i in range(WORKERS)]

            def done(count: int) -> None:
                if count == WORKERS // 2:
                    here.end(signal.SIGKILL)
                    here.start()

            heard |= asyncio.run(load(here, names, done))
        here.end(signal.SIGTERM)
    found = recorded(tmp_path)
    for name, each in heard.items():
        check_one(name, each, found.get(name))
    assert len(found) > 0.9 * len(heard)
    assert sum(record.outcome == "lost" for record in found.values()) > 0
