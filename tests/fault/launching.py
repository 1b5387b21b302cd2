"""A process that launches an upstream and then only waits: `launching.py URL COMMAND...`."""

import asyncio
import sys

from headway.service.observe.clock import SystemClock
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import UpstreamSettings


async def main() -> None:
    """Launch it, and live until killed."""
    settings = UpstreamSettings(
        name="m", url=sys.argv[1], launch=tuple(sys.argv[2:]), health_path="/health"
    )
    pool = UpstreamPool(settings, None, None, SystemClock())
    pool.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
