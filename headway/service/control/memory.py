"""Memory that the machine, or the container we run in, could still give."""

from pathlib import Path

V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V2_FILES = ("memory.max", "memory.current")


def available_bytes(root: Path = Path("/")) -> int | None:
    """The smaller of what the machine and our control group have left; None if unknown."""
    paths = parse_own_groups(_read(root / "proc/self/cgroup"))
    v1, v2 = root / "sys/fs/cgroup/memory", root / "sys/fs/cgroup"
    found = [parse_meminfo(_read(root / "proc/meminfo"))]
    found += [_left_in(folder, V1_FILES) for folder in _with_parents(v1, paths.get("memory", "/"))]
    found += [_left_in(folder, V2_FILES) for folder in _with_parents(v2, paths.get("", "/"))]
    known = [left for left in found if left is not None]
    return max(0, min(known)) if known else None


def parse_own_groups(text: str) -> dict[str, str]:
    """Path of our control group for each controller, from /proc/self/cgroup; "" is v2's."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths |= dict.fromkeys(fields[1].split(","), fields[2])
    return paths


def parse_meminfo(text: str) -> int | None:
    """MemAvailable in bytes; None when the kernel does not say."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            fields = rest.split()
            return int(fields[0]) * 1024 if fields and fields[0].isdigit() else None
    return None


def group_left(limit: str, current: str, stat: str) -> int | None:
    """Bytes a control group has left; None without a limit.

    File pages that nobody used lately (`inactive_file`) are given back under pressure, so
    they count as free, as MemAvailable counts them.
    """
    if not limit.strip().isdigit() or not current.strip().isdigit():
        return None  # "max"
    reclaimable = 0
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdigit():
            reclaimable = int(value)
    return int(limit) - max(0, int(current) - reclaimable)


def _left_in(folder: Path, names: tuple[str, str]) -> int | None:
    limit, current = names
    return group_left(_read(folder / limit), _read(folder / current), _read(folder / "memory.stat"))


def _with_parents(mount: Path, path: str) -> list[Path]:
    """The group's folder and all above it, each of which may set a limit.

    In a container the path may be that of the host, which the mount does not show; then
    only the mount's own root exists, and that is the container's group.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
