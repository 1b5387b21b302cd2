"""What people do with langchain-openai behind a gateway with keys and limits; prints JSON.

Arguments: as gateway_openai.py.
"""

import asyncio
import json
import sys
import threading

import openai
import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

base, model, good, single, rare = sys.argv[1:6]
usual = {"base_url": base, "model": model, "timeout": 30}
chat = ChatOpenAI(api_key=good, max_retries=0, **usual)


class City(pydantic.BaseModel):
    """A city and how many live there."""

    city: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return city


found: dict[str, object] = {}
with_tools = chat.bind_tools([weather])
found["tools"] = [[each["name"], each["args"]] for each in with_tools.invoke("tools").tool_calls]
whole = None
for part in with_tools.stream("tools"):
    whole = part if whole is None else whole + part
found["streamed_tools"] = [[each["name"], each["args"]] for each in whole.tool_calls]
found["tool_ids"] = [each["id"] for each in whole.tool_calls]
structured = chat.with_structured_output(City, method="json_schema")
found["parsed"] = structured.invoke("json").model_dump()


async def asynchronous() -> None:
    """Many at once, one that is cancelled, and one stream that is closed early."""
    answers = await chat.abatch(["Hi"] * 10)
    found["async"] = [each.content for each in answers]
    stream = chat.astream("slow")
    async for part in stream:
        if part.content:
            found["before_close"] = part.content
            break
    await stream.aclose()
    task = asyncio.create_task(chat.ainvoke("hang"))
    await asyncio.sleep(2.0)  # it has reached the server, also on a busy machine
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        found["cancelled"] = True


asyncio.run(asynchronous())
# One request at a time: the second is told to wait for a second, and does so by itself.
held = ChatOpenAI(api_key=single, max_retries=0, **usual).stream("slow")
next(held)
try:
    ChatOpenAI(api_key=single, max_retries=0, **usual).invoke("Hi")
except openai.RateLimitError as error:
    found["waited"] = [error.status_code]
threading.Timer(0.3, held.close).start()
found["waited"].append(ChatOpenAI(api_key=single, max_retries=4, **usual).invoke("Hi").content)
found["errors"] = []
seldom = ChatOpenAI(api_key=rare, max_retries=0, **usual)
seldom.invoke("Hi")
for kind, client, text in (
    ("key", ChatOpenAI(api_key=good + "x", max_retries=0, **usual), "Hi"),
    ("model", ChatOpenAI(api_key=good, max_retries=0, **{**usual, "model": "no-such"}), "Hi"),
    ("rate", seldom, "Hi"),
    ("stream", chat, "break"),
    ("down", chat, "down"),
):
    try:
        if kind == "stream":
            for part in client.stream(text):
                found["before_break"] = part.content or found.get("before_break")
        else:
            client.invoke(text)
    except openai.APIError as error:
        name = next(each for each in type(error).__mro__ if each.__module__ == "openai").__name__
        answer = getattr(error, "response", None)
        wait = None if answer is None else answer.headers.get("retry-after")
        found["errors"].append([kind, name, error.code, wait is not None])
print(json.dumps(found))
