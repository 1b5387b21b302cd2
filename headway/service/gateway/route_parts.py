"""Routing put together: the table, the classifier's weights, who decides with them."""

from collections.abc import Sequence
from importlib.resources import files

import msgspec

from headway.core.base.errors import StartError
from headway.core.route.choose import Chooser
from headway.core.route.degrade import Congestion
from headway.core.route.size import ClassifierSizer, ScoreSizer, SizeModel, Sizer
from headway.core.route.table import AutoSettings, PoolFacts, RoutesSettings, RouteTable
from headway.core.tenancy.tenant import read_targets

WEIGHTS = "size_model.json"  # beside core/route/size.py; made by tools/train_classifier.py


def make_table(routes: RoutesSettings | None, pools: Sequence[PoolFacts]) -> RouteTable:
    """The table of routes that were checked; without any, each pool by its names."""
    return RouteTable(routes or RoutesSettings(), pools, is_configured=routes is not None)


def make_chooser(table: RouteTable, slo_ttft: Sequence[str]) -> Chooser:
    """Who decides by that table; raises StartError if the classifier's weights cannot be used.

    slo_ttft  what classes are promised, as in the settings of the gateway
    """
    routes = table.settings
    congestion = None
    if routes.degrade is not None:
        congestion = Congestion(routes.degrade, read_targets(slo_ttft))
    sizer = None if routes.auto is None else make_sizer(routes.auto)
    return Chooser(table, sizer, congestion)


def make_sizer(settings: AutoSettings) -> Sizer:
    """What `model: auto` goes by; raises StartError when the weights are not of this release."""
    if settings.method == "score":
        return ScoreSizer(settings)
    return ClassifierSizer(settings, packaged_model())


def packaged_model() -> SizeModel:
    """The weights that ship with the package."""
    data = files("headway.core.route").joinpath(WEIGHTS).read_bytes()
    try:
        return msgspec.json.decode(data, type=SizeModel)
    except msgspec.MsgspecError as error:
        raise StartError(f"{WEIGHTS}: {error}") from None
