from pathlib import Path

import pytest

from headway.service.control.memory import (
    available_bytes,
    group_left,
    parse_meminfo,
    parse_own_groups,
)

GIB = 1024**3
MEMINFO = """MemTotal:       24689248 kB
MemFree:          512000 kB
MemAvailable:    8388608 kB
Buffers:          123456 kB
"""
STAT_V2 = f"anon 1000\nfile 5000\ninactive_file {GIB}\nactive_file 7\n"
UNLIMITED_V1 = "9223372036854771712\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_meminfo_gives_available_memory_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == 8 * GIB


@pytest.mark.parametrize("text", ["", "MemFree: 5 kB\n", "MemAvailable:\n", "MemAvailable: x kB"])
def test_meminfo_without_the_line_is_unknown(text: str) -> None:
    assert parse_meminfo(text) is None


def test_a_group_without_a_limit_has_no_bound() -> None:
    assert group_left("max\n", "500\n", STAT_V2) is None
    assert group_left("", "", "") is None


def test_pages_that_can_be_given_back_count_as_free() -> None:
    assert group_left(f"{4 * GIB}\n", f"{3 * GIB}\n", STAT_V2) == 2 * GIB
    assert group_left(f"{4 * GIB}\n", f"{3 * GIB}\n", "") == GIB
    assert group_left(f"{4 * GIB}\n", f"{3 * GIB}\n", f"total_inactive_file {GIB}\n") == 2 * GIB


def test_own_groups_are_read_for_both_versions() -> None:
    text = "12:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/user.slice/a:b\n"
    assert parse_own_groups(text) == {
        "memory": "/docker/abc",
        "cpu": "/x",
        "cpuacct": "/x",
        "": "/user.slice/a:b",
    }


def test_the_smallest_of_machine_and_groups_is_what_is_left(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/system.slice/headway.service\n",
            "sys/fs/cgroup/system.slice/headway.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/headway.service/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/system.slice/memory.max": f"{5 * GIB}\n",
            "sys/fs/cgroup/system.slice/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/system.slice/memory.stat": STAT_V2,
        },
    )
    assert available_bytes(root) == 3 * GIB


def test_a_container_that_sees_only_its_own_group_at_the_mount_is_bounded_by_it(
    tmp_path: Path,
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/docker/abc\n0::/../other\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    )
    assert available_bytes(root) == GIB


def test_version_1_without_a_limit_leaves_the_machine_to_decide(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
        },
    )
    assert available_bytes(root) == 8 * GIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "200\n",
        },
    )
    assert available_bytes(root) == 0


def test_a_system_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


def test_this_machine_has_some_memory_left() -> None:
    assert (available_bytes() or 0) > 0
