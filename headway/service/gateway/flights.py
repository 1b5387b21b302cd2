"""Requests under way, each of which ends by itself, by its client or by the server's stop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headway.core.base.errors import HeadwayError
from headway.service.gateway.http import ClientGone, Exchange

Helper = Callable[[], Coroutine[Any, Any, None]]


class Flights:
    """Runs the work of requests so that it can be ended from outside."""

    def __init__(self) -> None:
        self._open: set[_Flight] = set()
        self._landed = asyncio.Event()
        self._landed.set()
        self._stopped_by: HeadwayError | None = None

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return len(self._open)

    async def run(
        self, exchange: Exchange, work: Coroutine[Any, Any, None], *helpers: Helper
    ) -> None:
        """Do the work until it is done or nobody wants it any more.

        `helpers` run beside it, and the end of one ends the work. Raises what the work raises,
        ClientGone when the client left, what a helper raised, the error given to `abort`.

        The work is done in the caller's task, and whatever watches over it begins once it waits
        for the first time: a request is on its way by then.
        """
        if self._stopped_by is not None:
            work.close()
            raise self._stopped_by
        flight = _Flight((exchange.until_gone, *helpers))
        self._open.add(flight)
        self._landed.clear()
        try:
            await work
        except asyncio.CancelledError:
            if flight.ended_by is None or flight.is_cancelled_from_outside:
                raise
            raise flight.ended_by from None
        finally:
            await flight.close()
            self._open.discard(flight)
            if not self._open:
                self._landed.set()

    def abort(self, error: HeadwayError) -> None:
        """End all that is under way, now and later, with this error."""
        if self._stopped_by is None:
            self._stopped_by = error
            for flight in self._open:
                flight.end(error)

    async def landed(self) -> None:
        """Wait until nothing is under way."""
        await self._landed.wait()


class _Flight:
    """Work that the present task is about to do, and what runs beside it."""

    def __init__(self, helpers: Sequence[Helper]) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        self._task = task
        self._cancellations = task.cancelling()
        self._helpers = helpers
        self._beside: list[asyncio.Task[None]] = []
        self._is_over = False
        self._begin = asyncio.get_running_loop().call_soon(self._begin_beside)
        self.ended_by: Exception | None = None

    @property
    def is_cancelled_from_outside(self) -> bool:
        """Whether somebody beside `end` wants the task to stop."""
        return self._task.cancelling() > self._cancellations + 1

    def end(self, reason: Exception) -> None:
        """Interrupt the work where it waits; only the first reason counts."""
        if self.ended_by is None and not self._is_over:
            self.ended_by = reason
            self._task.cancel()

    async def close(self) -> None:
        """The work is over: so is what runs beside it, whose errors no longer matter."""
        self._is_over = True
        self._begin.cancel()
        if self.ended_by is not None:
            self._task.uncancel()
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.gather(*self._beside, return_exceptions=True)

    def _begin_beside(self) -> None:
        loop = asyncio.get_running_loop()
        for helper in self._helpers:
            task = loop.create_task(helper())
            task.add_done_callback(self._ended)
            self._beside.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            self.end(error if isinstance(error, Exception) else ClientGone())
