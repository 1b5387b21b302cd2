"""What a process does once it has loaded, and before it serves."""

import ctypes
import gc


def give_back() -> None:
    """Free what loading left behind, and return it to the system where the C library can.

    Loading makes some hundred thousand short-lived strings; without this their pages stay with
    the process, although nothing lies in them.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
