"""The ledger's write-ahead spool: what has happened stands in a file before anybody else keeps it.

One process writes one folder, which it has locked:

    lock            held as long as the process lives, however it ends
    slots           how far each open request has come (`slots.Slots`)
    00000001.log    frames (`frames`): requests that were opened, and those that closed

A frame is written with one system call, which a kill -9 cannot undo. When a file is full the next
one begins with the requests that are still open, so that whatever was read to its end can go.
"""

import fcntl
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headway.core.messages.record import RequestRecord
from headway.service.store.frames import frame, frames
from headway.service.store.slots import Progress, Slots, read_progress

SEGMENT_BYTES = 4 * 1024 * 1024
MOST_BESIDE = 5000  # records kept in memory while the spool takes none
SUFFIX = ".log"
OPENED, CLOSED = b"o", b"c"
FOLDER_MODE, FILE_MODE = 0o700, 0o600

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRecord).decode


class _Open(NamedTuple):
    """A request under way."""

    slot: int
    frame: bytes  # as it was written, for the next file


class _File(NamedTuple):
    """The file being written."""

    descriptor: int
    full_at: int  # size at which the next one begins


class Position(NamedTuple):
    """A place in a spool."""

    segment: int
    offset: int


class Spool:
    """Written by one thread, the event loop's; read to its end and cut off by another one."""

    def __init__(self, folder: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Make the folder and lock it; raises OSError when that cannot be."""
        self.folder = folder
        self._lock_file = _made(folder)
        self._slots = Slots(folder / "slots")
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        self._open: dict[str, _Open] = {}
        self._sizes: dict[int, int] = {}  # of the files that are there, by number
        self._guard = threading.Lock()  # of the sizes
        self.beside: deque[RequestRecord] = deque()  # closed while the spool took nothing
        self.num_dropped = 0
        self.num_errors = 0
        self._file: _File | None = self._begin(1)  # None once it is closed

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        with self._guard:
            return sum(self._sizes.values())

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return len(self._open)

    @property
    def end(self) -> Position:
        """Behind the last frame."""
        with self._guard:
            last = max(self._sizes)
            return Position(last, self._sizes[last])

    def opened(self, record: RequestRecord) -> None:
        """The request is under way; a full spool lets it go without.

        Called again for a request that is open, it says more of it.
        """
        known = self._open.get(record.id)
        if (
            self._file is None or self.num_bytes > self._max_bytes * 7 // 8
        ):  # the rest is for the ends of others
            return
        slot = None if known is None else known.slot
        try:
            slot = self._slots.take() if slot is None else slot
            data = frame(OPENED + slot.to_bytes(4, "little") + _encode(record))
            self._append(data)
        except OSError:
            self.num_errors += 1
            if slot is not None and known is None:
                self._slots.free(slot)
            return
        self._open[record.id] = _Open(slot, data)

    def give(self, request_id: str, num_tokens: int) -> None:
        """So many of its tokens are about to be handed to its connection, all told."""
        if (entry := self._open.get(request_id)) is not None:
            self._slots.give(entry.slot, num_tokens)

    def gave(self, request_id: str, num_tokens: int) -> None:
        """So many are the kernel's now."""
        if (entry := self._open.get(request_id)) is not None:
            self._slots.gave(entry.slot, num_tokens)

    def closed(self, record: RequestRecord) -> None:
        """The request has ended; kept in memory, up to a bound, where the spool takes nothing."""
        entry = self._open.pop(record.id, None)
        try:
            if self.num_bytes > self._max_bytes:
                raise OSError("the spool is full")
            self._append(frame(CLOSED + _encode(record)))
        except OSError:
            self.num_errors += 1
            if self._file is not None and len(self.beside) < MOST_BESIDE:
                self.beside.append(record)
            else:
                self.num_dropped += 1
            return  # and its slot is never used again: the spool still says that it is open
        if entry is not None:
            self._slots.free(entry.slot)

    def read(self, position: Position, num_bytes: int) -> bytes:
        """Whole frames of the file from there on, up to about so many bytes; any thread."""
        with self._guard:
            left = self._sizes[position.segment] - position.offset
        with open(self._path(position.segment), "rb") as file:
            file.seek(position.offset)
            return file.read(min(left, num_bytes))

    def after(self, position: Position) -> Position | None:
        """Where to go on once a file was read to its end; None while it is being written.

        The file that was read is deleted. Any thread.
        """
        number, offset = position
        with self._guard:
            if number == max(self._sizes) or offset < self._sizes[number]:
                return None
            del self._sizes[number]
        self._path(number).unlink(missing_ok=True)
        return Position(number + 1, 0)

    def sync(self) -> None:
        """Have all of it on the disk; blocks, and may be called from any thread."""
        for number in range(self.end.segment, 0, -1):
            try:
                descriptor = os.open(self._path(number), os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._slots.sync()

    def close(self, *, is_done: bool) -> None:
        """End it; the folder goes if everything in it was read, else another process reads it.

        What comes after this is kept nowhere, and counted as dropped.
        """
        file, self._file = self._file, None
        is_done = is_done and not self._open
        self._open.clear()
        if file is not None:
            os.close(file.descriptor)
        self._slots.close()
        if is_done:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock_file)

    def _append(self, data: bytes) -> None:
        """Write a frame whole or not at all; raises OSError."""
        if self._file is None:
            raise OSError("the spool is closed")
        with self._guard:
            number = max(self._sizes)
            size = self._sizes[number]
        if size >= self._file.full_at:
            file = self._begin(number + 1)
            os.close(self._file.descriptor)
            self._file = file
            number, size = number + 1, self._sizes[number + 1]
        _write(self._file.descriptor, data, size)
        with self._guard:
            self._sizes[number] = size + len(data)

    def _begin(self, number: int) -> _File:
        """A new file, which knows all that is open; published only then. Raises OSError."""
        path = self._path(number)
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, FILE_MODE)
        carried = b"".join(entry.frame for entry in self._open.values())
        try:
            _write(file, carried, 0)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        with self._guard:
            self._sizes[number] = len(carried)
        return _File(file, len(carried) + self._segment_bytes)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}{SUFFIX}"


