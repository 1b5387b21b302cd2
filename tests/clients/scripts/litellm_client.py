"""What people do with litellm; prints JSON. Arguments: base URL, model."""

import json
import sys

import litellm

base, model = sys.argv[1:3]
litellm.telemetry = False
usual = {"api_base": base, "api_key": "none", "temperature": 0, "num_retries": 0, "timeout": 60}
hello = [{"role": "user", "content": "What is the capital of France?"}]
name = f"openai/{model}"
whole = litellm.completion(
    model=name, messages=hello, max_tokens=12, logprobs=True, top_logprobs=2, **usual
)
found = {"chat": whole.choices[0].message.content}
found["chat_logprobs"] = [
    [each.logprob, len(each.top_logprobs)] for each in whole.choices[0].logprobs.content
]
chunks = list(
    litellm.completion(
        model=name,
        messages=hello,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        **usual,
    )
)
found["stream"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
found["stream_usage"] = chunks[-1].usage.completion_tokens
text = f"text-completion-openai/{model}"
done = litellm.text_completion(model=text, prompt="One, two, three,", max_tokens=8, **usual)
found["completion"] = done.choices[0].text
stopped = litellm.text_completion(
    model=text, prompt="One, two, three,", max_tokens=20, stop=["five"], **usual
)
found["stop"] = [stopped.choices[0].text, stopped.choices[0].finish_reason]
found["errors"] = []
for wrong in ({"temperature": 9}, {"model": "openai/no-such"}):
    try:
        litellm.completion(**{"model": name, "messages": hello, **usual, **wrong})
    except Exception as error:
        found["errors"].append([type(error).__name__, None, None])
print(json.dumps(found))
