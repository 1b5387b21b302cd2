"""Routes over two real models, with the real `openai` client and the file of the document."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway-routes.md"
SMALL = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "32M", "--threads", "1")
HARD = (
    "Prove that there are infinitely many primes of the form 4k+3, derive a bound on the n-th one "
    "step by step, and analyze which assumptions your proof needs."
)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A server with the file of the document; both models are the built-in one."""
    folder = tmp_path_factory.mktemp("routes")
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    for name in ("small.gguf", "large.gguf"):
        (folder / name).symlink_to(smollm2_path)
        text = text.replace(f"model: {name}", f"model: {folder / name}")
    file = folder / "headway.yaml"
    file.write_text(text)
    server = Server(folder, None, "--config", str(file), *SMALL)
    try:
        yield server.wait_ready()
    finally:
        assert server.stop() == 0


@pytest.fixture
def api(routed: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=routed.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(api: openai.OpenAI, model: str, text: str = "Say hello.", **more: Any) -> tuple[Any, Any]:
    """A whole answer, and its headers."""
    raw = api.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_completion_tokens=6,
        temperature=0,
        **more,
    )
    return raw.parse(), raw.headers


@pytest.mark.spec("B1")
def test_every_name_of_the_table_is_listed_and_answers(api: openai.OpenAI) -> None:
    names = [model.id for model in api.models.list()]
    assert names == ["small", "large", "chat", "gpt-4o-mini", "careful", "fast", "auto"]
    texts = set()
    for name in (*names, "chat@preview"):
        answer, headers = ask(api, name)
        assert answer.model == name
        assert headers["x-headway-model"] in {"small", "large"}
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1  # it is the same file
    with pytest.raises(openai.NotFoundError, match="no version 'canary'"):
        ask(api, "chat@canary")


@pytest.mark.spec("B1")
def test_the_native_path_takes_the_version_from_the_query(routed: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    answer = routed.post("/v1/chat?model=preview", body)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["x-headway-model"] == "large"
    assert answer.headers["x-headway-route"] == "version:preview"
    assert routed.post("/v1/chat", body).headers["x-headway-route"] == "split:request"


@pytest.mark.spec("B2")
def test_auto_goes_by_the_prompt(api: openai.OpenAI) -> None:
    _, simple = ask(api, "auto", "What is the capital of Peru?")
    assert (simple["x-headway-model"], simple["x-headway-route"]) == ("small", "size:small")
    _, hard = ask(api, "auto", HARD)
    assert (hard["x-headway-model"], hard["x-headway-route"]) == ("large", "size:large")


@pytest.mark.spec("B3")
def test_a_user_stays_in_their_arm_streamed_or_not(api: openai.OpenAI) -> None:
    for user in ("ada", "grace", "alan"):
        arms = {ask(api, "chat", user=user)[1]["x-headway-arm"] for _ in range(3)}
        with api.chat.completions.with_streaming_response.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": "Hi"}],
            max_completion_tokens=2,
            user=user,
            stream=True,
        ) as stream:
            arms.add(stream.headers["x-headway-arm"])
        assert len(arms) == 1


@pytest.mark.spec("B7")
def test_a_cascade_answers_once_and_counts_what_it_did(api: openai.OpenAI, routed: Server) -> None:
    answer, headers = ask(api, "careful", "Write three unusual words.")
    assert answer.usage.completion_tokens <= 6
    assert headers["x-headway-route"] in {"cascade:first", "cascade:escalated"}
    outcomes = {
        series: value
        for series, value in routed.metrics().items()
        if series.startswith("headway_cascade_requests_total")
    }
    assert sum(outcomes.values()) >= 1
    assert 0.0 <= routed.metrics()['headway_cascade_escalation_rate{model="small"}'] <= 1.0


def test_a_table_that_cannot_be_ends_the_start_with_one_line(
    tmp_path: Path, smollm2_path: str
) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text(
        f"models: [{{model: {smollm2_path}, served_model_name: m}}]\n"
        "routes: {names: [{name: chat, versions: {stable: m}, split: {stable: 0}}]}\n"
    )
    server = Server(tmp_path, None, "--config", str(file))
    assert server.process.wait(60) == 2
    server.client.close()
    (said,) = server.log.read_text().splitlines()
    assert said.startswith(f"headway serve: {file}:2: routes.names[0].split: every weight is 0")
