"""A body that is read, and one that is handed on as it comes."""

import asyncio

import pytest

from headway.core.base.errors import UpstreamBroken
from headway.core.base.units import Seconds
from headway.service.upstream.body import Body, Take
from tests.unit.service.gateway.fakes import run


def came(body: Body, *pieces: bytes, is_whole: bool = False) -> None:
    """One turn of the connection."""
    for piece in pieces:
        body.put(piece)
    body.is_whole = body.is_whole or is_whole
    body.told()


def keeping(taken: list[bytes]) -> Take:
    """Takes every piece."""

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return True

    return take


def test_a_reader_gets_all_that_came_meanwhile_and_then_the_end() -> None:
    async def scenario() -> None:
        body = Body()
        reading = asyncio.create_task(body.read())
        await asyncio.sleep(0)
        came(body, b"a", b"b")
        assert await reading == b"ab"
        came(body, b"c", is_whole=True)
        assert [await body.read(), await body.read()] == [b"c", b""]

    run(scenario())


def test_pieces_are_handed_on_in_the_turn_that_brings_them_until_the_end() -> None:
    async def scenario() -> None:
        body, taken = Body(), list[bytes]()
        came(body, b"early")

        pumping = asyncio.create_task(body.pump(keeping(taken)))
        await asyncio.sleep(0)
        assert taken == [b"early"]
        came(body, b"a", b"b")
        assert taken == [b"early", b"ab"]
        assert not pumping.done()
        came(body, b"c", is_whole=True)
        assert not await pumping  # nothing more comes
        assert taken == [b"early", b"ab", b"c"]
        assert await body.read() == b""

    run(scenario())


def test_who_takes_no_more_finds_the_rest_with_the_reader() -> None:
    async def scenario() -> None:
        body, taken = Body(), list[bytes]()

        def take(piece: bytes) -> bool:
            taken.append(piece)
            return False

        pumping = asyncio.create_task(body.pump(take))
        await asyncio.sleep(0)
        came(body, b"a")
        came(body, b"b")
        assert await pumping  # more may come
        assert taken == [b"a"]
        assert await body.read() == b"b"

    run(scenario())


def test_a_failure_ends_the_pump_and_is_raised_by_the_reader() -> None:
    async def scenario() -> None:
        body, taken = Body(), list[bytes]()
        pumping = asyncio.create_task(body.pump(keeping(taken)))
        await asyncio.sleep(0)
        body.put(b"a")
        body.lost = UpstreamBroken("it broke", Seconds(1.0))
        body.told()
        await pumping
        assert taken == [b"a"]
        with pytest.raises(UpstreamBroken, match="it broke"):
            await body.read()
        await body.pump(keeping(taken))
        assert taken == [b"a"]

    run(scenario())


def test_a_pump_that_is_cancelled_takes_nothing_more() -> None:
    async def scenario() -> None:
        body, taken = Body(), list[bytes]()
        pumping = asyncio.create_task(body.pump(keeping(taken)))
        await asyncio.sleep(0)
        pumping.cancel()
        await asyncio.wait((pumping,))
        came(body, b"a")
        assert taken == []
        assert await body.read() == b"a"

    run(scenario())
