"""How long the long suites are: whole under `make soak`, a twentieth in `make test`."""

import os


def is_whole() -> bool:
    """Whether the suites run whole."""
    return os.environ.get("HEADWAY_TEST_SOAK") == "1"


def scaled(whole: int) -> int:
    """`whole`, or a twentieth of it unless HEADWAY_TEST_SOAK=1."""
    return whole if is_whole() else whole // 20
