"""What every executor must do, whoever computes.

Each test runs a sequence alone first, in the plainest way, and then in some other way that
must not change a single token: other blocks, chunks, neighbours, slots, copies, plans in
flight. The pool's unused parts are poisoned where the executor has memory to poison.
"""

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.loading import load_model as load_cpu_model
from headway.compute.cpu.settings import CpuSettings
from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import (
    AttentionChoice,
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
)
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import Sampling
from headway.core.messages.step import (
    BlockCopy,
    BlockMove,
    SamplingState,
    ScoreWork,
    StepPlan,
    StepResult,
)
from tests.fakes import ScriptedExecutor, engine_settings
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

BLOCK_SIZE = 16
WIDTH = 16
NUM_LINES = 6
NUM_BLOCKS = 128
NUM_HOST = 8
BFLOAT16_NAN = 0x7FC0
ENGINE = engine_settings(
    block_size=BLOCK_SIZE,
    num_blocks=NUM_BLOCKS,
    max_num_batched_tokens=64,
    max_num_seqs=NUM_LINES,
    num_host_blocks=NUM_HOST,
)

Make = Callable[["array[int]"], Executor]


def scripted(folder: Path) -> Make:
    def make(grid: "array[int]") -> Executor:
        def read(row: int, width: int) -> list[int]:
            return list(grid[row * WIDTH : row * WIDTH + width])

        lender = SimpleNamespace(grid=SimpleNamespace(read=read, width=WIDTH), settings=ENGINE)
        return ScriptedExecutor(cast(EngineCore, lender))

    return make


def torch_executor(settings: ExecutorSettings) -> Callable[[Path], Make]:
    def load(folder: Path) -> Make:
        path = write_gguf(folder / "tiny.gguf", TinyLlama(seed=11))
        model = load_model(read_card(path), settings, lambda done, total: None)
        engine: ResolvedEngine = ENGINE

        def make(grid: "array[int]") -> Executor:
            executor = GpuExecutor(model, engine, memoryview(grid), WIDTH)
            executor.pool.data.fill_(float("nan"))
            return executor

        return make

    return load


def cpu_executor(quantized: str, threads: int, kv: str = "auto") -> Callable[[Path], Make]:
    def load(folder: Path) -> Make:
        tiny = TinyLlama(seed=11, head_dim=32, intermediate_size=128)
        path = write_gguf(folder / "tiny.gguf", tiny, quantized=quantized)
        settings = CpuSettings(threads=threads, kv_cache_dtype=kv)
        model = load_cpu_model(read_card(path), settings, lambda done, total: None)

        def make(grid: "array[int]") -> Executor:
            executor = CpuExecutor(model, ENGINE, memoryview(grid), WIDTH)
            # As 8-bit numbers these bytes are large, and so are the scales that they make.
            executor.pool.keys.view(np.uint16).fill(BFLOAT16_NAN)
            executor.pool.values.view(np.uint16).fill(BFLOAT16_NAN)
            return executor

        return make

    return load


# Not in bfloat16: there the last bit depends on how many rows a product has, and a draw may
# turn on it. What bfloat16 may differ by is bounded in tests/parity.
IMPLEMENTATIONS: dict[str, Callable[[Path], Make]] = {
    "scripted": scripted,
    "torch sdpa": torch_executor(ExecutorSettings()),
    "torch reference": torch_executor(ExecutorSettings(attention=AttentionChoice.REFERENCE)),
    "cpu f32": cpu_executor("F32", threads=1),
    "cpu q8_0": cpu_executor("Q8_0", threads=2),
    "cpu q4_1": cpu_executor("Q4_1", threads=2),
    "cpu q4_1, int8 KV": cpu_executor("Q4_1", threads=1, kv="int8"),
}


ON_GPU = "torch cuda"
IMPLEMENTATIONS[ON_GPU] = torch_executor(
    ExecutorSettings(device=DeviceChoice.CUDA, dtype=DtypeChoice.FLOAT32)
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.gpu] if name == ON_GPU else [])
        for name in IMPLEMENTATIONS
    ],
)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    return IMPLEMENTATIONS[request.param](tmp_path_factory.mktemp("model"))


