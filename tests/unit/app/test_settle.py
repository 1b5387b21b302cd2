import ctypes
import gc
import weakref

import pytest

from headway.app.settle import give_back


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
