"""Batches through the replica's own loop, on the scripted executor."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.app import bench_latency, bench_model, bench_throughput
from headway.app.bench_offline import BatchResult, greedy_request, run_batches
from headway.app.cli import main
from headway.core.base.clock import ManualClock
from headway.core.base.errors import InvalidSetting, PromptTooLong, StartError
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.health import ReplicaHello
from headway.core.messages.step import StepPlan, StepResult
from headway.service.replica.server import Loaded
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings
from tests.unit.service.loaders.samples import tiny_model


class TimedExecutor(ScriptedExecutor):
    """Every step takes a quarter of a second of the clock; remembers the sizes of steps."""

    def __init__(self, core: EngineCore, clock: ManualClock) -> None:
        super().__init__(core)
        self.clock = clock
        self.rows: list[int] = []
        self.closed = 0

    def submit(self, plan: StepPlan) -> None:
        self.rows.append(len(plan.tables))
        super().submit(plan)

    def collect(self) -> StepResult:
        self.clock.advance(0.25)
        return super().collect()

    def close(self) -> None:
        self.closed += 1


def scripted(clock: ManualClock) -> tuple[Loaded, TimedExecutor]:
    core = EngineCore(engine_settings(), ByteTokenizer())
    executor = TimedExecutor(core, clock)
    hello = ReplicaHello(
        pid=1,
        max_model_len=64,
        block_size=4,
        num_blocks=64,
        max_num_seqs=4,
        dtype="none",
        executor="scripted",
        weight_bytes=0,
        load_s=Seconds(0.0),
        status=core.status(),
    )
    return Loaded(engine=core, executor=executor, hello=hello), executor


def test_batches_run_one_after_the_other_and_each_starts_whole() -> None:
    clock = ManualClock()
    loaded, executor = scripted(clock)
    ends: list[str] = []
    batches = [
        [greedy_request(f"a{i}", (i, 2, 3), 4) for i in range(2)],
        [greedy_request(f"b{i}", (i + 9, 2, 3), 2) for i in range(3)],
    ]
    results = run_batches(
        loaded,
        clock,
        batches,
        on_request=lambda: ends.append("request"),
        on_batch=lambda: ends.append("batch"),
    )
    assert executor.rows == [2, 2, 2, 2, 3, 3]
    assert [result.seconds for result in results] == [1.0, 0.5]
    assert [result.output_tokens for result in results] == [8, 6]
    assert [result.prompt_tokens for result in results] == [6, 9]
    assert ends == ["request"] * 2 + ["batch"] + ["request"] * 3 + ["batch"]
    assert executor.closed == 1


def test_a_request_that_the_engine_refuses_ends_the_run() -> None:
    clock = ManualClock()
    loaded, executor = scripted(clock)
    batches = [[greedy_request("a", (1,) * 60, 30)], [greedy_request("b", (1,), 1)]]
    with pytest.raises(StartError, match="context"):
        run_batches(loaded, clock, batches)
    assert executor.rows == []
    assert executor.closed == 1


def result(seconds: float) -> BatchResult:
    return BatchResult(
        seconds=seconds, num_requests=2, prompt_tokens=6, cached_tokens=0, output_tokens=8
    )


def test_latency_is_reported_under_vllm_s_keys_and_in_a_table() -> None:
    results = [result(1.0), result(3.0)]
    found = bench_latency.figures(results)
    assert found["avg_latency"] == 2.0
    assert found["latencies"] == [1.0, 3.0]
    assert found["output_tokens_per_second"] == 4.0
    assert found["tokens_per_second"] == 7.0
    args = argparse.Namespace(batch_size=2, input_len=3, output_len=4)
    shown = bench_latency.table(args, results)
    assert "Mean latency (ms):                       2000.00" in shown
    assert "P50 latency (ms):                        2000.00" in shown


def test_throughput_is_reported_under_vllm_s_keys_and_in_a_table() -> None:
    found = bench_throughput.figures(result(2.0))
    assert found["requests_per_second"] == 1.0
    assert found["tokens_per_second"] == 7.0
    assert found["output_tokens_per_second"] == 4.0
    assert "Request throughput (req/s):              1.00" in bench_throughput.table(result(2.0))


def options(module: object, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]  # a module of a command
    return parser.parse_args(arguments)


def test_quick_makes_what_was_not_given_small_and_keeps_the_rest() -> None:
    args = options(bench_latency, "--quick", "--batch-size", "5")
    bench_model.fill(args, bench_latency.USUAL, bench_latency.QUICK)
    assert (args.batch_size, args.num_iters) == (5, bench_latency.QUICK["num_iters"])
    args = options(bench_latency)
    bench_model.fill(args, bench_latency.USUAL, bench_latency.QUICK)
    assert (args.input_len, args.output_len, args.batch_size) == (32, 128, 8)


def test_only_warm_ups_may_be_left_out() -> None:
    args = options(bench_latency, "--num-iters-warmup", "0")
    bench_model.fill(args, bench_latency.USUAL, bench_latency.QUICK)
    args = options(bench_latency, "--num-iters", "0")
    with pytest.raises(InvalidSetting, match="--num-iters: must be at least 1, got 0"):
        bench_model.fill(args, bench_latency.USUAL, bench_latency.QUICK)


def test_batches_of_latency_have_equal_prompts_and_ids_of_their_own() -> None:
    args = options(bench_latency, "--quick")
    bench_model.fill(args, bench_latency.USUAL, bench_latency.QUICK)
    first, *others = bench_latency.make_batches(args, range(10, 20))
    assert len(others) == 3
    assert all([r.prompt for r in each] == [r.prompt for r in first] for each in others)
    assert len({request.id for each in (first, *others) for request in each}) == 8


def test_prompts_of_throughput_fit_the_vocabulary_and_repeat_by_seed(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)

    def prompts(*arguments: str) -> Sequence[tuple[int, ...]]:
        args = options(bench_throughput, "--quick", *arguments)
        args.recorded_len = None
        bench_model.fill(args, bench_throughput.USUAL, bench_throughput.QUICK)
        return [request.prompt for request in bench_throughput.make_requests(args, model)]

    assert all(0 <= token < model.card.vocab_size for each in prompts() for token in each)
    assert prompts() == prompts() != prompts("--seed", "1")


def test_recorded_conversations_become_token_ids(tmp_path: Path) -> None:
    turns = [{"value": "hell hell hell hell"}, {"value": "hell"}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": turns}]))
    args = options(bench_throughput, "--dataset-name", "sharegpt", "--dataset-path", str(path))
    args.num_prompts, args.recorded_len = 2, 3
    requests = bench_throughput.make_requests(args, tiny_model(tmp_path))
    assert [request.sampling.max_tokens for request in requests] == [3, 3]
    assert len(requests[0].prompt) >= 4


def test_a_context_that_is_too_short_is_named() -> None:
    loaded, _ = scripted(ManualClock())
    bench_model.check_lengths(loaded, 64)
    with pytest.raises(PromptTooLong, match="65 tokens are over the context of 64"):
        bench_model.check_lengths(loaded, 65)


@pytest.mark.parametrize("what", ["latency", "throughput", "startup"])
def test_what_is_wrong_is_one_line_and_a_status(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", what, "--model", "/nowhere/m.gguf", "--quick", "--disable-tqdm"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headway bench {what}: ")
    assert "/nowhere/m.gguf" in said
    assert said.count("\n") == 1


def test_figures_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    bench_model.write_json(tmp_path / "a" / "b.json", {"x": 1})
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == {"x": 1}
    with pytest.raises(InvalidSetting, match="--json"):
        bench_model.write_json(tmp_path / "a", {})
