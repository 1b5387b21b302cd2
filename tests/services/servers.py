"""Throw-away PostgreSQL and Redis servers on free loopback ports, as children of the tests.

What is committed survives the death of a process, but not of the machine: for tests only. They end
with the process that started them, also when it is killed.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.ports import free_port as free_port  # for those who start servers here

START_S = 60.0
POLL_S = 0.02
FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB")
NEED = "{} is missing, which these tests need; run tools/services.sh, which says how to install it"


class Server:
    """A server process that can be stopped and started again on the same port."""

    def __init__(self, command: Sequence[str], log: Path, answers: Callable[[], object]) -> None:
        self._command = command
        self._log = log
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return once it answers; fails with its log when it does not."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, cwd="/")
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._answers()
                return
            except (psycopg.OperationalError, redis.RedisError):
                is_over = self._process.poll() is not None or time.monotonic() > deadline
                if is_over:
                    self.stop()
                    pytest.fail(f"{self._command[-1]} did not start:\n{self._log.read_text()}")
            time.sleep(POLL_S)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Signal it, and return when it is gone; harmless when it is."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Postgres(Server):
    """`fresh` makes databases."""

    def __init__(self, folder: Path) -> None:
        bin_dir, port = postgres_bin(), free_port()
        data, run = folder / "data", folder / "run"
        run.mkdir(parents=True)
        as_user: tuple[str, ...] = ("setpriv", "--pdeathsig", "INT")
        if os.getuid() == 0:  # it refuses to run as root
            user = pwd.getpwnam("postgres")
            as_user += ("--reuid", "postgres", "--regid", "postgres", "--init-groups")
            for path in (folder, run):
                os.chown(path, user.pw_uid, user.pw_gid)
        made = subprocess.run(
            [
                *(
                    *as_user,
                    str(bin_dir / "initdb"),
                    "-D",
                    str(data),
                    "-U",
                    "headway",
                    "--auth=trust",
                ),
                *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        if made.returncode != 0:
            pytest.fail(f"initdb failed:\n{made.stderr}")
        options = [part for each in FAST for part in ("-c", each)]
        self.port = port
        command = [
            *(*as_user, str(bin_dir / "postgres"), "-D", str(data)),
            *("-h", "127.0.0.1", "-p", str(port), "-k", str(run), *options),
        ]
        super().__init__(command, folder / "postgres.log", lambda: self._run("SELECT 1"))

    def url_of(self, database: str) -> str:
        """URL of one of its databases."""
        return f"postgresql://headway@127.0.0.1:{self.port}/{database}"

    def fresh(self, name: str) -> str:
        """URL of a new, empty database of that name."""
        self._run(f'CREATE DATABASE "{name}"')
        return self.url_of(name)

    def drop(self, name: str) -> None:
        """Remove a database, also while somebody is connected."""
        self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            connection.execute(statement)


class Redis(Server):
    """Keeps nothing on disk; `url` is of its database 0."""

    def __init__(self, folder: Path, *options: str, config: Path | None = None) -> None:
        """options  of redis-server, beside those that all have; config: a file of more"""
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        keep_nothing = ("--save", "", "--appendonly", "no") if config is None else ()
        command = [
            *("setpriv", "--pdeathsig", "KILL", redis_server()),
            *(() if config is None else (str(config),)),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder)),
            *(*keep_nothing, *options),
        ]
        super().__init__(command, folder / "redis.log", self._ping)

    def empty(self) -> None:
        """Forget everything."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def _ping(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.ping()


class RedisNodes:
    """A Redis Cluster of three nodes, each with a third of the slots and no replica."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Redis(folder, *self._options(folder, number)) for number in range(3)]

    @property
    def url(self) -> str:
        """Of one of them."""
        return self.nodes[0].url

    def start(self) -> None:
        """Return once every node knows every slot."""
        for node in self.nodes:
            node.start()
        self._command(0, "CLUSTER", "ADDSLOTSRANGE", "0", "5460")
        self._command(1, "CLUSTER", "ADDSLOTSRANGE", "5461", "10922")
        self._command(2, "CLUSTER", "ADDSLOTSRANGE", "10923", "16383")
        for node, bus in zip(self.nodes[1:], self._buses[1:], strict=True):
            self._command(0, "CLUSTER", "MEET", "127.0.0.1", str(node.port), str(bus))
        deadline = time.monotonic() + START_S
        while not all(self._is_whole(number) for number in range(3)):
            assert time.monotonic() < deadline, "the nodes do not find each other"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End all."""
        for node in self.nodes:
            node.stop(signal.SIGTERM)

    def _options(self, folder: Path, number: int) -> list[str]:
        self._buses = [*getattr(self, "_buses", []), free_port()]
        own = folder / f"node{number}"
        own.mkdir()
        return [
            *("--cluster-enabled", "yes", "--cluster-port", str(self._buses[number])),
            *("--dir", str(own), "--cluster-node-timeout", "1000"),
        ]

    def _is_whole(self, number: int) -> bool:
        told = self._command(number, "CLUSTER", "INFO")
        return b"cluster_state:ok" in told and b"cluster_known_nodes:3" in told

    def _command(self, number: int, *words: str) -> bytes:
        with redis.Redis.from_url(self.nodes[number].url) as client:
            client.set_response_callback(" ".join(words[:2]), bytes)
            found = client.execute_command(*words)
        assert isinstance(found, bytes)
        return found


