"""What people do with `openai` behind a gateway with keys and limits; prints JSON.

Arguments: base URL, model, a key, a key of a tenant with one request at a time, one of a tenant
with one request a minute.
"""

import asyncio
import json
import sys
import threading

import openai
import pydantic

base, model, good, single, rare = sys.argv[1:6]
usual = {"base_url": base, "timeout": 30}
api = openai.OpenAI(api_key=good, max_retries=0, **usual)
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


class City(pydantic.BaseModel):
    """What is asked for."""

    city: str
    people: int


def say(text: str) -> list[dict[str, str]]:
    """One turn."""
    return [{"role": "user", "content": text}]


found: dict[str, object] = {}
called = api.chat.completions.create(model=model, messages=say("tools"), tools=[TOOL])
found["tools"] = [
    [each.function.name, json.loads(each.function.arguments)]
    for each in called.choices[0].message.tool_calls
]
found["tools_finish"] = called.choices[0].finish_reason
calls: dict[int, list[str]] = {}
with api.chat.completions.create(
    model=model, messages=say("tools"), tools=[TOOL], stream=True
) as stream:
    for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            call = calls.setdefault(delta.index, ["", "", ""])
            call[0] += delta.id or ""
            call[1] += delta.function.name or ""
            call[2] += delta.function.arguments or ""
found["streamed_tools"] = [[name, json.loads(text)] for _, name, text in calls.values()]
found["tool_ids"] = [each[0] for each in calls.values()]
parsed = api.chat.completions.parse(model=model, messages=say("json"), response_format=City)
found["parsed"] = parsed.choices[0].message.parsed.model_dump()


async def asynchronous() -> None:
    """Many at once, one that is cancelled, and one stream that is closed early."""
    async with openai.AsyncOpenAI(api_key=good, max_retries=0, **usual) as many:
        answers = await asyncio.gather(
            *(many.chat.completions.create(model=model, messages=say("Hi")) for _ in range(10))
        )
        found["async"] = [each.choices[0].message.content for each in answers]
        slow = many.chat.completions.create(model=model, messages=say("slow"), stream=True)
        stream = await slow
        async for chunk in stream:
            found["before_close"] = chunk.choices[0].delta.content
            break
        await stream.close()
        task = asyncio.create_task(many.chat.completions.create(model=model, messages=say("hang")))
        await asyncio.sleep(2.0)  # it has reached the server, also on a busy machine
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            found["cancelled"] = True


asyncio.run(asynchronous())

# One request at a time: the second is told to wait for a second, and does so by itself.
one = openai.OpenAI(api_key=single, max_retries=4, **usual)
held = one.chat.completions.create(model=model, messages=say("slow"), stream=True)
next(iter(held))
threading.Timer(0.3, held.close).start()
raw = one.chat.completions.with_raw_response.create(model=model, messages=say("Hi"))
found["waited"] = [raw.status_code, raw.retries_taken > 0]

found["errors"] = []


def fails(kind: str, client: openai.OpenAI, text: str = "Hi", name: str = model) -> None:
    """Note what it raises."""
    try:
        for chunk in client.chat.completions.create(
            model=name, messages=say(text), stream=kind == "stream"
        ):
            if kind != "stream":
                break
            found["before_break"] = chunk.choices[0].delta.content or found.get("before_break")
    except openai.APIStatusError as error:
        wait = error.response.headers.get("retry-after")
        found["errors"].append([kind, type(error).__name__, error.code, wait is not None])
    except openai.APIError as error:
        found["errors"].append([kind, type(error).__name__, error.code, False])


fails("key", openai.OpenAI(api_key=good + "x", max_retries=0, **usual))
fails("model", api, name="no-such")
seldom = openai.OpenAI(api_key=rare, max_retries=0, **usual)
seldom.chat.completions.create(model=model, messages=say("Hi"))
fails("rate", seldom)
fails("stream", api, "break")
fails("down", api, "down")
print(json.dumps(found))
