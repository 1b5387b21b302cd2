"""The replica process of the tests: the real server around a scripted engine.

`child.py MODE [STEP_S]`, with MODE one of

    run       loads and runs
    refuse    raises StartError while loading
    raise     raises something else while loading
    die       is killed by SIGKILL while loading
    exit      ends with code 7 before it says anything
    hang      never ends loading
    deaf      loads and runs, but ignores SIGTERM and hangs when told to stop
    once      runs the first time; each later start fails (MARK names a file to remember by)
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from headway.core.base.errors import ModelFileError
from headway.core.messages.health import LoadProgress
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.replica.server import Loaded, serve
from headway.service.wire.spec import Launch, read_launch
from tests.fault.scripted import SECRET, ScriptedEngine, ScriptedExecutor, hello

STDIN = 0


class Deaf(ScriptedExecutor):
    """Never closes."""

    def close(self) -> None:
        """Hang."""
        threading.Event().wait()


def load(launch: Launch, progress: Callable[[LoadProgress], None]) -> Loaded:
    """Do as the command line says."""
    mode = sys.argv[1]
    progress(LoadProgress(stage="weights", done=1, total=2))
    step_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    match mode:
        case "refuse":
            raise ModelFileError(launch.spec.model_path, "tensor output.weight is cut short")
        case "raise":
            raise RuntimeError(SECRET)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "once":
            mark = Path(os.environ["MARK"])
            if mark.exists():
                raise ModelFileError(launch.spec.model_path, "is gone")
            mark.touch()
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return Loaded(ScriptedEngine(), Deaf(step_s), hello(os.getpid()))
    return Loaded(ScriptedEngine(), ScriptedExecutor(step_s), hello(os.getpid()))


def main() -> int:
    """Run until told to stop."""
    if sys.argv[1] == "exit":
        return 7
    launch = read_launch(STDIN)
    log.configure(launch.spec.log_level)
    return serve(launch, load, SystemClock(), STDIN)


if __name__ == "__main__":
    sys.exit(main())
