"""What people do with litellm behind a gateway with keys and limits; prints JSON.

Arguments: as gateway_openai.py.
"""

import asyncio
import json
import sys
import threading

import litellm
import openai
import pydantic

base, model, good, single, rare = sys.argv[1:6]
litellm.telemetry = False
litellm.suppress_debug_info = True
usual = {"api_base": base, "model": f"openai/{model}", "timeout": 30, "num_retries": 0}
none = {"max_retries": 0}
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


def ask(text: str, key: str = good, **more: object) -> object:
    """One answer."""
    return litellm.completion(messages=say(text), api_key=key, **{**usual, **none, **more})


def named(calls: list[object]) -> list[object]:
    """Names and arguments."""
    return [[each.function.name, json.loads(each.function.arguments)] for each in calls]


found: dict[str, object] = {}
called = ask("tools", tools=[TOOL])
found["tools"] = named(called.choices[0].message.tool_calls)
found["tools_finish"] = called.choices[0].finish_reason
whole = litellm.stream_chunk_builder(list(ask("tools", tools=[TOOL], stream=True)))
found["streamed_tools"] = named(whole.choices[0].message.tool_calls)
found["tool_ids"] = [each.id for each in whole.choices[0].message.tool_calls]
text = ask("json", response_format=City).choices[0].message.content
found["parsed"] = City.model_validate_json(text).model_dump()


async def asynchronous() -> None:
    """Many at once, one that is cancelled, and one stream that is closed early."""
    mine = {**usual, **none, "api_key": good}
    answers = await asyncio.gather(
        *(litellm.acompletion(messages=say("Hi"), **mine) for _ in range(10))
    )
    found["async"] = [each.choices[0].message.content for each in answers]
    stream = await litellm.acompletion(messages=say("slow"), stream=True, **mine)
    async for chunk in stream:
        found["before_close"] = chunk.choices[0].delta.content
        break
    await stream.completion_stream.close()
    task = asyncio.create_task(litellm.acompletion(messages=say("hang"), **mine))
    await asyncio.sleep(2.0)  # it has reached the server, also on a busy machine
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        found["cancelled"] = True


asyncio.run(asynchronous())
# One request at a time: the second is told to wait for a second, and does so by itself.
holder = openai.OpenAI(api_key=single, base_url=base, max_retries=0)
held = holder.chat.completions.create(model=model, messages=say("slow"), stream=True)
next(iter(held))
try:
    ask("Hi", single)
except litellm.RateLimitError as error:
    found["waited"] = [error.status_code]
threading.Timer(0.3, held.close).start()
found["waited"].append(
    ask("Hi", single, max_retries=4, num_retries=None).choices[0].message.content
)
found["errors"] = []
ask("Hi", rare)
for kind, arguments in (
    ("key", {"key": good + "x"}),
    ("model", {"model": "openai/no-such"}),
    ("rate", {"key": rare}),
    ("stream", {"text": "break", "stream": True}),
    ("down", {"text": "down"}),
):
    try:
        answer = ask(**{"text": "Hi", **arguments})
        if kind == "stream":
            for chunk in answer:
                found["before_break"] = chunk.choices[0].delta.content or found.get("before_break")
    except Exception as error:
        found["errors"].append([kind, type(error).__name__, None, None])
print(json.dumps(found))
