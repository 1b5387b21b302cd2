import ctypes
import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from headway.app.settle import code_of, give_back

MAPS = """\
55d0c0000000-55d0c0001000 r-xp 00000000 fe:00 12 /usr/bin/python3
7f10aa000000-7f10aa400000 r-xp 00100000 fe:00 99 /a folder/libllvmlite.so
7f10aa400000-7f10aa500000 rw-p 00500000 fe:00 99 /a folder/libllvmlite.so
7f10aa500000-7f10aa600000 rw-p 00000000 00:00 0
7f10ab000000-7f10ab100000 r-xp 00000000 fe:00 98 /libllvmlite/other.so
"""
# In a process of its own: the compiler's pages are those of the whole process.
COMPILES = """
import json
from numba import njit
from headway.app.settle import code_of, give_back

def resident():
    total, inside, starts = 0, False, {f"{begin:x}" for begin, _ in code_of("libllvmlite")}
    for line in open("/proc/self/smaps"):
        word = line.split()[0]
        if "-" in word and not word.endswith(":"):
            inside = word.split("-")[0].lstrip("0") in starts
        elif inside and word == "Rss:":
            total += int(line.split()[1])
    return total

first, second = njit(lambda x: x + 1), njit(lambda x: x * 3)
assert first(1) == 2
before = resident()
give_back()
after = resident()
print(json.dumps([before, after, second(5), resident()]))
"""


class Loop:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.myself = self


def test_what_only_the_collector_frees_is_freed() -> None:
    gc.disable()
    try:
        watched = weakref.ref(Loop())
        assert watched() is not None
        give_back()
        assert watched() is None
    finally:
        gc.enable()


def test_a_c_library_without_trimming_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        def __init__(self, name: None) -> None:
            self.name = name

    monkeypatch.setattr(ctypes, "CDLL", Bare)
    give_back()
    assert ctypes.CDLL(None).name is None


def test_the_code_of_a_file_is_what_is_mapped_to_be_run(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    assert list(code_of("libllvmlite", maps)) == [(0x7F10AA000000, 0x7F10AA400000)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is resident")
def test_the_compilers_code_goes_and_comes_again_when_it_is_needed() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMPILES], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    before, after, product, again = json.loads(ended.stdout)
    assert before > 5000, "kB"
    assert after < before / 10
    assert product == 15
    assert again > after


def test_what_is_loaded_is_collected_no_more_and_young_objects_seldom() -> None:
    code = (
        "import gc\nfrom headway.app.settle import collect_less\nbefore = gc.get_threshold()\n"
        "collect_less()\nprint(gc.get_freeze_count() > 1_000, gc.get_threshold() > before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