class Left(NamedTuple):
    """Something found in the folder of a process that has ended."""

    record: RequestRecord | None  # None: a damaged frame
    progress: Progress | None = None  # set for a request that was open when it ended


def abandoned(root: Path) -> Iterator[Path]:
    """Folders under `root` whose processes have ended; each is locked while the caller has it."""
    for lock in sorted(root.glob("[!.]*/lock")):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            if lock.exists():  # it may just have been removed by whoever had the lock
                yield lock.parent
        finally:
            os.close(descriptor)


def left_in(folder: Path) -> Iterator[Left]:
    """All that a process left in its folder: what closed, then what never did."""
    slots = (folder / "slots").read_bytes() if (folder / "slots").exists() else b""
    open_: dict[str, tuple[int, RequestRecord]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for payload, _ in frames(path.read_bytes()):
            kind, record = (b"", None) if payload is None else _read(payload)
            if payload is None or record is None:
                yield Left(None)
            elif kind == OPENED:
                open_[record.id] = (int.from_bytes(payload[1:5], "little"), record)
            else:
                open_.pop(record.id, None)
                yield Left(record)
    for slot, record in open_.values():
        yield Left(record, read_progress(slots, slot))


def closed_in(data: bytes, most: int) -> tuple[list[RequestRecord], int, int]:
    """Up to `most` records that closed, out of whole frames; the bytes read, the damaged frames."""
    found: list[RequestRecord] = []
    read = num_damaged = 0
    for payload, end in frames(data):
        read = end
        if payload is None:
            num_damaged += 1
        elif payload[:1] == CLOSED:
            record = _read(payload)[1]
            if record is None:
                num_damaged += 1
            else:
                found.append(record)
        if len(found) >= most:
            break
    return found, read, num_damaged


def _read(payload: bytes) -> tuple[bytes, RequestRecord | None]:
    kind = payload[:1]
    try:
        return kind, _decode(payload[5:] if kind == OPENED else payload[1:])
    except msgspec.MsgspecError:
        return kind, None


def _made(folder: Path) -> int:
    """Make the folder under its name only once its lock is held; the lock's descriptor."""
    folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}")
    fresh.mkdir(mode=FOLDER_MODE)
    descriptor = os.open(fresh / "lock", os.O_CREAT | os.O_RDWR, FILE_MODE)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fresh.rename(folder)
    return descriptor


def _write(file: int, data: bytes, size: int) -> None:
    """Append it to a file of that size; what was written in part is cut off again."""
    written = os.write(file, data) if data else 0
    if written != len(data):
        os.ftruncate(file, size)
        raise OSError("the disk is full")
