"""/tokenize and /detokenize of models behind other servers, each asked in its own way."""

from collections.abc import Mapping
from typing import Any

import pytest

from headway.service.upstream.settings import Kind
from tests.unit.service.gateway.fakes import run
from tests.upstreams import Pen, Script, Seen, front, upstream

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
PICTURE = {"type": "image_url", "image_url": {"url": "http://10.0.0.1/secret"}}


def saying(answers: Mapping[str, object], status: int = 200) -> Script:
    """A script: these answers by path."""

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(status, answers[seen.path])

    return script


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.HEADWAY])
def test_texts_and_chats_are_encoded_by_the_server_s_own_call(kind: Kind) -> None:
    told = {"count": 2, "max_model_len": 64, "tokens": [5, 6], "token_strs": ["a", "b"]}

    async def scenario() -> None:
        script = saying({"/tokenize": told, "/detokenize": {"prompt": "ab"}})
        async with upstream(script) as theirs, front([theirs], kind=kind, model="big") as here:
            asked = {"model": "m", "prompt": "ab", "return_token_strs": True}
            found = await here.client.post("/tokenize", json=asked)
            assert found.json() == told
            assert theirs.seen[0].json == {**asked, "model": "big"}
            chat = {"messages": HI, "tools": [TOOL], "chat_template": None, "priority": 1}
            assert (await here.client.post("/v1/tokenize", json=chat)).json()["count"] == 2
            assert theirs.seen[1].json == {"model": "big", "messages": HI, "tools": [TOOL]}
            back = await here.client.post("/detokenize", json={"model": "m", "tokens": [5, 6]})
            assert back.json() == {"prompt": "ab"}
            assert theirs.seen[2].json == {"model": "big", "tokens": [5, 6]}

    run(scenario())


def test_llama_cpp_is_asked_for_the_text_of_a_chat_first() -> None:
    pieces = [{"id": 5, "piece": "<u>"}, {"id": 6, "piece": [240, 159]}]

    async def script(seen: Seen, pen: Pen) -> None:
        asked = seen.json
        if seen.path == "/apply-template":
            return await pen.answer(200, {"prompt": "<u>Hi"})
        if seen.path == "/detokenize":
            return await pen.answer(200, {"content": "Hi"})
        found = pieces if asked["with_pieces"] else [5, 6]
        await pen.answer(200, {"tokens": found})

    async def scenario() -> None:
        kind = Kind.LLAMACPP
        async with upstream(script) as theirs:
            theirs.models = [{"id": "m", "meta": {"n_ctx": 2048}}]
            async with front([theirs], kind=kind) as here:
                found = await here.client.post("/tokenize", json={"messages": HI})
                assert found.json() == {
                    "count": 2,
                    "max_model_len": 2048,
                    "tokens": [5, 6],
                    "token_strs": None,
                }
                assert theirs.seen[0].json == {"messages": HI}
                sent = {"content": "<u>Hi", "add_special": True, "parse_special": True}
                assert theirs.seen[1].json == {**sent, "with_pieces": False}
                plain = {"prompt": "Hi", "add_special_tokens": False, "return_token_strs": True}
                texts = (await here.client.post("/tokenize", json=plain)).json()
                assert texts["tokens"] == [5, 6]
                assert texts["token_strs"] == ["<u>", "bytes:\\xf0\\x9f"]
                assert theirs.seen[2].json["add_special"] is False
                back = await here.client.post("/detokenize", json={"tokens": [5, 6]})
                assert back.json() == {"prompt": "Hi"}

    run(scenario())


def test_sglang_encodes_texts_only() -> None:
    async def scenario() -> None:
        told = {"tokens": [5], "count": 1, "max_model_len": 64}
        script = saying({"/tokenize": told, "/detokenize": {"text": "Hi"}})
        async with upstream(script) as theirs, front([theirs], kind=Kind.SGLANG) as here:
            found = await here.client.post("/tokenize", json={"prompt": "Hi"})
            assert found.json() == {**told, "token_strs": None}
            back = await here.client.post("/detokenize", json={"tokens": [5]})
            assert back.json() == {"prompt": "Hi"}
            refused = await here.client.post("/tokenize", json={"messages": HI})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "messages"
            assert "send 'prompt'" in refused.json()["error"]["message"]

    run(scenario())


def test_a_server_that_has_no_such_call_is_named_as_the_reason() -> None:
    async def scenario() -> None:
        async with upstream(saying({})) as theirs, front([theirs]) as here:
            for path, body in (("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [1]})):
                refused = (await here.client.post(path, json=body)).json()["error"]
                assert refused["param"] == "model"
                assert f"another server, which has no {path[1:]}" in refused["message"]
            assert theirs.seen == []

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": HI}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages"),
        ({"messages": HI, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"model": "nope", "prompt": "a"}, "model"),
    ],
)
def test_what_cannot_be_is_refused_here(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        async with upstream(saying({})) as theirs, front([theirs], kind=Kind.VLLM) as here:
            refused = await here.client.post("/tokenize", json=body)
            assert refused.status_code in {400, 404}
            assert refused.json()["error"]["param"] == param
            assert theirs.seen == []

    run(scenario())


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (saying({"/tokenize": {"error": {"message": "big at 10.0.0.7:80 is wrong"}}}, 400), 400),
        (saying({"/tokenize": {"detail": "no key"}}, 401), 502),
        (saying({"/tokenize": {"tokens": ["x"]}}), 502),
        (saying({"/tokenize": b"no json"}), 502),
    ],
)
def test_its_refusals_are_told_as_those_of_a_chat_are(script: Script, status: int) -> None:
    async def scenario() -> None:
        async with upstream(script) as theirs, front([theirs], kind=Kind.VLLM, model="big") as here:
            refused = await here.client.post("/tokenize", json={"prompt": "Hi"})
            assert refused.status_code == status
            assert "10.0.0.7" not in refused.text
            assert "big" not in refused.text

    run(scenario())