@dataclass
class Line:
    """One sequence on one line of the grid."""

    line: int
    tokens: list[int]
    sampling: Sampling
    choice: int = 0
    computed: int = 0
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def state(self) -> SamplingState:
        return SamplingState(self.sampling, self.choice, self.tokens, self.num_prompt, ())

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Bench:
    """A grid and an executor over it; gives sequences blocks and runs steps."""

    def __init__(self, make: Make, shuffle: int | None = None) -> None:
        order = list(range(NUM_BLOCKS))
        if shuffle is not None:
            random.Random(shuffle).shuffle(order)
        self.grid = array("i", order[: NUM_LINES * WIDTH])
        self.free = order[NUM_LINES * WIDTH :]
        self.executor = make(self.grid)
        self.steps = 0

    def plan(
        self,
        work: Sequence[tuple[Line, int]],
        *,
        copies: tuple[BlockCopy, ...] = (),
        scores: tuple[ScoreWork, ...] = (),
        moves: tuple[tuple[BlockMove, ...], tuple[BlockMove, ...]] = ((), ()),
    ) -> StepPlan:
        """`(line, number of tokens)` each; a row that reaches its last token is sampled."""
        sampled = [
            (row, line)
            for row, (line, count) in enumerate(work)
            if line.computed + count == len(line.tokens)
        ]
        self.steps += 1
        plan = StepPlan(
            step=self.steps,
            tables=array("i", [line.line for line, _ in work]),
            starts=array("i", [line.computed for line, _ in work]),
            num_tokens=array("i", [count for _, count in work]),
            token_ids=array(
                "i",
                [t for line, n in work for t in line.tokens[line.computed : line.computed + n]],
            ),
            sequence_ids=tuple(line.line for line, _ in work),
            copies=copies,
            sample_rows=array("i", [row for row, _ in sampled]),
            positions=array("i", [len(line.tokens) - line.num_prompt for _, line in sampled]),
            states=tuple(line.state for _, line in sampled),
            scores=scores,
            saves=moves[0],
            loads=moves[1],
        )
        for line, count in work:
            line.computed += count
        return plan

    def step(
        self, work: Sequence[tuple[Line, int]], copies: tuple[BlockCopy, ...] = ()
    ) -> StepResult:
        """Run one step and append what it drew."""
        plan = self.plan(work, copies=copies)
        self.executor.submit(plan)
        result = self.executor.collect()
        assert result.step == plan.step
        assert len(result.token_ids) == len(result.logprobs) == len(plan.sample_rows)
        for row, token in zip(plan.sample_rows, result.token_ids, strict=True):
            work[row][0].tokens.append(token)
        return result

    def decode(self, lines: Sequence[Line], num_tokens: int) -> None:
        for _ in range(num_tokens):
            self.step([(line, 1) for line in lines])


GREEDY = Sampling(max_tokens=99, seed=0, temperature=0.0)
RANDOM = Sampling(max_tokens=99, seed=5, temperature=0.9, top_p=0.95, frequency_penalty=0.5)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(100 * seed + length).choices(range(256), k=length)


def alone(make: Make, tokens: list[int], sampling: Sampling, num_tokens: int) -> list[int]:
    """The answer in the plainest way: whole prompt, then one token a step, own executor."""
    bench = Bench(make)
    line = Line(0, list(tokens), sampling)
    bench.step([(line, len(tokens))])
    bench.decode([line], num_tokens - 1)
    bench.executor.close()
    return line.output


@SAMPLINGS
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_blocks_may_lie_anywhere(make: Make, sampling: Sampling, length: int) -> None:
    want = alone(make, prompt(length), sampling, 8)
    bench = Bench(make, shuffle=3)
    line = Line(2, prompt(length), sampling)
    bench.step([(line, length)])
    bench.decode([line], 7)
    assert line.output == want


