"""The command line of `headway bench serve`."""

import argparse
import math
from pathlib import Path

import pytest

from headway.app.bench_options import BenchOptions, add_arguments, resolve
from headway.core.base.errors import InvalidSetting


def options_of(line: str, env_key: str | None = None) -> BenchOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return resolve(parser.parse_args(line.split()), env_key)


def test_the_defaults_are_vllms() -> None:
    options = options_of("")
    assert options.url == "http://127.0.0.1:8000/v1/completions"
    assert options.num_prompts == 1000
    assert (options.random_input_len, options.random_output_len) == (1024, 128)
    assert math.isinf(options.request_rate)
    assert (options.burstiness, options.max_concurrency, options.seed) == (1.0, None, 0)
    assert options.percentiles == (99.0,)
    assert options.common == {"temperature": 0.0}


def test_a_command_line_written_for_vllm_is_understood() -> None:
    options = options_of(
        "--backend openai-chat --base-url http://h:1/ --model m --dataset-name random "
        "--random-input-len 10 --random-output-len 20 --random-prefix-len 5 --request-rate inf "
        "--burstiness 0.5 --max-concurrency 4 --num-prompts 7 --ignore-eos --seed 3 "
        "--goodput ttft:500 tpot:50 --save-result --result-dir out --result-filename r.json "
        "--percentile-metrics ttft,e2el --metric-percentiles 50,99.9 --metadata a=b"
    )
    assert options.url == "http://h:1/v1/chat/completions"
    assert options.common == {"temperature": 0.0, "ignore_eos": True}
    assert options.goodput_ms == {"ttft": 500.0, "tpot": 50.0}
    assert options.result_file == Path("out/r.json")
    assert options.metrics == ("ttft", "e2el")
    assert options.percentiles == (50.0, 99.9)
    assert options.metadata == {"a": "b"}
    assert not options.make_up_name


def test_an_endpoint_of_its_own_wins_over_the_backends() -> None:
    assert options_of("--endpoint /x").url == "http://127.0.0.1:8000/x"


def test_an_ipv6_host_is_put_in_brackets() -> None:
    options = options_of("--host ::1 --port 9")
    assert options.base_url == "http://[::1]:9"
    assert options.is_local


def test_extra_fields_win_over_the_options() -> None:
    options = options_of('--extra-body {"temperature":1,"top_k":5}')
    assert options.common == {"temperature": 1, "top_k": 5}


def test_the_key_of_the_option_wins_over_the_environments() -> None:
    assert options_of("--api-key a", "b").api_key == "a"
    assert options_of("", "b").api_key == "b"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("--num-prompts 0", "--num-prompts: must be at least 1, got 0"),
        ("--random-input-len 0", "--random-input-len"),
        ("--random-prefix-len -1", "--random-prefix-len"),
        ("--max-concurrency 0", "--max-concurrency"),
        ("--request-rate 0", "--request-rate: must be above 0"),
        ("--request-rate nan", "--request-rate"),
        ("--burstiness -1", "--burstiness"),
        ("--random-range-ratio 1", "--random-range-ratio"),
        ("--goodput ttft", "--goodput"),
        ("--goodput itl:5", "--goodput"),
        ("--goodput ttft:-5", "--goodput"),
        ("--percentile-metrics ttft,xyz", "--percentile-metrics: has 'xyz'"),
        ("--metric-percentiles 101", "--metric-percentiles"),
        ("--metric-percentiles x", "--metric-percentiles"),
        ("--metadata a", "--metadata"),
        ("--extra-body [1]", "--extra-body"),
        ("--dataset-name sharegpt", "--dataset-path"),
    ],
)
def test_an_impossible_value_is_refused_by_the_options_name(line: str, names: str) -> None:
    with pytest.raises(InvalidSetting, match=names.replace("-", r"\-")):
        options_of(line)