class Sentinels:
    """A primary and a replica of it, and three sentinels that replace a primary that is gone."""

    SERVICE = "limits"

    def __init__(self, folder: Path, password: str = "") -> None:
        """password  of both Redis, and of the sentinels themselves"""
        self._password = password
        secret = ("--requirepass", password, "--masterauth", password) if password else ()
        fast = ("--repl-diskless-sync-delay", "0", *secret)
        one, two = (_made(folder / name) for name in ("one", "two"))
        self.primary = Redis(one, *fast)
        self.replica = Redis(two, *fast, "--replicaof", f"127.0.0.1 {self.primary.port}")
        if password:
            for each in (self.primary, self.replica):
                each.url = each.url.replace("//", f"//:{password}@")
        self.sentinels = [self._sentinel(_made(folder / f"sentinel{n}")) for n in range(3)]

    @property
    def url(self) -> str:
        """As Headway takes it."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        account, own = "", ""
        if self._password:
            account, own = f":{self._password}@", f"?sentinel_password={self._password}"
        return f"redis+sentinel://{account}{places}/{self.SERVICE}/0{own}"

    def start(self) -> None:
        """Return once the replica follows, and each sentinel knows it and the other two."""
        for server in (self.primary, self.replica, *self.sentinels):
            server.start()
        deadline = time.monotonic() + START_S
        while not (self.follows(self.replica) and all(map(self._knows_all, self.sentinels))):
            assert time.monotonic() < deadline, "they do not find each other"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End all."""
        for server in (*self.sentinels, self.replica, self.primary):
            server.stop(signal.SIGTERM)

    def follows(self, server: Redis) -> bool:
        """Whether it is a replica that has all of its primary."""
        try:
            told = _info(server.url, "replication")
        except redis.ConnectionError:  # one that is made a replica ends its connections
            return False
        return (told["role"], told.get("master_link_status")) == ("slave", "up")

    def replace(self) -> None:
        """Have the sentinels make the other one the primary, with both alive."""
        with redis.Redis.from_url(self.sentinels[0].url) as client:
            client.execute_command("SENTINEL FAILOVER", self.SERVICE)

    def _sentinel(self, folder: Path) -> Redis:
        file, name = folder / "sentinel.conf", self.SERVICE
        lines = [
            f"sentinel monitor {name} 127.0.0.1 {self.primary.port} 2",
            f"sentinel down-after-milliseconds {name} 1000",
            f"sentinel failover-timeout {name} 5000",
        ]
        if self._password:
            lines += [f"sentinel auth-pass {name} {self._password}"]
            lines += [f"requirepass {self._password}"]
        file.write_text("\n".join(lines) + "\n")
        server = Redis(folder, "--sentinel", config=file)
        if self._password:
            server.url = server.url.replace("//", f"//:{self._password}@")
        return server

    def _knows_all(self, sentinel: Redis) -> bool:
        told = _info(sentinel.url, "sentinel")["master0"]
        return (told["status"], told["slaves"], told["sentinels"]) == ("ok", 1, 3)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _info(url: str, section: str) -> dict[str, Any]:
    """What a Redis tells of itself."""
    with redis.Redis.from_url(url) as client:
        found: dict[str, Any] = client.info(section)
    return found


@contextmanager
def redis_sentinels(password: str = "") -> Iterator[Sentinels]:
    """Running until the block ends."""
    with _folder("redis-sentinel") as folder:
        found = Sentinels(folder, password)
        try:
            found.start()
            yield found
        finally:
            found.stop()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL until the block ends."""
    with _folder("postgres") as folder:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def redis_at_work() -> Iterator[Redis]:
    """A running Redis until the block ends; a test that stops it needs one of its own."""
    with _folder("redis") as folder:
        server = Redis(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGTERM)


@contextmanager
def redis_cluster() -> Iterator[RedisNodes]:
    """A running Redis Cluster until the block ends."""
    with _folder("redis-cluster") as folder:
        nodes = RedisNodes(folder)
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.stop()


def postgres_bin() -> Path:
    """Folder of the newest PostgreSQL's programs."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3])
    )
    on_path = shutil.which("initdb")
    if debian:
        return debian[-1].parent
    if on_path is None:
        pytest.fail(NEED.format("PostgreSQL"))
    return Path(on_path).resolve().parent


def redis_server() -> str:
    """Path of Redis."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        pytest.fail(NEED.format("Redis"))
    return found


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """A folder that other users may enter; pytest's own is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix=f"headway-{name}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
