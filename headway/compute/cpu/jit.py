"""The one way to compile a kernel."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# No fastmath: its reassociation would make a sum depend on how many rows a step has.
# No parallel=True: the executor's own thread team splits the work.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "fastmath": False,
    # Only where `kernel_cache.prepare` gave it a folder: Numba's own choice, beside the
    # sources, would keep a kernel whose helpers in other files have changed.
    "cache": bool(numba.config.CACHE_DIR),
}


def kernel(function: Kernel) -> Kernel:
    """Compile at the first call, without the interpreter lock."""
    compiled: Kernel = numba.njit(**OPTIONS)(function)
    return compiled


def inlined(function: Kernel) -> Kernel:
    """The same for a small part that is compiled into its callers."""
    compiled: Kernel = numba.njit(**OPTIONS, inline="always")(function)
    return compiled


def contracted(function: Kernel) -> Kernel:
    """The same, but a multiplication and an addition may become one instruction.

    Where that is done is fixed when it is compiled, so it depends on the machine only.
    """
    compiled: Kernel = numba.njit(**{**OPTIONS, "fastmath": {"contract"}})(function)
    return compiled
