"""Routes over engines of ours and models behind other servers together."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from headway.core.engine.settings import EngineSettings
from headway.core.route.table import RoutesSettings
from headway.service.gateway.encode import Encoder
from headway.service.gateway.model import ServedModel
from headway.service.gateway.serving import ModelNeeds
from headway.service.gateway.totals import PoolTotals
from headway.service.upstream.settings import Modality
from tests.unit.service.gateway.fakes import (
    CONTEXT,
    NATIVE,
    VOCAB,
    CharTokenizer,
    FakeReplica,
    JoiningTemplate,
    run,
    say_hello,
)
from tests.unit.service.gateway.test_routing import HARD, refusing, saying, told
from tests.upstreams import CHAT, FakeUpstream, Front, Pen, Seen, answer, front, hello, upstream

HI = [{"role": "user", "content": "Hi"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SEEN = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]}]


@asynccontextmanager
async def both(
    theirs: FakeUpstream, ours: FakeReplica, routes: Mapping[str, object] | None, **more: Any
) -> AsyncGenerator[Front]:
    """A gateway with `m` behind another server and `own` in an engine of ours."""
    encoder = Encoder(CharTokenizer(), JoiningTemplate(), 1)
    model = ServedModel(
        names=("own",), root="root", vocab_size=VOCAB, context_length=CONTEXT, created=1
    )
    beside = [
        ModelNeeds(
            model=model, engine=EngineSettings(), encoder=encoder, pool=ours, totals=PoolTotals()
        )
    ]
    table = None if routes is None else msgspec.convert(routes, RoutesSettings)
    try:
        async with front([theirs], beside=beside, routes=table, **more) as here:
            yield here
    finally:
        encoder.close()


def answering() -> FakeReplica:
    replica = FakeReplica()
    replica.script = say_hello
    return replica


async def ask(here: Front, model: str, path: str = CHAT, **more: Any) -> httpx.Response:
    return await here.client.post(path, json={"model": model, "messages": HI, **more})


def text_of(found: httpx.Response) -> str:
    return str(found.json()["choices"][0]["message"]["content"])


async def busy(seen: Seen, pen: Pen) -> None:
    """A script: no room."""
    await pen.answer(429, {"error": {"message": "full"}}, "retry-after: 1")


@pytest.mark.spec("B1")
def test_versions_may_be_an_engine_of_ours_and_another_server() -> None:
    routes = {"names": [{"name": "chat", "versions": {"stable": "own", "preview": "m"}}]}

    async def scenario() -> None:
        ours = answering()
        async with upstream(hello) as theirs, both(theirs, ours, routes) as here:
            stable = await ask(here, "chat", temperature=0)
            preview = await ask(here, "chat@preview", temperature=0)
            assert (told(stable)["model"], told(preview)["model"]) == ("own", "m")
            assert preview.json()["model"] == "chat@preview"
            assert theirs.seen[0].json["model"] == "m"
            assert [each.sampling.temperature for each in ours.requests.values()] == [0]
            native = {"messages": HI}
            asked = await here.client.post(f"{NATIVE}?model=chat@preview", json=native)
            assert told(asked)["route"] == "version:preview"
            assert '"token":"Hel"' in asked.text
            wrong = await ask(here, "chat", temperature="warm")
            assert wrong.status_code == 400
            assert wrong.json()["error"]["param"] == "temperature"

    run(scenario())


@pytest.mark.spec("B2")
def test_auto_and_images_reach_the_other_server() -> None:
    auto = {"small": "own", "medium": "m", "large": "m", "method": "score"}

    async def scenario() -> None:
        ours = answering()
        images = {"modalities": (Modality.IMAGE,)}
        async with upstream(hello) as theirs, both(theirs, ours, {"auto": auto}, **images) as here:
            assert told(await ask(here, "auto"))["route"] == "size:small"
            hard = await ask(here, "auto", messages=[{"role": "user", "content": HARD}])
            assert told(hard) == {"model": "m", "version": "stable", "route": "size:large"}
            picture = await ask(here, "auto", messages=SEEN)
            assert told(picture)["route"] == "modality:image"
            assert theirs.seen[-1].json["messages"] == SEEN
            refused = await ask(here, "own", messages=SEEN)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "unsupported_modality"

    run(scenario())


@pytest.mark.spec("B4")
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_of_ours_helps_another_server_out_and_the_other_way(stream: bool) -> None:
    async def scenario() -> None:
        ours = answering()
        routes = {"degrade": {"smaller": {"m": "own"}}}
        async with upstream(busy) as theirs, both(theirs, ours, routes) as here:
            found = await ask(here, "m", stream=stream)
            assert found.status_code == 200
            assert told(found)["degraded"] == "model"
            assert told(found)["model"] == "own"
            assert await here.outcomes() == {"ok": 1}
        ours.script = refusing("queue_full")
        routes = {"degrade": {"smaller": {"own": "m"}}}
        async with upstream(hello) as theirs, both(theirs, ours, routes) as here:
            found = await ask(here, "own", stream=stream)
            assert found.status_code == 200
            assert told(found)["model"] == "m"
            assert "Hel" in found.text

    run(scenario())


def test_what_only_the_other_server_understands_is_not_taken_to_our_engine() -> None:
    async def scenario() -> None:
        routes = {"degrade": {"smaller": {"m": "own"}}}
        async with upstream(busy) as theirs, both(theirs, answering(), routes) as here:
            tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
            found = await ask(here, "m", tools=tools)
            assert found.status_code == 503

    run(scenario())


@pytest.mark.spec("B7")
@pytest.mark.parametrize(("logprob", "model"), [(-0.1, "own"), (-2.0, "m")])
def test_a_cascade_may_go_on_to_another_server(logprob: float, model: str) -> None:
    routes = {"names": [{"name": "careful", "cascade": {"first": "own", "then": "m"}}]}

    async def scenario() -> None:
        ours = FakeReplica()
        ours.script = saying("small", logprob)
        async with upstream(hello) as theirs, both(theirs, ours, routes) as here:
            found = await ask(here, "careful")
            assert told(found)["model"] == model
            assert text_of(found) == ("small" if model == "own" else "Hello")

    run(scenario())


def test_a_route_s_bound_on_the_answer_reaches_the_other_server() -> None:
    async def scenario() -> None:
        routes = {"degrade": {"max_tokens": 8, "queue_share": 1e-9}}

        async def script(seen: Seen, pen: Pen) -> None:
            if len(theirs.seen) == 1:
                second.append(await ask(here, "m", max_tokens=100))
            await pen.answer(200, answer())

        second: list[httpx.Response] = []
        async with upstream(script) as theirs, both(theirs, answering(), routes) as here:
            await ask(here, "m", max_tokens=100)
            assert told(second[0])["degraded"] == "max_tokens"
            assert [each.json["max_tokens"] for each in theirs.seen] == [100, 8]
            assert json.loads(second[0].text)["choices"]

    run(scenario())
