"""A server that starts a scripted replica, prints its pid and waits to be killed."""

import asyncio
import sys

from headway.service.control.supervise import Supervisor
from headway.service.observe.clock import SystemClock
from tests.fault.processes import QUICK, command
from tests.fault.scripted import HANG, SPEC, request


async def main() -> None:
    """Have the replica hang in a step, then wait for ever."""
    supervisor = Supervisor(SPEC, QUICK, SystemClock(), None, command("run"))
    supervisor.start()
    hello = await supervisor.wait_ready()
    supervisor.call(request(order=HANG))
    sys.stdout.write(f"{hello.pid}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
