"""The routes of a configuration file, checked against the models that it names."""

import re
from collections.abc import Sequence

from headway.app.document import Document, Place
from headway.core.base.errors import InvalidSetting
from headway.core.route.table import PoolFacts, RoutesSettings, check

PART = re.compile(r"[^.\[\]]+")


def check_routes_in(
    document: Document, routes: RoutesSettings, pools: Sequence[PoolFacts | None]
) -> None:
    """Raise InvalidSetting, which names file and line, where routes do not fit the models.

    pools  None for a model that is named by its file, which nobody has opened yet: nothing is
           checked then, and the start does it
    """
    known = [pool for pool in pools if pool is not None]
    if len(known) < len(pools):
        return
    try:
        check(routes, known)
    except InvalidSetting as error:
        problem = error.message.removeprefix(f"{error.param}: ")
        raise InvalidSetting(document.where(*_place(error.param or "")), problem) from None


def _place(field: str) -> Place:
    """`routes.names[0].split` as a document knows it."""
    parts = PART.findall(field)
    return tuple(int(part) if part.isdigit() else part for part in parts)
