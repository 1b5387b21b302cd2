import json
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import (
    ClientError,
    InvalidRequest,
    Unsupported,
    UnsupportedModality,
)
from headway.core.tenancy.tenant import SloClass
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.schema import ChatRequest, CompletionRequest
from tests.unit.service.openai.script import body, chat_body

pytestmark = pytest.mark.spec("A3")

LIMITS = ApiLimits()
MARKER = "PROMPT-7Q"


def chat(**fields: object) -> ChatRequest:
    return parse_chat(chat_body(**fields), LIMITS)


def completion(**fields: object) -> CompletionRequest:
    return parse_completion(body(**{"prompt": "Hi", **fields}), LIMITS)


def refused_chat(data: bytes) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_chat(data, LIMITS)
    return caught.value


def refused_completion(data: bytes) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_completion(data, LIMITS)
    return caught.value


def test_every_field_arrives_under_the_engines_name() -> None:
    request = chat(
        model="m",
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        n=2,
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        seed=-1,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=5,
        logit_bias={"9": -100, "2": 1.5},
        frequency_penalty=0.1,
        presence_penalty=0.2,
        repetition_penalty=1.1,
        min_tokens=2,
        ignore_eos=True,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        user="u",
        cache_salt="salt",
    )
    sampling = request.sampling
    assert (request.model, request.n, request.stream, request.include_usage) == ("m", 2, True, True)
    assert (request.user, request.cache_salt) == ("u", b"salt")
    assert request.max_tokens_field == "max_completion_tokens"
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (7, 2, 2**64 - 1)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        (0.5, 0.9, 40, 0.1)
    )
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.2)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((2, 1.5), (9, -100.0))
    assert (sampling.stop, sampling.stop_token_ids) == (("a", "b"), (3, 4))
    assert sampling.ignore_eos
    assert sampling.include_stop
    assert not sampling.skip_special_tokens
    assert sampling.num_logprobs == 5


def test_null_for_an_optional_field_equals_absent() -> None:
    names = [*json.loads(msgspec.json.encode(chat())), "tools", "response_format", "chat_template"]
    nulls = dict.fromkeys(["temperature", "n", "stop", "seed", "stream", "stream_options", *names])
    nulls.pop("messages")
    assert chat(**nulls).sampling == chat().sampling


def test_a_body_without_model_asks_for_the_served_one() -> None:
    assert chat().model is None


def test_harmless_fields_are_accepted_and_not_counted_as_unknown() -> None:
    request = chat(metadata={"a": "b"}, store=True, user="u")
    assert request.unknown_fields == ()


def test_a_service_tier_lowers_the_class_or_says_nothing_and_never_raises_it() -> None:
    for tier in ("auto", "default", "priority", "scale", None):
        assert chat(service_tier=tier).asked_class is None
    assert chat(service_tier="flex").asked_class is SloClass.INTERNAL
    assert completion(service_tier="flex", priority=-3).priority == -3
    assert chat(priority=None).priority == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("service_tier", "gold"), ("service_tier", 1), ("priority", 2**31), ("priority", "high")],
)
def test_an_unknown_tier_or_priority_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value})
    assert caught.value.param == field


def test_unknown_fields_are_ignored_and_reported() -> None:
    request = chat(zebra=1, **{"x" * 100: 2})
    assert request.unknown_fields == ("zebra", "x" * 64)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ("Hi",)),
        (["Hi", "Ho"], ("Hi", "Ho")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (" ", (" ",)),
        ("\n", ("\n",)),
        ([0, 0, 0], ((0, 0, 0),)),
    ],
)
def test_a_prompt_may_be_text_ids_or_a_list_of_either(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("n", 0),
        ("n", 10**30),
        ("n", True),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 10**400),
        ("max_tokens", 1.0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 0.5),
        ("stop", 5),
        ("stop", ""),
        ("stream", "yes"),
        ("stream", 1),
        ("frequency_penalty", 3),
        ("presence_penalty", -3),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e308),
        ("logit_bias", [1]),
        ("min_tokens", -5),
        ("ignore_eos", "no"),
        ("stop_token_ids", "5"),
        ("user", 5),
        ("model", ["m"]),
        ("metadata", 5),
        ("stream_options", {}),
        ("best_of", 2),
    ],
)
def test_a_wrong_value_is_refused_by_the_fields_name_on_both_endpoints(
    field: str, value: object
) -> None:
    for error in (
        refused_chat(chat_body(**{field: value})),
        refused_completion(body(prompt="Hi", **{field: value})),
    ):
        assert error.param == field
        assert error.http_status == 400
        assert field in error.message
        assert len(error.message) < 300


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_json_does_not_have_are_refused_by_the_fields_name(literal: str) -> None:
    data = b'{"prompt":"Hi","temperature":%s}' % literal.encode()
    assert refused_completion(data).param == "temperature"