@SAMPLINGS
@pytest.mark.parametrize("chunk", [1, 5, 15, 16, 17])
def test_chunks_of_the_prompt_do_not_change_the_answer(
    make: Make, sampling: Sampling, chunk: int
) -> None:
    """Case chunked_prefill_slots_01: nothing is drawn before the prompt's end."""
    tokens = prompt(37)
    want = alone(make, tokens, sampling, 6)
    bench = Bench(make, shuffle=1)
    line = Line(1, list(tokens), sampling)
    while line.computed < len(tokens):
        size = min(chunk, len(tokens) - line.computed)
        result = bench.step([(line, size)])
        is_last = line.computed == len(tokens)
        assert len(result.token_ids) == is_last
    bench.decode([line], 5)
    assert line.output == want


@SAMPLINGS
def test_neighbours_do_not_change_the_answer(make: Make, sampling: Sampling) -> None:
    """Case sampling_01, with rows of every kind in one step."""
    lengths = [5, 12, 1, 30]
    want = [alone(make, prompt(n), sampling, 6) for n in lengths]
    bench = Bench(make, shuffle=8)
    lines = [Line(at, prompt(n), sampling) for at, n in enumerate(lengths)]
    bench.step([(lines[0], 5), (lines[3], 13)])
    bench.step([(lines[1], 12), (lines[0], 1), (lines[3], 16)])
    bench.step([(lines[0], 1), (lines[2], 1), (lines[3], 1), (lines[1], 1)])
    bench.decode(list(reversed(lines)), 5)
    assert [line.output[:6] for line in lines] == want


@SAMPLINGS
def test_a_reused_line_and_its_blocks_keep_nothing_of_the_last_sequence(
    make: Make, sampling: Sampling
) -> None:
    """Case chunked_prefill_slots_02: positions and parameters come from the plan."""
    want = alone(make, prompt(6), sampling, 5)
    bench = Bench(make)
    biased = Sampling(max_tokens=9, seed=1, logit_bias=((7, 100.0),), repetition_penalty=1.5)
    old = Line(3, prompt(40, seed=1), biased)
    bench.step([(old, 40)])
    bench.decode([old], 5)
    new = Line(3, prompt(6), sampling)
    bench.step([(new, 6)])
    bench.decode([new], 4)
    assert new.output == want


@pytest.mark.parametrize("length", [1, 16, 22, 33])
def test_copied_blocks_continue_apart(make: Make, length: int) -> None:
    """Two choices of one prompt: the full blocks are shared, the last one is copied."""
    samplings = [RANDOM, GREEDY]
    want = [alone(make, prompt(length), sampling, 7) for sampling in samplings]
    bench = Bench(make, shuffle=2)
    first = Line(0, prompt(length), samplings[0])
    bench.step([(first, length)])
    second = Line(1, prompt(length), samplings[1], computed=length - 1)
    last = (length - 1) // BLOCK_SIZE
    for block in range(last):
        bench.grid[WIDTH + block] = bench.grid[block]
    copy = BlockCopy(bench.grid[last], bench.grid[WIDTH + last])
    bench.step([(first, 1), (second, 1)], copies=(copy,))
    bench.decode([second, first], 5)
    assert first.output == want[0]
    assert second.output == want[1][:6]


