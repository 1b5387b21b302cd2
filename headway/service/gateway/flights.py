"""Requests under way, each of which ends by itself, by its client or by the server's stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from headway.core.base.errors import HeadwayError
from headway.service.gateway.http import ClientGone, Exchange


class Flights:
    """Runs the work of requests so that it can be ended from outside."""

    def __init__(self) -> None:
        self._num_open = 0
        self._landed = asyncio.Event()
        self._landed.set()
        self._stop: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        exchange: Exchange,
        work: Coroutine[Any, Any, None],
        *helpers: Coroutine[Any, Any, None],
    ) -> None:
        """Do the work until it is done or nobody wants it any more.

        `helpers` run beside it, and the failure of one ends the work. Raises what the work raises,
        ClientGone when the client left, the error given to `abort`.
        """
        main = asyncio.ensure_future(work)
        beside = [asyncio.ensure_future(each) for each in (exchange.until_gone(), *helpers)]
        self._opened()
        try:
            watched: list[asyncio.Future[Any]] = [main, *beside, self._stop]
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                return main.result()
            main.cancel()
            await asyncio.wait((main,))
            if not main.cancelled():
                return main.result()
            ended = [task for task in beside if task.done()]
            if not ended:
                raise self._stop.result()
            for task in ended:
                task.result()  # raises what the helper raised
            raise ClientGone
        finally:
            await _end([main, *beside])
            self._closed()

    def abort(self, error: HeadwayError) -> None:
        """End all that is under way, now and later, with this error."""
        if not self._stop.done():
            self._stop.set_result(error)

    async def landed(self) -> None:
        """Wait until nothing is under way."""
        await self._landed.wait()

    def _opened(self) -> None:
        self._num_open += 1
        self._landed.clear()

    def _closed(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            self._landed.set()


async def _end(tasks: list[asyncio.Future[None]]) -> None:
    """Cancel what still runs and wait for it; errors of what is not the result are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
