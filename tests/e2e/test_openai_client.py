"""The real `openai` client against a real server: sync and async, streamed and not."""

import asyncio
from collections.abc import Callable

import openai
import pytest

from tests.e2e.server import Server, until

MODEL = "SmolLM2-135M-Instruct"


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.mark.spec("M9")
def test_models_are_listed_and_found_by_name(server: Server) -> None:
    with client(server) as api:
        names = [model.id for model in api.models.list()]
        assert api.models.retrieve(names[0]).id == names[0]
        with pytest.raises(openai.NotFoundError, match="no-such"):
            api.models.retrieve("no-such")


@pytest.mark.spec("A6")
def test_chat_is_the_same_streamed_or_not(server: Server) -> None:
    with client(server) as api:
        name = api.models.list().data[0].id
        whole = api.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_completion_tokens=12,
            temperature=0,
        )
        stream = api.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_completion_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {c.id for c in chunks} == {chunks[0].id}


def test_each_token_is_an_event_of_its_own(server: Server) -> None:
    def num_events(api: openai.OpenAI) -> int:
        stream = api.completions.create(
            model=api.models.list().data[0].id,
            prompt="The quick brown fox",
            max_tokens=10,
            temperature=0,
            stream=True,
        )
        texts = [chunk.choices[0].text for chunk in stream if chunk.choices]
        return len([text for text in texts if text])

    with client(server) as api:
        # On a busy machine one event may have two tokens; it has not each time.
        until(lambda: num_events(api) >= 8, 5.0, "each has its own")


def test_errors_map_to_the_clients_own(server: Server) -> None:
    with client(server) as api:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            api.chat.completions.create(
                model=api.models.list().data[0].id,
                messages=[{"role": "user", "content": "Hi"}],
                temperature=9,
            )
        with pytest.raises(openai.NotFoundError):
            api.chat.completions.create(
                model="no-such", messages=[{"role": "user", "content": "Hi"}]
            )


@pytest.mark.parametrize(
    "ask",
    [
        lambda api: api.embeddings.create(model=MODEL, input="Hi"),
        lambda api: api.responses.create(model=MODEL, input="Hi"),
        lambda api: api.moderations.create(input="Hi"),
        lambda api: api.images.generate(prompt="Hi"),
        lambda api: api.files.list(),
        lambda api: api.batches.list(),
    ],
    ids=["embeddings", "responses", "moderations", "images", "files", "batches"],
)
def test_what_is_not_served_is_the_client_s_own_not_found(
    server: Server, ask: Callable[[openai.OpenAI], object]
) -> None:
    with client(server) as api, pytest.raises(openai.NotFoundError) as caught:
        ask(api)
    assert caught.value.code == "not_found"
    assert caught.value.type == "not_found_error"


@pytest.mark.spec("C5")
def test_fifty_at_a_time_all_get_their_own_answer(server: Server) -> None:
    prompts = [f"Number {index}:" for index in range(50)]

    async def ask_all() -> list[str]:
        base = server.url + "/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as api:
            name = (await api.models.list()).data[0].id

            async def ask(index: int) -> str:
                if index % 2:
                    answer = await api.completions.create(
                        model=name, prompt=prompts[index], max_tokens=6, temperature=0
                    )
                    return answer.choices[0].text
                pieces = []
                async for chunk in await api.completions.create(
                    model=name, prompt=prompts[index], max_tokens=6, temperature=0, stream=True
                ):
                    pieces += [choice.text for choice in chunk.choices]
                return "".join(pieces)

            return list(await asyncio.gather(*(ask(index) for index in range(50))))

    found = asyncio.run(ask_all())
    for index in (0, 1, 24, 49):
        alone = server.complete(prompts[index], max_tokens=6)["choices"][0]["text"]
        assert found[index] == alone
    assert len(found) == 50