@SAMPLINGS
def test_a_step_may_be_planned_before_the_last_one_is_collected(
    make: Make, sampling: Sampling
) -> None:
    """Depth 2: the input of the second step is the draw of the first, not known when planned."""
    lengths = [5, 9]
    want = [alone(make, prompt(n), sampling, 7) for n in lengths]
    bench = Bench(make, shuffle=5)
    lines = [Line(at, prompt(n), sampling) for at, n in enumerate(lengths)]
    bench.executor.submit(bench.plan([(line, len(line.tokens)) for line in lines]))
    for step in range(1, 7):
        plan = StepPlan(
            step=100 + step,
            tables=array("i", [1, 0]),  # the other way round, so that draws must be mapped
            starts=array("i", [line.num_prompt + step - 1 for line in reversed(lines)]),
            num_tokens=array("i", [1, 1]),
            token_ids=array("i", [0, 0]),
            sequence_ids=(1, 0),
            sample_rows=array("i", [0, 1]),
            positions=array("i", [step, step]),
            states=tuple(line.state for line in reversed(lines)),
            pending_rows=array("i", [0, 1]),
            pending_from=array("i", [1, 0] if step == 1 else [0, 1]),
        )
        bench.executor.submit(plan)
        take(lines if step == 1 else lines[::-1], bench.executor.collect())
    take(lines[::-1], bench.executor.collect())
    assert [line.output for line in lines] == want


def take(lines: Sequence[Line], result: StepResult) -> None:
    for line, token in zip(lines, result.token_ids, strict=True):
        line.tokens.append(token)


def test_the_grid_may_change_after_submit(make: Make) -> None:
    want = alone(make, prompt(10), GREEDY, 1)
    bench = Bench(make)
    line = Line(0, prompt(10), GREEDY)
    bench.executor.submit(bench.plan([(line, 10)]))
    for at in range(len(bench.grid)):
        bench.grid[at] = NUM_BLOCKS - 1
    assert list(bench.executor.collect().token_ids) == want


def test_each_target_of_a_score_gets_one_logprob(make: Make) -> None:
    bench = Bench(make)
    line = Line(0, prompt(11), GREEDY)
    targets = array("i", line.tokens[1:])
    other = Line(1, prompt(3), GREEDY)
    plan = bench.plan([(other, 3), (line, 11)], scores=(ScoreWork(1, targets, 0),))
    bench.executor.submit(plan)
    (scored,) = bench.executor.collect().scores
    assert [each.token_id for each in scored] == targets.tolist()
    assert all(-9999.0 <= each.logprob <= 0.0 for each in scored)


@pytest.mark.spec("D3")
@SAMPLINGS
@pytest.mark.parametrize("length", [16, 22, 33])
def test_a_sequence_goes_on_as_before_after_its_blocks_were_on_the_host(
    make: Make, sampling: Sampling, length: int
) -> None:
    """Its blocks come back elsewhere, in a step that saves another block into its old place."""
    want = alone(make, prompt(length), sampling, 8)
    bench = Bench(make, shuffle=4)
    other, line = Line(0, prompt(20, seed=1), GREEDY), Line(1, prompt(length), sampling)
    result = bench.step([(other, 20), (line, length)])
    assert result.num_host_blocks >= 2, "room on the host is there before it is needed"
    full = length // BLOCK_SIZE
    old = list(bench.grid[WIDTH : WIDTH + full])
    saves = tuple(BlockMove(block, at) for at, block in enumerate(old))
    bench.executor.submit(bench.plan([(other, 1)], moves=(saves, ())))
    other.tokens += bench.executor.collect().token_ids
    # Saves, loads and copies of one step, each into what the one before it has read.
    new = [bench.free[at] for at in range(full)]
    first = bench.grid[0]
    moves = (
        (BlockMove(first, full),),
        (*(BlockMove(block, at) for at, block in enumerate(new)), BlockMove(old[0], full)),
    )
    bench.grid[WIDTH : WIDTH + full] = array("i", new)
    copy = BlockCopy(old[0], first)
    bench.executor.submit(bench.plan([(line, 1), (other, 1)], copies=(copy,), moves=moves))
    for each, token in zip((line, other), bench.executor.collect().token_ids, strict=True):
        each.tokens.append(token)
    bench.decode([line, other], 6)
    assert line.output == want
    assert other.output == alone(make, prompt(20, seed=1), GREEDY, 9)


def test_closing_twice_is_harmless(make: Make) -> None:
    bench = Bench(make)
    line = Line(0, prompt(3), GREEDY)
    assert len(bench.step([(line, 3)]).token_ids) == 1
    bench.executor.close()
    bench.executor.close()