def test_streaming_sse_01_an_invalid_body_gives_the_same_error_with_and_without_stream() -> None:
    bodies: list[dict[str, Any]] = [
        {"temperature": -1},
        {"max_tokens": 0},
        {"n": 0},
        {"tools": [{}]},
        {"stop": [5]},
    ]
    for wrong in bodies:
        errors = [refused_chat(chat_body(stream=stream, **wrong)) for stream in (True, False)]
        said = {(type(e), e.message, e.param, e.code, e.http_status) for e in errors}
        assert len(said) == 1


def test_usage_02_only_include_usage_true_turns_usage_on() -> None:
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        assert not chat(stream=True, stream_options=options).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    error = refused_chat(chat_body(stream=False, stream_options={"include_usage": True}))
    assert error.param == "stream_options"


def test_logprobs_02_top_logprobs_may_be_left_out_but_not_stand_alone() -> None:
    assert chat(logprobs=True).sampling.num_logprobs == 0
    assert chat(logprobs=False).sampling.num_logprobs is None
    assert chat(top_logprobs=0).sampling.num_logprobs is None
    assert refused_chat(chat_body(top_logprobs=3)).param == "top_logprobs"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["Hi", ""], [[1], []], None])
def test_odd_prompts_bounds_01_an_empty_prompt_is_refused_whole(prompt: object) -> None:
    error = refused_completion(body(prompt=prompt))
    assert (error.param or "").startswith("prompt")


def test_odd_prompts_bounds_01_a_missing_prompt_and_no_messages_are_refused() -> None:
    assert refused_completion(b"{}").param == "prompt"
    assert refused_chat(b"{}").param == "messages"
    assert refused_chat(b'{"messages":[]}').param == "messages"


@pytest.mark.parametrize(
    ("key", "value"),
    [("-1", 5), ("word", -100), ("1.5", 1), ("5", 1000), ("5", None), ("5", True), ("05", 1)],
)
def test_odd_prompts_bounds_02_a_wrong_bias_is_refused_by_its_key(key: str, value: object) -> None:
    assert refused_chat(chat_body(logit_bias={key: value})).param == f"logit_bias.{key}"


def test_odd_prompts_bounds_02_a_bias_for_every_id_is_over_the_limit() -> None:
    bias = {str(i): 1 for i in range(LIMITS.max_logit_bias + 1)}
    assert refused_chat(chat_body(logit_bias=bias)).param == "logit_bias"
    bias.pop("0")
    assert len(chat(logit_bias=bias).sampling.logit_bias) == LIMITS.max_logit_bias


@pytest.mark.parametrize(
    ("prompt", "param", "shown"),
    [
        ([-1], "prompt[0]", "-1"),
        ([1, 2.5], "prompt[1]", "2.5"),
        ([True], "prompt[0]", "true"),
        ([[1, 2], [3, -4]], "prompt[1][1]", "-4"),
        ([1, "a"], "prompt[1]", "a string"),
        ([["a"]], "prompt[0][0]", "a string"),
        ([1, [2]], "prompt[1]", "a list"),
        (["a", [2]], "prompt[1]", "a list"),
        ([{"a": 1}], "prompt[0]", "an object"),
    ],
)
def test_odd_prompts_bounds_03_a_wrong_id_is_refused_with_position_and_value(
    prompt: object, param: str, shown: str
) -> None:
    error = refused_completion(body(prompt=prompt))
    assert error.param == param
    assert shown in error.message


