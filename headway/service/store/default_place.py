"""Whether the user's own data folder is one to keep things in without being asked to."""

import os
import re
from pathlib import Path

ESCAPED = re.compile(r"\\([0-7]{3})")  # spaces and the like in a path
MOUNTS = Path("/proc/self/mountinfo")
# Locks of these may outlive a process, or not reach other hosts; SQLite's log needs shared memory.
NETWORKED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "afs", "9p"}
    | {"glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "orangefs"}
)


def unfit(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Why nothing can be kept there, or None where it can; makes the folder."""
    if not folder.is_absolute() or "?" in str(folder):
        return "this user has no home folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written"
    kind = file_system_of(folder.resolve(), mounts)
    if kind in NETWORKED:
        return f"it is on a network file system ({kind}), whose locks do not hold"
    return None


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Kind of the file system that an absolute path is on; "" where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    found, depth = "", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        place = Path(ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[4]))
        # The later one of two at the same place is on top.
        if len(place.parts) >= depth and path.is_relative_to(place):
            found, depth = after.split()[0], len(place.parts)
    return found
