"""What a process does once it has loaded, and before it serves."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")
YOUNG_OBJECTS = 5_000  # more than were freed, after which the young ones are looked at
DO_NOT_NEED = 4  # Linux' MADV_DONTNEED
# LLVM makes machine code while a process starts, and has nothing to do from then on. Should it
# be needed after all, its pages are read from its file again: code is never written to.
ONLY_FOR_START = "libllvmlite"


def give_back() -> None:
    """Free what loading left behind, and return it to the system where that can be done.

    Loading makes some hundred thousand short-lived strings; without this their pages stay with
    the process, although nothing lies in them. The compiler's library is as large as a third of
    a small model.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    trim = getattr(library, "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    advise = getattr(library, "madvise", None)
    if sys.platform == "linux" and advise is not None:
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for begin, end in code_of(ONLY_FOR_START):
            advise(begin, end - begin, DO_NOT_NEED)


def collect_less() -> None:
    """Stop streams seldom, and shortly, for the collection of cycles.

    What is here by now stays for good, and is looked at no more; requests leave next to no cycles.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def code_of(name: str, maps: Path = MAPS) -> Iterator[tuple[int, int]]:
    """First and end address of the code of every file with this in its name."""
    for line in maps.read_text().splitlines():
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if rights == "r-xp" and path and name in path[0].rsplit("/", maxsplit=1)[-1]:
            begin, end = addresses.split("-")
            yield int(begin, 16), int(end, 16)
