"""Which model a name means where nothing is routed: for its tokens, and for what it is."""

from tests.unit.service.gateway.fakes import run
from tests.unit.service.gateway.test_mixed_models import both
from tests.upstreams import hello, upstream


def test_texts_without_a_model_are_for_the_model_that_chats_without_one_go_to() -> None:
    async def scenario() -> None:
        names = [{"name": "chat", "versions": {"stable": "own", "preview": "m"}}]
        routes = {"default": "chat", "names": names}
        async with upstream(hello) as theirs, both(theirs, routes) as (here, _):
            chat = await here.chat(model=None)
            assert chat.headers["x-headway-model"] == "own"
            tokens = await here.client.post("/tokenize", json={"prompt": "Hi"})
            assert (tokens.status_code, tokens.json()["count"]) == (200, 2)

    run(scenario())


def test_a_version_is_found_for_its_tokens_and_for_itself() -> None:
    async def scenario() -> None:
        names = [{"name": "chat", "aliases": ["gpt"], "versions": {"stable": "m", "beta": "own"}}]
        routes = {"default": "chat", "names": names}
        async with upstream(hello) as theirs, both(theirs, routes) as (here, _):
            for name in ("chat@beta", "gpt@beta", "beta"):
                tokens = await here.client.post("/tokenize", json={"model": name, "prompt": "Hi"})
                assert (tokens.status_code, tokens.json()["count"]) == (200, 2)
                one = await here.client.get(f"/v1/models/{name}")
                assert (one.status_code, one.json()["id"]) == (200, name)
            listed = (await here.client.get("/v1/models")).json()["data"]
            assert "chat@beta" not in [each["id"] for each in listed]
            for name in ("chat@none", "own@beta", "@beta", "none"):
                none = await here.client.get(f"/v1/models/{name}")
                assert none.json()["error"]["code"] == "model_not_found"

    run(scenario())
