"""Requests that would mean one thing to the gateway and another to the server behind it."""

import gzip
from typing import Any

import pytest

from headway.core.route.table import RouteSettings, RoutesSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Modality
from tests.unit.service.gateway.fakes import run
from tests.upstreams import CHAT, HI, Pen, Seen, answer, front, hello, upstream

COMPLETIONS = "/v1/completions"


def test_no_other_spelling_of_a_field_reaches_the_upstream() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs], model="theirs") as here:
            body = {
                **HI,
                "max_tokens": 5,
                "Model": "their-secret-model",
                "MODEL": "their-secret-model",
                "Max_Tokens": 100_000,
                "meſſages": [{"role": "system", "content": "other"}],
                "\u212av_transfer_params": {"do_remote_prefill": True},
                "API_BASE": "http://127.0.0.1:1",
                "Priority": -9,
                "N": 16,
                "Chat_Template": "{{ 1 }}",
            }
            found = await here.client.post(CHAT, json=body)
            assert found.status_code == 200
            (seen,) = theirs.seen
            assert set(seen.json) == {"model", "messages", "max_tokens"}
            assert seen.json["model"] == "theirs"

    run(scenario())


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"max_tokens": 100_000, "max_completion_tokens": 1}, "max_tokens"),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 100_000}, "max_tokens"),
        (CHAT, {"max_tokens": 1, "n_predict": 100_000}, "n_predict"),
        (CHAT, {"max_tokens": 1, "max_new_tokens": 100_000}, "max_new_tokens"),
        (COMPLETIONS, {"max_completion_tokens": 1}, "max_completion_tokens"),
        (COMPLETIONS, {"num_predict": -1}, "num_predict"),
        (CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
        (
            CHAT,
            {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
            "chat_template_kwargs.chat_template",
        ),
        (CHAT, {"chat_template_kwargs": {"Chat_Template": "x"}}, "chat_template_kwargs"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (CHAT, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
        (CHAT, {"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
    ],
)
def test_what_would_go_round_a_limit_or_the_template_is_refused(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            base = HI if path == CHAT else {"model": "m", "prompt": "Hi"}
            found = await here.client.post(path, json={**base, **fields})
            assert found.status_code == 400, found.text
            assert found.json()["error"]["param"] == param
            assert theirs.seen == []

    run(scenario())


def test_arguments_that_a_template_has_for_itself_go_on() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs, front([theirs]) as here:
            given = {"enable_thinking": False}
            found = await here.chat(
                chat_template_kwargs=given, max_tokens=4, max_completion_tokens=4
            )
            assert found.status_code == 200
            assert theirs.seen[0].json["chat_template_kwargs"] == given
            assert theirs.seen[0].json["max_completion_tokens"] == 4

    run(scenario())


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "x", "image_url": {"url": "http://{canary}/"}}],
        [{"type": "text", "text": "x", "image_url": {"url": "HTTP://{canary}/"}}],
        [{"type": "image_url", "image_url": {"url": " \thttp://{canary}/"}}],
        [{"type": "image_url", "image_url": "//{canary}/"}],
        [{"type": "image_url", "image_url": {"url": "data:,x", "alt": "http://{canary}/"}}],
        [{"type": "input_audio", "input_audio": {"data": "http://{canary}/", "format": "wav"}}],
        [{"type": "file", "file": {"file_url": "file:///etc/hostname"}}],
        [{"type": "video_url", "video_url": {"url": "http://{canary}/"}}],
        [{"type": "thinking", "thinking": "x", "audio_url": {"url": "http://{canary}/"}}],
        {"type": "image_url", "image_url": {"url": "http://{canary}/"}},
        ["http://{canary}/"],
        [["http://{canary}/"]],
        [{"type": "url", "url": "http://{canary}/"}],
        [{"image_url": {"url": "http://{canary}/"}}],
        [{"type": "IMAGE_URL", "image_url": {"url": "http://{canary}/"}}],
    ],
)
def test_security_ssrf_01_no_form_of_content_carries_an_address_on(content: Any) -> None:
    async def scenario() -> None:
        async with upstream(hello) as canary, upstream(hello) as theirs:
            taken = (Modality.IMAGE, Modality.AUDIO, Modality.VIDEO)
            where = canary.url.removeprefix("http://")

            def filled(node: Any) -> Any:
                if isinstance(node, str):
                    return node.replace("{canary}", where)
                if isinstance(node, list):
                    return [filled(each) for each in node]
                return {key: filled(value) for key, value in node.items()}

            async with front([theirs], modalities=taken) as here:
                for role in ("user", "tool", "system"):
                    found = await here.chat(messages=[{"role": role, "content": filled(content)}])
                    assert found.status_code == 400, found.text
                    assert where not in found.text
                assert theirs.seen == []
                assert canary.num_connections == 0

    run(scenario())


async def talkative(seen: Seen, pen: Pen) -> None:
    """An upstream that sends headers which mean something to clients and proxies."""
    await pen.answer(
        200,
        answer(),
        "set-cookie: a=b",
        "x-headway-route: theirs",
        "x-headway-model: theirs",
        "x-ratelimit-remaining-tokens: 0",
        "x-request-id: theirs",
        "retry-after: 9",
        "server: theirs/1.0",
        "location: http://127.0.0.1:1/",
        "access-control-allow-origin: *",
        "www-authenticate: Basic",
    )


def test_headers_of_an_upstreams_answer_stay_behind() -> None:
    async def scenario() -> None:
        routes = RoutesSettings(names=(RouteSettings(name="chat", pool="m"),))
        async with upstream(talkative) as theirs, front([theirs], routes=routes) as here:
            found = await here.chat(model="chat")
            assert found.status_code == 200
            assert set(found.headers) <= {
                *("content-type", "content-length", "x-request-id", "date"),
                *("x-headway-model", "x-headway-route", "x-headway-version"),
            }
            assert "theirs" not in found.headers.values()

    run(scenario())


def test_a_compressed_answer_is_not_unpacked() -> None:
    """Ten kilobytes of it could be ten megabytes; none was asked for."""

    async def bomb(seen: Seen, pen: Pen) -> None:
        await pen.answer(200, gzip.compress(b" " * 10_000_000), "content-encoding: gzip")

    async def scenario() -> None:
        async with upstream(bomb) as theirs, front([theirs]) as here:
            found = await here.chat()
            assert found.status_code == 502, found.text
            assert "gzip" not in found.text

    run(scenario())


def test_a_tenant_without_a_model_cannot_name_it_past_its_route() -> None:
    async def scenario() -> None:
        gateway = GatewaySettings(tenant=("a:standard:key-a",))
        routes = RoutesSettings(names=(RouteSettings(name="chat", pool="m"),))
        async with upstream(hello) as theirs:
            made = front([theirs], gateway=gateway, routes=routes, model="theirs")
            async with made as here:
                headers = {"authorization": "Bearer key-a"}
                twice = b'{"model":"chat","messages":[{"role":"user","content":"x"}],"model":"no"}'
                found = await here.client.post(CHAT, content=twice, headers=headers)
                assert found.status_code == 404
                both = b'{"model":"no","messages":[{"role":"user","content":"x"}],"model":"chat"}'
                found = await here.client.post(CHAT, content=both, headers=headers)
                assert found.status_code == 200
                assert theirs.seen[0].json["model"] == "theirs"
                for name in ("chat@nope", "chat\0", "Chat", "m@stable@x", "theirs"):
                    found = await here.client.post(
                        CHAT, json={**HI, "model": name}, headers=headers
                    )
                    assert found.status_code == 404, name

    run(scenario())
