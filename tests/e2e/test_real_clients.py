"""Clients that people have, each in its own environment, against a real server."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.clients.environments import SCRIPTS, Environment, environments
from tests.e2e.server import Server

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
COUNT = "One, two, three,"
ALL = environments()
RUN_S = 240
needs_npm = pytest.mark.skipif(
    shutil.which("npm") is None, reason="npm is not here (apt-get install nodejs npm)"
)


def run(command: list[str], folder: Path, more: Mapping[str, str]) -> str:
    """Its standard output; it must end well, and reach nothing but this machine."""
    outside = {name: "http://127.0.0.1:9" for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    environment = {
        **os.environ,
        **outside,
        **{name.lower(): value for name, value in outside.items()},
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": "none",
        "HOME": str(folder),
        **more,
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, env=environment, cwd=folder
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def facts(command: list[str], server: Server, folder: Path) -> dict[str, Any]:
    """What a script of tests/clients/scripts printed last."""
    printed = run([*command, server.url + "/v1", MODEL], folder, {})
    found = json.loads(printed.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def script(environment: Environment, name: str) -> list[str]:
    return [str(environment.make().python), str(SCRIPTS / name)]


def agrees(found: Mapping[str, Any], server: Server) -> None:
    """What the client saw is what the server says without it."""
    chat = server.chat(QUESTION, max_tokens=12, logprobs=True, top_logprobs=2)["choices"][0]
    assert found["chat"] == found["stream"] == chat["message"]["content"]
    assert found["stream_usage"] == len(chat["logprobs"]["content"])
    assert [count for _, count in found["chat_logprobs"]] == [2] * found["stream_usage"]
    for (got, _), want in zip(found["chat_logprobs"], chat["logprobs"]["content"], strict=True):
        assert got == pytest.approx(want["logprob"], abs=1e-3)
    text = server.complete(COUNT, max_tokens=8)["choices"][0]["text"]
    assert found["completion"].removeprefix(COUNT) == text
    stopped = server.complete(COUNT, max_tokens=20, stop=["five"])["choices"][0]
    assert found["stop"] == [stopped["text"], stopped["finish_reason"]]


@pytest.mark.spec("M9")
def test_openai_for_python_does_what_its_users_do(server: Server, tmp_path: Path) -> None:
    found = facts(script(ALL["openai"], "openai_client.py"), server, tmp_path)
    agrees(found, server)
    assert MODEL in found["models"]
    assert found["completion"].startswith(COUNT)
    assert found["completion_logprobs"] > 8
    assert found["raw_status"] == 200
    assert [name for name, _, _ in found["errors"]] == [
        "BadRequestError",
        "NotFoundError",
        "BadRequestError",
    ]
    assert found["errors"][0][2] == "temperature"


@needs_npm
@pytest.mark.spec("M9")
def test_openai_for_node_does_what_its_users_do(server: Server, tmp_path: Path) -> None:
    folder = ALL["openai-npm"].make().folder
    shutil.copy(SCRIPTS / "openai_client.mjs", folder)
    found = facts(["node", str(folder / "openai_client.mjs")], server, tmp_path)
    agrees(found, server)
    assert MODEL in found["models"]
    assert [name for name, _, _ in found["errors"]] == [
        "BadRequestError",
        "NotFoundError",
        "BadRequestError",
    ]


@pytest.mark.spec("M9")
def test_langchain_does_what_its_users_do(server: Server, tmp_path: Path) -> None:
    found = facts(script(ALL["langchain-openai"], "langchain_client.py"), server, tmp_path)
    agrees(found, server)
    assert all(found["batch"])
    assert len(found["batch"]) == 2
    assert found["history"]
    assert [name for name, _, _ in found["errors"]] == ["BadRequestError", "NotFoundError"]


@pytest.mark.spec("M9")
def test_litellm_does_what_its_users_do(server: Server, tmp_path: Path) -> None:
    found = facts(script(ALL["litellm"], "litellm_client.py"), server, tmp_path)
    agrees(found, server)
    assert [name for name, _, _ in found["errors"]] == ["BadRequestError", "NotFoundError"]


@pytest.mark.spec("M9")
def test_llm_answers_and_goes_on_with_a_conversation(server: Server, tmp_path: Path) -> None:
    environment = ALL["llm"].make()
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: ours\n  model_name: {MODEL}\n  api_base: {server.url}/v1\n"
        f"- model_id: ours-text\n  model_name: {MODEL}\n  api_base: {server.url}/v1\n"
        "  completion: true\n"
    )
    usual = [str(environment.program("llm")), "-m", "ours", "-o", "temperature", "0"]
    usual += ["-o", "max_tokens", "12"]
    more = {"LLM_USER_PATH": str(tmp_path)}
    want = server.chat(QUESTION, max_tokens=12)["choices"][0]["message"]["content"]
    assert run([*usual, QUESTION], tmp_path, more).strip() == want.strip()
    assert run([*usual, "--no-stream", QUESTION], tmp_path, more).strip() == want.strip()
    assert run([*usual, "-c", "And of Italy?"], tmp_path, more).strip()
    text = [str(environment.program("llm")), "-m", "ours-text", "-o", "temperature", "0"]
    told = run([*text, "-o", "max_tokens", "8", COUNT], tmp_path, more)
    assert told.strip() == server.complete(COUNT, max_tokens=8)["choices"][0]["text"].strip()


@pytest.mark.spec("M9")
def test_schemathesis_finds_no_server_error_and_nothing_undescribed(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    environment = ALL["schemathesis"].make()
    # A body that sets no limit is a good one: its answer ends with the context.
    server = start("--max-model-len", "64")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    command = [str(environment.program("schemathesis")), "run", server.url + "/openapi.json"]
    command += ["--checks", checks, "--max-examples", "12", "--seed", "7"]
    # It answers only while a request is under way, which a made-up id never is.
    command += ["--exclude-path-regex", "/heartbeat$"]
    command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", "60"]
    told = run(command, tmp_path, {})
    counts = re.search(r"(\d+) generated, (\d+) passed$", told, re.MULTILINE)
    assert counts is not None, told[-3000:]
    assert counts[1] == counts[2]
    assert int(counts[1]) > 1000
    assert "WARNINGS" not in told.upper(), "e.g. that bodies which are described are refused"
    assert server.status_of("/ready") == 200


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to install: make soak")
def test_lm_eval_scores_a_local_task_by_logprobs(
    server: Server, tmp_path: Path, smollm2: ModelFile
) -> None:
    environment = ALL["lm-eval"].make()
    rows = [
        {"q": "The capital of France is", "choices": [" Paris", " Banana"], "answer": 0},
        {"q": "The sun rises in the", "choices": [" pencil", " east"], "answer": 1},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "local_facts.yaml").write_text(
        "task: local_facts\ndataset_path: json\noutput_type: multiple_choice\n"
        f"dataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        'doc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: answer\n'
        'target_delimiter: ""\nmetric_list:\n  - metric: acc\n'
    )
    tokenizer = _tokenizer_folder(tmp_path / "tokenizer", smollm2)
    arguments = f"base_url={server.url}/v1/completions,model={MODEL},tokenizer={tokenizer}"
    arguments += ",tokenizer_backend=huggingface,num_concurrent=1,max_retries=1"
    command = [str(environment.program("lm_eval")), "run", "--model", "local-completions"]
    command += ["--model_args", arguments, "--tasks", "local_facts"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    run(command, tmp_path, {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
    (result,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(result.read_text())["results"]["local_facts"]["acc,none"] == 1.0


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to install: make soak")
def test_guidellm_measures_the_server(server: Server, tmp_path: Path, smollm2: ModelFile) -> None:
    environment = ALL["guidellm"].make()
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Number {i}:"}) + "\n" for i in range(8)))
    tokenizer = _tokenizer_folder(tmp_path / "tokenizer", smollm2)
    command = [str(environment.program("guidellm")), "run", "--disable-progress"]
    command += ["--backend", f"kind=openai_http,target={server.url},model={MODEL},max_tokens=8"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", "kind=max_requests,count=6"]
    command += ["--data", f"kind=json_file,path={data}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    command += ["--output", f"kind=json,path={tmp_path / 'out.json'}"]
    run(command, tmp_path, {})
    (benchmark,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert benchmark["metrics"]["request_totals"]["successful"] >= 6
    assert benchmark["metrics"]["request_totals"]["errored"] == 0


def _tokenizer_folder(folder: Path, model_file: ModelFile) -> Path:
    """The model's tokenizer as `transformers` reads one."""
    folder.mkdir()
    engine = vars(build_tokenizer(model_file))["_engine"]
    (folder / "tokenizer.json").write_text(engine.to_str())
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder
