"""A request as an upstream gets it."""

import json
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import InvalidRequest, UnsupportedModality
from headway.core.tenancy.tenant import Tenant
from headway.service.openai.forwarded import ForwardedRequest, parse_forwarded_chat
from headway.service.openai.limits import ApiLimits
from headway.service.openai.schema import Asker
from headway.service.upstream.outgoing import (
    MAX_INT,
    check_modalities,
    most_tokens,
    outgoing_body,
    outgoing_head,
    passed_headers,
    salt_of,
)
from headway.service.upstream.settings import Endpoint, Kind, Modality, UpstreamSettings

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
REMOTE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}


def made(**fields: Any) -> UpstreamSettings:
    return UpstreamSettings(**{"name": "m", "model": "theirs", "url": "http://h:1", **fields})


def asked(*parts: Any, tenant: str = "", **fields: Any) -> ForwardedRequest:
    content = list(parts) if parts else "Hi"
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    request = parse_forwarded_chat(json.dumps(body).encode(), ApiLimits())
    return msgspec.structs.replace(request, asker=Asker(tenant=Tenant(name=tenant)))


def sent(request: ForwardedRequest, settings: UpstreamSettings, bound: int | None = None) -> Any:
    return json.loads(outgoing_body(request, settings, "id-1", bound))


def test_the_model_is_the_upstreams_and_the_rest_the_clients() -> None:
    body = sent(asked(temperature=0.5, tools=[{"type": "function"}]), made())
    assert body == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "tools": [{"type": "function"}],
    }


def test_usage_is_asked_for_in_every_stream_and_other_options_stay() -> None:
    body = sent(asked(stream=True, stream_options={"continuous_usage_stats": False}), made())
    assert body["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}


def test_a_server_that_refuses_stream_options_gets_none() -> None:
    body = sent(asked(stream=True, stream_options={}), made(stream_usage=False))
    assert "stream_options" not in body


@pytest.mark.spec("M12")
@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.SGLANG, Kind.HEADWAY])
def test_tenants_never_share_cached_blocks_of_the_upstream(kind: Kind) -> None:
    salts = [
        sent(asked(tenant=tenant, **fields), made(kind=kind))["cache_salt"]
        for tenant in ("a", "b")
        for fields in ({}, {"cache_salt": "x"})
    ]
    assert len(set(salts)) == 4


def test_a_server_that_knows_no_salts_is_sent_none() -> None:
    assert "cache_salt" not in sent(asked(tenant="a", cache_salt="x"), made())
    assert "cache_salt" not in sent(asked(), made(kind=Kind.VLLM))
    assert salt_of(asked(tenant="a")) != salt_of(asked(tenant="b"))


def test_a_salt_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cache_salt"):
        sent(asked(cache_salt=3), made())


def test_sglang_is_told_an_id_of_ours_to_abort_by() -> None:
    assert sent(asked(rid="theirs"), made(kind=Kind.SGLANG))["rid"] == "id-1"
    assert "rid" not in sent(asked(rid="theirs"), made())


def test_a_bound_of_the_route_holds_whatever_was_asked() -> None:
    assert sent(asked(), made(), bound=5)["max_tokens"] == 5
    assert sent(asked(max_completion_tokens=9), made(), bound=5)["max_completion_tokens"] == 5
    assert sent(asked(max_tokens=3), made(), bound=5)["max_tokens"] == 3


def test_what_an_answer_may_have_is_the_least_of_all_that_bounds_it() -> None:
    settings = made(context_length=100)
    assert most_tokens(asked(max_tokens=7), settings, None) == 7
    assert most_tokens(asked(), settings, None) == 100
    assert most_tokens(asked(max_tokens=7), settings, 5) == 5
    assert most_tokens(asked(), made(), None) == MAX_INT


def test_security_ssrf_01_images_go_only_where_they_are_taken_and_only_by_value() -> None:
    takes = made(modalities=(Modality.IMAGE,))
    check_modalities(asked(IMAGE), takes)
    for request, settings in ((asked(IMAGE), made()), (asked(REMOTE), takes)):
        with pytest.raises(UnsupportedModality, match="nothing is fetched from a URL"):
            check_modalities(request, settings)
    check_modalities(asked(REMOTE), made(modalities=(Modality.IMAGE,), remote_media=True))


def test_the_head_has_our_credentials_and_what_the_operator_adds() -> None:
    settings = made(headers={"X-Team": "a"})
    head = outgoing_head(Endpoint.of("http://h:1"), "/chat/completions", settings, "key")
    lines = head.split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert "authorization: Bearer key" in lines
    assert "x-team: a" in lines
    assert lines[-1] == "", "further lines may follow"


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        ("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", True),
        ("traceparent", "00-x\r\nx-evil: 1", False),
        ("tracestate", "a=b", True),
        ("authorization", "Bearer x", False),
        ("cookie", "a=b", False),
        ("x-forwarded-for", "1.2.3.4", False),
    ],
)
def test_security_headers_auth_01_only_tracing_headers_of_a_client_go_on(
    name: str, value: str, passes: bool
) -> None:
    assert passed_headers({name: value}.get) == ({name: value} if passes else {})
