"""Real clients behind a gateway with keys and limits, in front of a server that calls tools."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from headway.core.tenancy.limits import Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.books import NoLedger, NoPrices
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from tests.clients.environments import SCRIPTS, environments
from tests.e2e.test_real_clients import run
from tests.unit.service.gateway.fakes import until
from tests.upstreams import Front, Pen, Seen, answer, chunk, front, hello, upstream, usage_chunk

ALL = environments()
TENANTS = ("a:standard:sk-a", "single:standard:sk-single", "rare:standard:sk-rare")
LIMITS = RateLimitSettings(
    tenants={"single": Limits(concurrent_requests=1), "rare": Limits(requests_per_minute=1)}
)
CITIES = ({"city": "Paris"}, {"city": '東京 "x"'})
CITY = '{"city": "Paris", "people": 2}'
CALL_IDS = ("call_1", "call_2")


def call(index: int, text: str, *, is_first: bool) -> dict[str, Any]:
    """A piece of a call of the tool, as it is streamed."""
    named = {"id": CALL_IDS[index], "type": "function"} if is_first else {}
    function = {"name": "weather", "arguments": ""} if is_first else {"arguments": text}
    piece = chunk()
    piece["choices"][0]["delta"] = {"tool_calls": [{"index": index, **named, "function": function}]}
    return piece


def arguments_of(index: int) -> str:
    """As a model writes them."""
    return '{"city": "Paris"}' if index == 0 else '{"city": "東京 \\"x\\""}'


async def calls_tools(seen: Seen, pen: Pen) -> None:
    """Two calls, whole or in small pieces that take turns."""
    if not seen.json.get("stream"):
        made = answer()
        made["choices"][0]["finish_reason"] = "tool_calls"
        made["choices"][0]["message"] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": CALL_IDS[index],
                    "type": "function",
                    "function": {"name": "weather", "arguments": arguments_of(index)},
                }
                for index in range(2)
            ],
        }
        return await pen.answer(200, made)
    await pen.begin()
    await pen.events(*(call(index, "", is_first=True) for index in range(2)))
    for at in range(0, 24, 3):
        for index in range(2):
            if piece := arguments_of(index)[at : at + 3]:
                await pen.events(call(index, piece, is_first=False))
    await pen.events(chunk(finish="tool_calls"), usage_chunk())
    await pen.events("[DONE]")
    await pen.end()


class Script:
    """An upstream that does what the last turn says, and counts who left before the end."""

    def __init__(self) -> None:
        self.num_left = 0

    async def __call__(self, seen: Seen, pen: Pen) -> None:
        """Answer one request."""
        match seen.json["messages"][-1]["content"]:
            case "tools":
                assert seen.json["tools"][0]["function"]["name"] == "weather"
                await calls_tools(seen, pen)
            case "json":
                assert seen.json["response_format"]["type"] == "json_schema"
                await pen.answer(200, answer(CITY))
            case "slow":
                await pen.begin()
                await pen.events(chunk("Hel"))
                await self._wait(pen)
            case "hang":
                await self._wait(pen)
            case "break":
                await pen.begin()
                await pen.events(chunk("Hel"), chunk("lo"))
                pen.reset()
            case "down":
                await pen.answer(500, {"error": {"message": "no"}})
            case _:
                await hello(seen, pen)

    async def _wait(self, pen: Pen) -> None:
        await pen.gone()
        self.num_left += 1


def base_of(here: Front) -> str:
    """Its URL, as clients are given it."""
    return f"http://127.0.0.1:{here.port}/v1"


def last_json(printed: str) -> Any:
    """What the script found."""
    return json.loads(printed.strip().splitlines()[-1])


FACTS: dict[str, Any] = {
    "tools": [["weather", each] for each in CITIES],
    "streamed_tools": [["weather", each] for each in CITIES],
    "tool_ids": list(CALL_IDS),
    "parsed": {"city": "Paris", "people": 2},
    "async": ["Hello"] * 10,
    "before_close": "Hel",
    "cancelled": True,
}


@pytest.mark.spec("M9")
@pytest.mark.parametrize(
    ("client", "waited", "errors"),
    [
        (
            "openai",
            [200, True],
            [
                ["key", "AuthenticationError", "invalid_api_key", False],
                ["model", "NotFoundError", "model_not_found", False],
                ["rate", "RateLimitError", "rate_limit_exceeded", True],
                ["stream", "APIError", "upstream_broken", False],
                ["down", "InternalServerError", "upstream_error", True],
            ],
        ),
        (
            "langchain-openai",
            [429, "Hello"],
            [
                ["key", "AuthenticationError", "invalid_api_key", False],
                ["model", "NotFoundError", "model_not_found", False],
                ["rate", "RateLimitError", "rate_limit_exceeded", True],
                ["stream", "APIError", "upstream_broken", False],
                ["down", "InternalServerError", "upstream_error", True],
            ],
        ),
        (
            "litellm",
            [429, "Hello"],
            [
                ["key", "AuthenticationError", None, None],
                ["model", "NotFoundError", None, None],
                ["rate", "RateLimitError", None, None],
                ["stream", "MidStreamFallbackError", None, None],
                ["down", "BadGatewayError", None, None],
            ],
        ),
    ],
    ids=["openai", "langchain-openai", "litellm"],
)
def test_tools_structured_output_limits_errors_and_leaving_are_the_clients_own(
    client: str, waited: list[Any], errors: list[list[Any]], tmp_path: Path
) -> None:
    environment = ALL[client].make()
    name = f"gateway_{client.partition('-')[0]}.py"
    keys = [each.rpartition(":")[2] for each in TENANTS]

    async def scenario() -> dict[str, Any]:
        script = Script()
        books = Books(MemoryLimits(), NoLedger(), NoPrices(), time.time, "test")
        gateway = GatewaySettings(tenant=TENANTS)
        async with (
            upstream(script) as theirs,
            front([theirs], gateway=gateway, books=books, limits=LIMITS) as here,
        ):
            command = [str(environment.python), str(SCRIPTS / name), base_of(here), "m", *keys]
            printed = await asyncio.to_thread(run, command, tmp_path, {})
            # Who closed, or was cancelled, left nothing behind: here, nor at the server.
            await until(lambda: script.num_left == 3)
            assert await here.in_flight() == 0
            return dict(last_json(printed))

    async def bounded() -> dict[str, Any]:
        async with asyncio.timeout(240):
            return await scenario()

    found = asyncio.run(bounded())
    assert {name: found[name] for name in FACTS} == FACTS
    assert found["waited"] == waited
    assert found["errors"] == errors
    assert found["before_break"] in {"Hel", "lo"}