def test_odd_prompts_bounds_04_zero_tokens_only_to_score_a_prompt() -> None:
    assert completion(max_tokens=0, echo=True, logprobs=1).is_scoring
    assert refused_completion(body(prompt="Hi", max_tokens=0)).param == "max_tokens"
    assert refused_chat(chat_body(max_completion_tokens=0)).param == "max_completion_tokens"
    assert refused_chat(chat_body(min_tokens=10, max_tokens=5)).param == "min_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 49152},
        {"n": 10_000},
        {"n": 10_000, "best_of": 10_000},
        {"prompt": ["a"] * 100_000},
        {"prompt": ["a"] * 100, "n": 16},
        {"stop_token_ids": list(range(100_000))},
        {"stop": ["a"] * 5000},
        {"stop": "a" * 100_000},
        {"tools": [{"type": "function"}] * 5000},
        {"prompt_logprobs": -1},
        {"cache_salt": "a" * 1000},
    ],
)
def test_odd_prompts_bounds_05_small_requests_for_huge_work_are_refused(
    fields: dict[str, Any],
) -> None:
    error = refused_completion(body(**{"prompt": "Hi", **fields}))
    assert (error.param or "").split("[")[0] in fields
    assert len(error.message) < 300


def test_odd_prompts_bounds_05_so_are_they_in_chat() -> None:
    assert refused_chat(chat_body(logprobs=True, top_logprobs=21)).param == "top_logprobs"
    many = [{"role": "user", "content": "Hi"}] * 10_000
    assert refused_chat(body(messages=many)).param == "messages"


def test_limits_are_settings() -> None:
    small = ApiLimits(max_choices=1)
    with pytest.raises(InvalidRequest):
        parse_chat(chat_body(n=2), small)
    assert parse_chat(chat_body(n=16), LIMITS).n == 16


@pytest.mark.parametrize("field", ["content", "name", "tool_call_id"])
def test_utf8_detok_04_a_lone_surrogate_is_refused_by_the_fields_name(field: str) -> None:
    message = {"role": "user", "content": "Hi", field: "a\ud800b"}
    for stream in (True, False):
        error = refused_chat(body(messages=[message], stream=stream))
        assert error.param == f"messages[0].{field}"
        assert "surrogate" in error.message
        error.message.encode()


def test_utf8_detok_04_a_lone_surrogate_in_a_stop_string_or_a_name_is_refused() -> None:
    assert refused_chat(chat_body(stop=["a", "\udfff"])).param == "stop[1]"
    error = refused_chat(b'{"messages":[],"\\ud800":1}')
    error.message.encode()


def test_utf8_detok_04_nul_bom_and_control_characters_pass() -> None:
    for text in ("ab\x00c", "\ufeffHi", "a\x04b"):
        assert chat(messages=[{"role": "user", "content": text}]).messages[0]["content"] == text


@pytest.mark.parametrize(
    "data",
    [
        '{"prompt":"你好"}'.encode("gbk"),
        '{"prompt":"你好"}'.encode()[:-4],
        b'{"prompt":' + b"[" * 100_000,
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        '{"prompt":"Hi"}'.encode("utf-16"),
        b'{"prompt":"\xed\xa0\x80"}',
        b"",
        b"{",
        b"[]",
        b"5",
        b'"' + MARKER.encode() + b'"',
        b'{"prompt":"Hi"} x',
        b'{"prompt":"a\nb"}',
        b'{"n":' + b"1" * 5000 + b"}",
    ],
)
def test_utf8_detok_05_a_body_that_is_not_json_is_refused_without_being_repeated(
    data: bytes,
) -> None:
    error = refused_completion(data)
    assert error.http_status == 400
    assert MARKER not in error.message
    assert len(error.message.encode()) < 200


def test_utf8_detok_05_a_long_wrong_body_is_refused_without_a_slow_second_reading() -> None:
    error = refused_completion(b'{"prompt":[' + b"0," * 1_000_000 + b"NaN]}")
    assert error.message == "The body is not valid JSON."


def test_a_utf8_byte_order_mark_before_the_body_is_skipped() -> None:
    assert parse_completion(b"\xef\xbb\xbf" + body(prompt="Hi"), LIMITS).prompts == ("Hi",)


@pytest.mark.parametrize("field", ["chat_template", "extra_body", "add_generation_prompt"])
def test_security_template_01_templates_in_requests_are_refused(field: str) -> None:
    attack = "{% for i in range(99999) %}x{% endfor %}"
    value = attack if field == "chat_template" else {"chat_template": attack}
    error = refused_chat(chat_body(**{field: value}))
    assert error.param == field
    assert "range" not in error.message


