"""Waiting for what may not come in time."""

import asyncio


async def until_set(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until it is set; False when the time has passed first. None: there is no limit."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
