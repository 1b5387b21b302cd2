import os
import sys
from pathlib import Path

import pytest

from benchmarks import servers
from benchmarks.servers import (
    ServerFailedError,
    group_lives,
    memory_mib,
    reason_in,
    started,
    tree,
)
from tests.ports import free_port

START_S = 60.0


def test_a_server_is_ended_with_all_its_processes_even_those_that_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STOP_S", 0.3)
    port = free_port()
    serve = f"{sys.executable} -m http.server {port} --bind 127.0.0.1 --directory {tmp_path}"
    command = ["sh", "-c", f"trap '' TERM; sleep 600 & exec {serve}"]
    url = f"http://127.0.0.1:{port}"
    with started(command, url, "/", tmp_path / "log", START_S) as server:
        group = server.process.pid
        assert group_lives(group)
        assert len(tree(group)) == 2
        memory = memory_mib(group)
        assert 0 < memory["pss_mib"] <= memory["rss_mib"]
        assert server.ready_s < START_S
    assert not group_lives(group)


def test_a_bad_start_is_one_line_with_the_servers_own_reason(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo loading; echo 'Error: port 80 in use'; echo bye; exit 3"]
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(ServerFailedError, match=r"ended with status 3: Error: port 80 in use$"),
        started(command, url, "/", tmp_path / "log", START_S),
    ):
        pass


def test_a_server_that_never_answers_is_ended_too(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(ServerFailedError, match=r"not ready within 0\.2 s: it said nothing"),
        started(["sleep", "600"], url, "/", tmp_path / "log", 0.2),
    ):
        pass
    assert "sleep" not in children_of_this_process()


def children_of_this_process() -> set[str]:
    return {
        Path(f"/proc/{pid}/comm").read_text().strip()
        for pid in tree(os.getpid())
        if Path(f"/proc/{pid}/comm").exists()
    }


def test_the_last_fault_of_an_output_is_its_reason() -> None:
    assert reason_in("a\nFailed to bind\nstopping\n\n") == "Failed to bind"
    assert reason_in("a\nb\n") == "b"
    assert reason_in("") == "it said nothing"
