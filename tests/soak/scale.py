"""How long the long suites are: whole under `make soak`, a twentieth in `make test`."""

import os


def scaled(whole: int) -> int:
    """`whole`, or a twentieth of it unless HEADWAY_TEST_SOAK=1."""
    return whole if os.environ.get("HEADWAY_TEST_SOAK") == "1" else whole // 20
