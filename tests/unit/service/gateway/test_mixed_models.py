"""One gateway for both: models that our engines answer for, and models of other servers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headway.core.engine.settings import EngineSettings
from headway.core.route.table import RoutesSettings
from headway.service.gateway.encode import Encoder
from headway.service.gateway.model import ServedModel
from headway.service.gateway.serving import ModelNeeds
from headway.service.gateway.totals import PoolTotals
from tests.unit.service.gateway.fakes import (
    CONTEXT,
    VOCAB,
    CharTokenizer,
    FakeReplica,
    JoiningTemplate,
    run,
    say_hello,
)
from tests.upstreams import FakeUpstream, Front, Pen, Seen, events_of, front, hello, upstream

TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def full(seen: Seen, pen: Pen) -> None:
    """A script: no room."""
    await pen.answer(429, {"error": {"message": "full"}}, "retry-after: 3")


@asynccontextmanager
async def both(
    theirs: FakeUpstream, routes: dict[str, Any] | None = None
) -> AsyncGenerator[tuple[Front, FakeReplica]]:
    """A gateway with the upstream's model `m`, which is the first, and our own `own`."""
    encoder, replica = Encoder(CharTokenizer(), JoiningTemplate(), 1), FakeReplica()
    replica.script = say_hello
    names = ("own", "own-alias")
    model = ServedModel(
        names=names, root="root", vocab_size=VOCAB, context_length=CONTEXT, created=1
    )
    own = ModelNeeds(model, EngineSettings(), encoder, replica, PoolTotals())
    given = None if routes is None else msgspec.convert(routes, RoutesSettings)
    try:
        async with front([theirs], beside=[own], routes=given) as here:
            yield here, replica
    finally:
        encoder.close()


def test_each_request_goes_to_the_model_that_it_names() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, both(theirs) as (here, replica):
            listed = (await here.client.get("/v1/models")).json()["data"]
            assert [each["id"] for each in listed] == ["m", "own", "own-alias"]
            assert (await here.chat(model="own")).json()["usage"]["completion_tokens"] == 3
            assert (await here.chat(model="m", tools=TOOLS)).status_code == 200
            assert (await here.chat(model=None)).json()["model"] == "m"
            assert (len(replica.requests), len(theirs.seen)) == (1, 2)
            refused = await here.chat(model="own", tools=TOOLS)
            assert refused.json()["error"]["param"] == "tools"
            tokens = await here.client.post("/tokenize", json={"model": "own", "prompt": "Hi"})
            assert tokens.json()["count"] == 2
            unknown = await here.client.post("/tokenize", json={"model": "m", "prompt": "Hi"})
            assert unknown.json()["error"]["code"] == "unsupported_parameter"

    run(scenario())


def test_a_model_in_the_url_counts_only_where_the_url_names_models() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, both(theirs) as (here, replica):
            for query, model, answered in (("own", "m", "m"), ("m", "own", "own")):
                body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
                url = f"/v1/chat/completions?model={query}"
                answer = await here.client.post(url, json=body)
                assert (answer.status_code, answer.json()["model"]) == (200, answered)
                native = f"/v1/chat?model={query}"  # where two models are a contradiction
                answer = await here.client.post(native, json=body)
                assert answer.json()["error"]["param"] == "model"
                answer = await here.client.post(native, json={**body, "model": query})
                assert answer.status_code == 200
            assert (len(replica.requests), len(theirs.seen)) == (2, 2)

    run(scenario())


def test_a_route_may_lead_to_either_and_each_checks_in_its_own_way() -> None:
    async def scenario() -> None:
        names = [{"name": "chat", "versions": {"stable": "own", "preview": "m"}}]
        async with upstream(hello) as theirs, both(theirs, {"names": names}) as (here, replica):
            stable = await here.chat(model="chat", priority=3)
            assert stable.headers["x-headway-model"] == "own"
            assert stable.json()["model"] == "chat"
            (sent,) = replica.requests.values()
            assert sent.priority == 3
            preview = await here.chat(model="chat@preview", tools=TOOLS, stream=True)
            assert preview.headers["x-headway-model"] == "m"
            assert events_of(preview.text)[0]["model"] == "chat@preview"
            refused = await here.chat(model="chat", tools=TOOLS)
            assert refused.json()["error"]["param"] == "tools"
            assert (len(replica.requests), len(theirs.seen)) == (1, 1)

    run(scenario())


def test_an_image_goes_where_images_are_taken() -> None:
    async def scenario() -> None:
        names = [{"name": "chat", "versions": {"stable": "own", "preview": "m"}}]
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
        messages = [{"role": "user", "content": [part]}]
        async with upstream(hello) as theirs, both(theirs, {"names": names}) as (here, replica):
            for name in ("own", "m", "chat"):
                found = await here.chat(model=name, messages=messages)
                assert found.json()["error"]["code"] == "unsupported_modality"
            assert (len(replica.requests), len(theirs.seen)) == (0, 0)

    run(scenario())


def test_a_model_of_ours_stands_in_for_a_full_upstream() -> None:
    async def scenario() -> None:
        routes = {"degrade": {"smaller": {"m": "own"}}}
        async with upstream(full) as theirs, both(theirs, routes) as (here, replica):
            found = await here.chat()
            assert found.status_code == 200
            assert found.headers["x-headway-degraded"] == "model"
            assert found.json()["model"] == "own"
            assert (len(replica.requests), len(theirs.seen)) == (1, 1)
            assert await here.outcomes() == {"ok": 1}

    run(scenario())
