"""The load out of a server's own metrics."""

import pytest

from headway.service.upstream.settings import Kind
from headway.service.upstream.told import Told, read_loads, read_slots, read_told

VLLM = b"""\
# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="a b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 4.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="x"} 3.0
sglang:num_queue_reqs{model_name="x"} 1.0
sglang:token_usage{model_name="x"} 0.5
"""
BY_PRIORITY = b"""\
sglang:num_running_reqs{model_name="x",priority=""} 3.0
sglang:num_running_reqs{model_name="x",priority="2"} 1.0
sglang:num_running_reqs{model_name="x",priority="0"} 2.0
sglang:num_queue_reqs{priority="",model_name="x"} 1.0
sglang:num_queue_reqs{priority="0",model_name="x"} 1.0
sglang:token_usage{model_name="x",priority=""} 0.5
"""


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (b'[{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}]', Told(1.0)),
        (b"[]", None),
        (b'{"error": {"code": 501}}', None),
        (b"", None),
    ],
)
def test_the_slots_of_llama_cpp_are_read(page: bytes, wanted: Told | None) -> None:
    assert read_slots(page) == wanted


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (
            b'{"timestamp": "t", "loads": [{"dp_rank": 0, "num_running_reqs": 3, '
            b'"num_waiting_reqs": 1, "token_usage": 0.25}, {"dp_rank": 1, "token_usage": 0.5}]}',
            Told(3.0, 1.0, 0.5),
        ),
        (b'{"loads": []}', None),
        (b'{"loads": [{"num_running_reqs": "many"}]}', None),
        (b"not found", None),
        (b"", None),
    ],
)
def test_the_loads_of_sglang_are_read(page: bytes, wanted: Told | None) -> None:
    assert read_loads(page) == wanted


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        (VLLM, Kind.VLLM, Told(5.0, 4.0, 0.75)),
        (VLLM, Kind.HEADWAY, Told(5.0, 4.0, 0.75)),
        (SGLANG, Kind.SGLANG, Told(3.0, 1.0, 0.5)),
        (BY_PRIORITY, Kind.SGLANG, Told(3.0, 1.0, 0.5)),
        (b"llamacpp:requests_processing 2\n", Kind.LLAMACPP, Told(2.0, 0.0, 0.0)),
        (SGLANG, Kind.VLLM, None),
        (VLLM, Kind.OPENAI, None),
        (b"", Kind.VLLM, None),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_running\n", Kind.VLLM, None),
        (b"vllm:num_requests_running{a=\xff} 1\n", Kind.VLLM, Told(1.0, 0.0, 0.0)),
    ],
)
def test_a_page_is_read(text: bytes, kind: Kind, wanted: Told | None) -> None:
    assert read_told(text, kind) == wanted
