"""What people do with langchain-openai; prints JSON. Arguments: base URL, model."""

import json
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

base, model = sys.argv[1:3]
usual = {"base_url": base, "api_key": "none", "model": model, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(**usual, max_tokens=12)
question = "What is the capital of France?"
found = {"chat": chat.invoke(question).content}
parts = list(chat.stream(question, stream_usage=True))
found["stream"] = "".join(each.content for each in parts)
found["stream_usage"] = sum(
    each.usage_metadata["output_tokens"] for each in parts if each.usage_metadata
)
with_logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(question)
found["chat_logprobs"] = [
    [each["logprob"], len(each["top_logprobs"])]
    for each in with_logprobs.response_metadata["logprobs"]["content"]
]
chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{q}")]) | chat
found["batch"] = [each.content for each in chain.batch([{"q": question}, {"q": "Name a fruit."}])]
history = [SystemMessage("Be brief."), HumanMessage("Hi"), AIMessage("Hello!"), HumanMessage("Bye")]
found["history"] = chat.invoke(history).content
complete = OpenAI(**usual, max_tokens=8)
found["completion"] = complete.invoke("One, two, three,")
found["stop"] = [complete.bind(max_tokens=20).invoke("One, two, three,", stop=["five"]), "stop"]
found["errors"] = []
for wrong in ({"temperature": 9}, {"model": "no-such"}):
    try:
        ChatOpenAI(**{**usual, **wrong}).invoke(question)
    except openai.APIStatusError as error:
        kind = next(each for each in type(error).__mro__ if each.__module__ == "openai")
        found["errors"].append([kind.__name__, error.code, error.param])
print(json.dumps(found))
