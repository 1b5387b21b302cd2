"""A process that starts as the engine does, and then serves traffic of every shape.

It prints, as JSON, the kernels that were compiled for the start and those for the traffic.
"""

import json
import random
import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

from headway.compute.cpu import kernel_cache
from tests.conftest import CACHE
from tests.fakes import ByteTokenizer, engine_settings, request
from tests.parity.cards import read_card

SEED = 4


def kernels() -> dict[str, int]:
    """How many kinds of arguments each kernel was compiled for."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("headway.compute.cpu."):
            for attribute, value in vars(module).items():
                if isinstance(value, Dispatcher):
                    found[f"{value.py_func.__module__}.{attribute}"] = len(value.signatures)
    return found


def main(path: str) -> None:
    """Start, serve, tell."""
    kernel_cache.prepare(CACHE / "kernels")
    from headway.app.assembly import warm_up
    from headway.compute.cpu import sampler
    from headway.compute.cpu.executor import CpuExecutor
    from headway.compute.cpu.loading import load_model
    from headway.compute.cpu.settings import CpuSettings
    from headway.core.engine.core import EngineCore
    from headway.core.messages.path import Sampling
    from tests.drive import Drive

    card = read_card(Path(path))
    model = load_model(card, CpuSettings(threads=2), lambda done, total: None)
    settings = engine_settings(
        max_model_len=card.context_length,
        max_num_seqs=9,
        max_num_batched_tokens=200,
        block_size=16,
        num_blocks=200,
    )
    core = EngineCore(settings, ByteTokenizer())
    executor = CpuExecutor(model, settings, core.grid.view, core.grid.width)
    sampler.warm_up()
    warm_up(executor)
    at_start = kernels()

    rng = random.Random(SEED)
    drive = Drive(core, executor, depth=1)
    for number in range(30):
        length = rng.choice((1, 2, 15, 16, 17, 60, 300, 700))
        sampling = Sampling(
            max_tokens=rng.randrange(1, 9),
            seed=number,
            temperature=rng.choice((0.0, 0.7, 1.5)),
            top_k=rng.choice((0, 1, 5, 250)),
            top_p=rng.choice((1.0, 0.999, 0.3)),
            min_p=rng.choice((0.0, 0.2)),
            repetition_penalty=rng.choice((1.0, 1.3)),
            logit_bias=rng.choice(((), ((3, 4.0),))),
            min_tokens=rng.choice((0, 1)),
            num_logprobs=rng.choice((None, 0, 5)),
            prompt_logprobs=number % 4 == 0,
        )
        prompt = [rng.randrange(256) for _ in range(length)]
        prompt[: length // 2] = [7] * (length // 2)  # prefixes are shared
        drive.add(request(f"r{number}", prompt, n=rng.choice((1, 1, 3)), sampling=sampling))
    steps = 0
    while drive.step():
        steps += 1
    finished = sum(answer.finished is not None for answer in drive.answers.values())
    sizes = sorted({len(plan.starts) for plan in drive.plans})
    executor.close()
    found = {"start": at_start, "after": kernels(), "finished": finished, "rows": sizes}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
