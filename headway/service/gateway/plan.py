"""How requests are routed from one reload to the next, and whether any still is."""

import asyncio
from types import TracebackType
from typing import Self

from headway.core.route.choose import Chooser
from headway.core.route.table import RouteTable
from headway.service.gateway.models import Models


class Plan:
    """The routes and the models of one configuration.

    A request enters it before anything of it is read, and leaves it at its end: what it meets on
    its way fits together, whatever is reloaded meanwhile.

        with routing.plan as plan:
            ...
    """

    def __init__(self, chooser: Chooser, models: Models) -> None:
        self.chooser = chooser
        self.models = models
        self._num_open = 0
        self._is_replaced = False
        self._over = asyncio.Event()

    @property
    def table(self) -> RouteTable:
        """What its names stand for."""
        return self.chooser.table

    @property
    def is_over(self) -> bool:
        """Whether another one has replaced it, and no request goes by it any more."""
        return self._over.is_set()

    def split_query(self, model: str | None) -> tuple[str | None, str | None]:
        """A `?model=` as the model and the version that it names; at most one is given."""
        if model is not None and self.table.is_version(model):
            return None, model
        return model, None

    def replaced(self) -> None:
        """No request enters it from now on."""
        self._is_replaced = True
        self._look()

    async def over(self) -> None:
        """Wait until it is replaced and the last request has left it."""
        await self._over.wait()

    def __enter__(self) -> Self:
        self._num_open += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._num_open -= 1
        self._look()

    def _look(self) -> None:
        if self._is_replaced and self._num_open == 0:
            self._over.set()
