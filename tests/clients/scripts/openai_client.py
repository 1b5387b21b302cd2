"""What people do with `openai`: prints what came back as JSON. Arguments: base URL, model."""

import json
import sys

import openai

base, model = sys.argv[1:3]
api = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
hello = [{"role": "user", "content": "What is the capital of France?"}]
found = {"models": [each.id for each in api.models.list()]}
whole = api.chat.completions.create(
    model=model, messages=hello, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
)
found["chat"] = whole.choices[0].message.content
found["chat_logprobs"] = [
    [each.logprob, len(each.top_logprobs)] for each in whole.choices[0].logprobs.content
]
chunks = list(
    api.chat.completions.create(
        model=model,
        messages=hello,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
)
found["stream"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
found["stream_usage"] = chunks[-1].usage.completion_tokens
done = api.completions.create(
    model=model, prompt="One, two, three,", max_tokens=8, temperature=0, logprobs=1, echo=True
)
found["completion"] = done.choices[0].text
found["completion_logprobs"] = len(done.choices[0].logprobs.token_logprobs)
stopped = api.completions.create(
    model=model, prompt="One, two, three,", max_tokens=20, temperature=0, stop=["five"]
)
found["stop"] = [stopped.choices[0].text, stopped.choices[0].finish_reason]
raw = api.chat.completions.with_raw_response.create(model=model, messages=hello, max_tokens=1)
found["raw_status"] = raw.status_code
found["errors"] = []
for wrong in ({"temperature": 9}, {"model": "no-such"}, {"max_tokens": 10**9}):
    try:
        api.chat.completions.create(**{"model": model, "messages": hello, **wrong})
    except openai.APIStatusError as error:
        found["errors"].append([type(error).__name__, error.code, error.param])
print(json.dumps(found))
