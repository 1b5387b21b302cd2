"""The program that `headway serve` starts, with the built-in model."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import ReplicaLost, StartError
from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Sampling, Tokens
from headway.service.control.health import SupervisorSettings
from headway.service.control.supervise import Supervisor
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import ReplicaSpec
from headway.service.wire.transport import Mailbox, ReplicaState
from tests.fault.processes import children, pid_of, until, until_state

SETTINGS = SupervisorSettings(backoff_first_s=0.05)
PROMPT = "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 200))


def spec_of(model: ModelFile, engine: EngineSettings | None = None) -> ReplicaSpec:
    return ReplicaSpec(
        model_path=model.path,
        card=model.card,
        engine=engine or EngineSettings(max_model_len=512, max_num_seqs=4),
        threads=1,
        check_when_idle=True,
        log_level="warning",
    )


@asynccontextmanager
async def supervised(spec: ReplicaSpec) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(spec, SETTINGS, SystemClock())
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        await until(lambda: not children(), "no child is left")


def ask(supervisor: Supervisor, model: ModelFile, request_id: str, max_tokens: int) -> Mailbox:
    ids = build_tokenizer(model).encode(PROMPT, add_special=False, parse_special=True)
    sampling = Sampling(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=max_tokens > 100)
    return supervisor.call(EngineRequest(id=request_id, prompt=tuple(ids), sampling=sampling))


async def answer(mailbox: Mailbox) -> str:
    text = ""
    while not isinstance(event := await mailbox.get(), Finished):
        text += event.text if isinstance(event, Tokens) else ""
    assert event.reason is FinishReason.STOP
    return text


def test_gateway_health_01_the_real_engine_answers_dies_and_answers_the_same_again(
    smollm2: ModelFile,
) -> None:
    async def test() -> None:
        async with supervised(spec_of(smollm2)) as supervisor:
            hello = await supervisor.wait_ready()
            assert hello.max_model_len == 512
            assert hello.status.memory_used >= hello.weight_bytes > 0
            first = await answer(ask(supervisor, smollm2, "r1", 90))
            assert "Rome" in first
            endless = ask(supervisor, smollm2, "r2", 400)
            while not isinstance(await endless.get(), Tokens):
                pass
            os.kill(pid_of(supervisor), signal.SIGKILL)
            with pytest.raises(ReplicaLost):
                await answer(endless)
            await until_state(supervisor, ReplicaState.READY)
            assert await answer(ask(supervisor, smollm2, "r3", 90)) == first
            status = supervisor.view().status
            assert status is not None
            assert status.free_blocks + status.cached_blocks == status.total_blocks

    run(test())


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        (EngineSettings(block_size=24), "--block-size: must be a power of two"),
        (EngineSettings(max_model_len=8193), "--max-model-len: 8193 is over the 8192 tokens"),
        (EngineSettings(kv_cache_memory_bytes=2**50), "--kv-cache-memory-bytes 1125899906842624"),
    ],
)
def test_startup_config_01_an_impossible_setting_is_named(
    smollm2: ModelFile, engine: EngineSettings, cause: str
) -> None:
    async def test() -> None:
        async with supervised(spec_of(smollm2, engine)) as supervisor:
            with pytest.raises(StartError) as caught:
                await supervisor.wait_ready()
            assert cause in caught.value.message
            assert supervisor.view().state is ReplicaState.FAILED

    run(test())


@pytest.mark.parametrize("kept_bytes", [None, 200_000])
def test_startup_config_01_a_file_that_is_missing_or_cut_short_is_named(
    smollm2: ModelFile, tmp_path: Path, kept_bytes: int | None
) -> None:
    path = tmp_path / "broken.gguf"
    if kept_bytes is not None:
        with open(smollm2.path, "rb") as whole:
            path.write_bytes(whole.read(kept_bytes))

    async def test() -> None:
        spec = msgspec.structs.replace(spec_of(smollm2), model_path=str(path))
        async with supervised(spec) as supervisor:
            with pytest.raises(StartError) as caught:
                await supervisor.wait_ready()
            assert caught.value.message.startswith(f"{path}: ")

    run(test())
