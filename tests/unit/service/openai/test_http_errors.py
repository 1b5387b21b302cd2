import json

import pytest

from headway.core.base import errors as tree
from headway.core.base.units import Seconds
from headway.service.openai import sse
from headway.service.openai.errors import to_event, to_response


def test_an_error_has_openais_shape_and_its_own_status() -> None:
    status, headers, data = to_response(tree.InvalidRequest("'n' is wrong.", param="n"))
    assert status == 400
    assert dict(headers) == {"content-type": "application/json"}
    assert json.loads(data) == {
        "error": {
            "message": "'n' is wrong.",
            "type": "invalid_request_error",
            "param": "n",
            "code": None,
        }
    }


@pytest.mark.parametrize(
    ("seconds", "header"),
    [(0.0, "1"), (0.2, "1"), (1.0, "1"), (2.1, "3"), (float("inf"), "1"), (float("nan"), "1")],
)
def test_retry_after_is_whole_seconds_of_at_least_one(seconds: float, header: str) -> None:
    for kind in (tree.QueueFull, tree.ReplicaLost, tree.RateLimited):
        status, headers, _ = to_response(kind("full", Seconds(seconds)))
        assert status in (503, 429)
        assert dict(headers)["retry-after"] == header


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), KeyError("secret"), tree.InvalidSetting("--port", "secret")],
)
def test_an_unknown_error_is_an_internal_one_without_details(error: Exception) -> None:
    status, _, data = to_response(error)
    assert status == 500
    assert b"secret" not in data
    assert json.loads(data)["error"]["code"] == "internal_error"


def test_an_error_event_is_one_event_with_the_same_body() -> None:
    error = tree.ModelNotFound("no such model", param="model")
    assert to_event(error) == sse.event(to_response(error)[2])


def test_a_message_that_is_no_utf8_is_made_valid() -> None:
    _, _, data = to_response(tree.InvalidRequest("a\ud800b", param="\udfff"))
    assert json.loads(data)["error"]["message"] == "a?b"


def test_events_and_comments_are_ended_by_an_empty_line() -> None:
    assert sse.event(b"{}") == b"data: {}\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
    assert sse.KEEPALIVE == b": keepalive\n\n"
    assert dict(sse.HEADERS)["x-accel-buffering"] == "no"
