"""The engine's process: `headway serve` starts it, and it ends with its server.

It needs its launch on standard input, so nobody starts it by hand.
"""

import logging
import sys
from collections.abc import Callable

from headway.core.base.errors import BadFrame, StartError
from headway.core.messages.health import LoadProgress
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.replica.server import EXIT_START_FAILED, Loaded, serve
from headway.service.wire.spec import Launch, read_launch

STDIN = 0

logger = logging.getLogger(__name__)


def load(launch: Launch, progress: Callable[[LoadProgress], None]) -> Loaded:
    """Load the model into the executor that this installation has; raises StartError."""
    try:
        # The one import inside a function: it brings torch, an optional dependency, and
        # takes seconds in which the server wants to hear that we live.
        from headway.app.torch_replica import load_torch
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] == "headway":
            raise
        raise StartError(
            f"the engine needs {error.name}, which cannot be imported; "
            f"install it with: pip install 'headway[torch]'"
        ) from error
    return load_torch(launch, progress, SystemClock())


def main() -> int:
    """Serve until told to stop; the exit code (see service.replica.server)."""
    try:
        launch = read_launch(STDIN)
    except BadFrame as error:
        print(
            f"headway.app.replica is started by `headway serve`, not by hand: {error.message}",
            file=sys.stderr,
        )
        return EXIT_START_FAILED
    log.configure(launch.spec.log_level, as_json=launch.spec.log_json)
    return serve(launch, load, SystemClock(), STDIN)


if __name__ == "__main__":
    sys.exit(main())
