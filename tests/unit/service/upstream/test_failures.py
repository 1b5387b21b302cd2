"""What an upstream's refusal becomes."""

import json

import pytest

from headway.core.base.errors import (
    InvalidRequest,
    PromptTooLong,
    UpstreamBusy,
    UpstreamError,
    UpstreamMisconfigured,
    UpstreamTimeout,
)
from headway.service.upstream.failures import Refusal, refusal_of


def refused(status: int, told: object = None, **headers: str) -> Refusal:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    return refusal_of(status, named, body, [("their-model", "m")])


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_what_the_upstream_refuses_us_is_no_fault_of_the_client(status: int) -> None:
    found = refused(status, {"error": {"message": "wrong key sk-abcdefghijk for their-model"}})
    assert isinstance(found.error, UpstreamMisconfigured)
    assert found.error.http_status == 502
    assert "sk-" not in found.error.message + found.detail
    assert found.is_failure
    assert found.is_retried


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_upstream_is_a_capacity_error_with_its_own_time(status: int) -> None:
    found = refused(status, None, retry_after="7")
    assert isinstance(found.error, UpstreamBusy)
    assert found.error.http_status == 503
    assert found.error.retry_after_s == 7.0
    assert not found.is_failure
    assert found.is_retried


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after_ms": "1500"}, 1.5),
        (
            {
                "retry_after": "Wed, 21 Oct 2026 07:28:30 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30.0,
        ),
        ({"retry_after": "soon"}, 1.0),
        ({"retry_after": "nan"}, 1.0),
        ({"retry_after": "-5"}, 0.0),
        ({"retry_after": "999999999"}, 3600.0),
        ({}, 1.0),
    ],
)
def test_any_form_of_the_time_is_understood(headers: dict[str, str], seconds: float) -> None:
    error = refused(429, None, **headers).error
    assert isinstance(error, UpstreamBusy)
    assert error.retry_after_s == seconds


def test_the_clients_own_fault_is_passed_on_without_what_tells_of_the_upstream() -> None:
    told = {
        "message": "their-model at http://10.0.0.7:8000/v1\ncannot take 'n'; key sk-secretsecret",
        "param": "n",
        "code": "bad_n",
    }
    found = refused(400, {"error": told})
    assert isinstance(found.error, InvalidRequest)
    assert found.error.param == "n"
    assert found.error.code == "bad_n"
    assert found.error.message == "m at *** cannot take 'n'; ***"
    assert not found.is_failure
    assert not found.is_retried


def test_a_prompt_that_is_too_long_has_the_code_for_it() -> None:
    told = {"object": "error", "message": "This model's maximum context length is 5", "code": 400}
    assert isinstance(refused(400, told).error, PromptTooLong)


def test_a_long_message_is_cut() -> None:
    assert len(refused(422, {"detail": "x" * 5000}).error.message) < 700


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b"[" * 5000, b'{"error":3}'])
def test_a_refusal_without_a_readable_reason_has_one_all_the_same(body: bytes) -> None:
    assert refused(400, body).error.message


@pytest.mark.parametrize("status", [500, 502, 418, 206])
def test_any_other_status_is_a_failure_that_another_replica_may_not_have(status: int) -> None:
    found = refused(status)
    assert type(found.error) is UpstreamError
    assert found.is_failure
    assert found.is_retried


def test_a_gateway_of_theirs_that_waited_too_long_is_a_timeout() -> None:
    assert isinstance(refused(504).error, UpstreamTimeout)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 64 tokens. However, you requested 90.",
        "The input (90 tokens) is longer than the model's context length (64 tokens).",
        "Input length 90 exceeds the maximum allowed length 64.",
        "request (90 tokens) exceeds the available context size (64 tokens), try increasing it",
    ],
)
def test_every_server_s_words_for_a_prompt_that_is_too_long_become_one_code(message: str) -> None:
    found = refused(400, {"error": {"message": message, "code": 400}})
    assert isinstance(found.error, PromptTooLong)
    assert not found.is_failure
