"""What requests are routed by, from one reload to the next."""

import asyncio

from headway.core.route.choose import Chooser
from headway.core.route.table import PoolFacts, RoutesSettings, RouteTable
from headway.service.gateway.models import Models
from headway.service.gateway.plan import Plan
from tests.unit.service.gateway.fakes import run


def plan() -> Plan:
    """Of one model, of which nothing is asked here."""
    table = RouteTable(RoutesSettings(), [PoolFacts(names=("m",))], is_configured=False)
    return Plan(Chooser(table, None, None), Models([]))


def test_it_is_over_once_it_is_replaced_and_the_last_request_has_left() -> None:
    async def scenario() -> None:
        made = plan()
        with made:
            with made:
                made.replaced()
                waiting = asyncio.create_task(made.over())
                await asyncio.sleep(0)
            assert [made.is_over, waiting.done()] == [False, False]
        assert [made.is_over] == [True]
        await waiting

    run(scenario())


def test_one_that_was_left_by_all_before_is_over_at_once() -> None:
    async def scenario() -> None:
        made = plan()
        with made:
            pass
        assert [made.is_over] == [False], "the next request may enter it"
        made.replaced()
        assert [made.is_over] == [True]

    run(scenario())
