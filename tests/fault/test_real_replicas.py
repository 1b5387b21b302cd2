"""Two processes of the real engine: killed mid-stream, and every answer as if undisturbed."""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest

from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import EngineRequest, Finished, Sampling, TokenLogprob, Tokens
from headway.service.control.failover import LastingMailbox
from headway.service.control.health import SupervisorSettings
from headway.service.control.replica_set import ReplicaSet
from headway.service.control.supervise import Observers, Supervisor
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import ReplicaSpec
from tests.fault.processes import member_pid, replica_set, until_all_ready

QUICK = SupervisorSettings(backoff_first_s=0.05, backoff_limit_s=0.05)
PROMPT = "<|im_start|>user\nTell me a short story about a fox.<|im_end|>\n<|im_start|>assistant\n"
TOKENS, ROUNDS = 24, 5


class Answer(NamedTuple):
    """All that a client has of a choice in the end."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    usage: tuple[int, int]
    failovers: int


def requests_of(model: ModelFile, name: str) -> list[EngineRequest]:
    """A greedy one and a drawn one, whose penalties look at all that came before."""
    ids = build_tokenizer(model).encode(PROMPT, add_special=False, parse_special=True)
    greedy = Sampling(max_tokens=TOKENS, seed=0, temperature=0.0, ignore_eos=True, num_logprobs=2)
    drawn = msgspec.structs.replace(
        greedy, seed=11, temperature=0.9, top_p=0.95, frequency_penalty=0.4, repetition_penalty=1.1
    )
    return [
        EngineRequest(id=f"{name}-{number}", prompt=tuple(ids), sampling=sampling)
        for number, sampling in enumerate((greedy, drawn))
    ]


async def answer(box: LastingMailbox, kills: Sequence[int], replicas: ReplicaSet) -> Answer:
    """Read it whole; whenever so many tokens have come, the replica that it is at is killed."""
    left = list(kills)
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    text = ""
    while not isinstance(event := await box.get(), Finished):
        if isinstance(event, Tokens):
            token_ids += event.token_ids
            logprobs += event.logprobs
            text += event.text
            if left and len(token_ids) >= left[0]:
                del left[0]
                os.kill(member_pid(replicas, box.replica), signal.SIGKILL)
    usage = event.usage
    totals = (usage.prompt_tokens, usage.completion_tokens)
    return Answer(token_ids, text, logprobs, totals, event.failovers)


async def answers(
    replicas: ReplicaSet, model: ModelFile, name: str, kills: Sequence[int] = ()
) -> list[Answer]:
    boxes = [replicas.call(each) for each in requests_of(model, name)]
    found = []
    for number, box in enumerate(boxes):
        assert isinstance(box, LastingMailbox)
        found.append(answer(box, kills if number == 0 else (), replicas))
    return list(await asyncio.gather(*found))


@pytest.mark.spec("M2")
def test_ten_kills_of_the_real_engine_change_no_bit_of_any_answer(smollm2: ModelFile) -> None:
    def make(name: str, observers: Observers) -> Supervisor:
        spec = ReplicaSpec(
            model_path=smollm2.path,
            card=smollm2.card,
            engine=EngineSettings(
                max_model_len=256, max_num_seqs=4, kv_cache_memory_bytes=64 * 2**20
            ),
            threads=1,
            check_when_idle=True,
            log_level="warning",
            replica=name,
        )
        return Supervisor(spec, QUICK, SystemClock(), observers)

    async def test() -> None:
        async with replica_set(make) as replicas:
            want = await answers(replicas, smollm2, "undisturbed")
            assert [len(each.token_ids) for each in want] == [TOKENS, TOKENS]
            for number in range(ROUNDS):
                await until_all_ready(replicas)
                # The second time no other is left, and the stream waits for the first.
                kills = (1 + 2 * number, 14 + 2 * number)
                got = await answers(replicas, smollm2, f"round{number}", kills)
                assert got[0].failovers == 2
                for one, other in zip(got, want, strict=True):
                    assert one[:4] == other[:4], f"killed after {kills} tokens"
            view = replicas.view()
            assert view.routed is not None
            assert view.routed.broken == 0
            assert view.routed.continued >= 2 * ROUNDS

    asyncio.run(asyncio.wait_for(test(), 200))