@pytest.mark.parametrize(
    "field",
    [
        "prompt_embeds",
        "image_embeds",
        "kv_transfer_params",
        "do_remote_prefill",
        "bootstrap_host",
        "prefill_addr",
        "data_parallel_rank",
    ],
)
def test_security_deserialization_02_tensors_and_internal_fields_are_refused(field: str) -> None:
    for error in (
        refused_chat(chat_body(**{field: "FAKE"})),
        refused_completion(body(prompt="Hi", **{field: "FAKE"})),
    ):
        assert isinstance(error, Unsupported)
        assert error.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("response_format", {"type": "json_object"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("suffix", "end"),
        ("use_beam_search", True),
    ],
)
def test_a_known_field_that_cannot_be_honoured_is_refused(field: str, value: object) -> None:
    error = refused_chat(chat_body(**{field: value}))
    assert error.param == field
    assert error.code in ("unsupported_parameter", "unsupported_modality")


def test_values_that_ask_for_nothing_pass() -> None:
    request = chat(
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        suffix="",
        use_beam_search=False,
        chat_template_kwargs={},
        best_of=1,
        stop=[],
        logit_bias={},
    )
    assert request.unknown_fields == ()


def test_completions_refuse_the_names_that_chat_has_for_the_same() -> None:
    for field in ("max_completion_tokens", "top_logprobs"):
        assert refused_completion(body(prompt="Hi", **{field: 1})).param == field
    assert refused_completion(body(prompt="Hi", logprobs=True)).param == "logprobs"
    assert refused_completion(body(prompt="Hi", suffix="x")).param == "suffix"


def test_two_different_limits_of_tokens_are_refused() -> None:
    assert refused_chat(chat_body(max_tokens=1, max_completion_tokens=2)).param == "max_tokens"
    assert chat(max_tokens=2, max_completion_tokens=2).sampling.max_tokens == 2


def test_top_p_0_keeps_the_best_token_and_top_k_minus_1_keeps_all() -> None:
    sampling = chat(top_p=0, top_k=-1).sampling
    assert sampling.top_p is not None
    assert 0 < sampling.top_p <= 1e-9
    assert sampling.top_k == 0


def test_a_stop_string_given_twice_counts_once() -> None:
    assert chat(stop=["a", "a"]).sampling.stop == ("a",)
    assert chat(stop="a").sampling.stop == ("a",)


def test_security_logs_01_errors_do_not_repeat_what_a_field_holds() -> None:
    long = MARKER * 300
    for error in (
        refused_chat(chat_body(stop=[long])),
        refused_chat(chat_body(temperature=long)),
        refused_chat(chat_body(user=long)),
        refused_chat(chat_body(metadata=MARKER)),
        refused_chat(body(messages=[{"role": MARKER, "content": "x"}])),
        refused_chat(body(messages=[{"role": "user", "content": {"text": MARKER}}])),
        refused_chat(body(messages=[{"role": "user", "content": [{"type": MARKER}]}])),
        refused_chat(body(messages=MARKER)),
        refused_chat(chat_body(tools=[{"description": MARKER}])),
        refused_completion(body(prompt={"a": MARKER})),
        refused_completion(b'{"prompt":"' + MARKER.encode()),
        refused_completion(b'{"' + MARKER.encode() + b'":NaN}'),
    ):
        assert MARKER not in error.message


def test_the_native_chat_always_streams_and_may_be_told_the_model_in_the_query() -> None:
    request = parse_native(chat_body(), {"model": "preview"}, LIMITS)
    assert (request.model, request.stream) == ("preview", True)
    assert parse_native(chat_body(model="m"), {}, LIMITS).model == "m"


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ({"model": "a"}, {"model": "b"}),
        ({"stream": False}, {}),
        ({"n": 2}, {}),
        ({"logprobs": True}, {}),
        ({"stream_options": {"include_usage": True}}, {}),
    ],
)
def test_the_native_chat_refuses_what_its_events_cannot_carry(
    fields: dict[str, Any], query: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_native(chat_body(**fields), query, LIMITS)
    assert caught.value.param in fields


def test_other_content_than_text_is_an_unsupported_modality() -> None:
    for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}, {"type": "x"}):
        error = refused_chat(body(messages=[{"role": "user", "content": [part]}]))
        assert isinstance(error, UnsupportedModality)
        assert error.param == "messages[0].content[0].type"
        assert "127.0.0.1" not in error.message
