// What people do with `openai` from npm: prints what came back as JSON. Arguments: base URL, model.
import OpenAI from "openai";

const [base, model] = process.argv.slice(2);
const api = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const found = { models: (await api.models.list()).data.map((each) => each.id) };
const usual = { model, messages, max_tokens: 12, temperature: 0 };
const whole = await api.chat.completions.create({ ...usual, logprobs: true, top_logprobs: 2 });
found.chat = whole.choices[0].message.content;
found.chat_logprobs = whole.choices[0].logprobs.content.map((e) => [e.logprob, e.top_logprobs.length]);
found.stream = "";
const asked = { ...usual, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await api.chat.completions.create(asked)) {
  found.stream += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) found.stream_usage = chunk.usage.completion_tokens;
}
const prompt = { model, prompt: "One, two, three,", temperature: 0 };
const done = await api.completions.create({ ...prompt, max_tokens: 8, logprobs: 1, echo: true });
found.completion = done.choices[0].text;
found.completion_logprobs = done.choices[0].logprobs.token_logprobs.length;
const stopped = await api.completions.create({ ...prompt, max_tokens: 20, stop: ["five"] });
found.stop = [stopped.choices[0].text, stopped.choices[0].finish_reason];
// A reader that leaves early.
const left = await api.chat.completions.create({ ...usual, max_tokens: 200, stream: true });
for await (const _ of left) break;
found.errors = [];
for (const wrong of [{ temperature: 9 }, { model: "no-such" }, { max_tokens: 10 ** 9 }]) {
  try {
    await api.chat.completions.create({ ...usual, ...wrong });
  } catch (error) {
    found.errors.push([error.constructor.name, error.code, error.param]);
  }
}
console.log(JSON.stringify(found));
