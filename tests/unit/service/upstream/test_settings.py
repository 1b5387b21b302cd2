"""What an operator may say of an upstream."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import InvalidSetting
from headway.core.route.breaker import BreakerSettings
from headway.core.route.retry import RetrySettings
from headway.service.upstream.settings import (
    Endpoint,
    Kind,
    Modality,
    Timeouts,
    Tls,
    UpstreamSettings,
    check,
    read_key,
)

SECRET = "sk-never-shown"


def made(**fields: Any) -> UpstreamSettings:
    return UpstreamSettings(**{"name": "m", "url": "http://h:1", **fields})


def test_an_entry_of_a_file_is_read_with_one_name_or_several() -> None:
    read = msgspec.convert(
        {
            "name": ["m", "n"],
            "url": "https://api.example.com/v1",
            "kind": "vllm",
            "modalities": ["image"],
            "timeouts": {"total": 5},
        },
        UpstreamSettings,
    )
    check(read)
    assert read.names == ("m", "n")
    assert read.urls == ("https://api.example.com/v1",)
    assert read.upstream_model == "m"
    assert read.kind is Kind.VLLM
    assert read.modalities == (Modality.IMAGE,)
    assert read.probe_path == "/health"


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://h:8000", ("h:8000", "h:8000", "/v1", "")),
        ("http://h:8000/", ("h:8000", "h:8000", "/v1", "")),
        ("http://h:8000/v1/", ("h:8000", "h:8000", "/v1", "")),
        ("https://h/openai/v1", ("h:443", "h", "/openai/v1", "/openai")),
        ("http://[::1]:9", ("[::1]:9", "[::1]:9", "/v1", "")),
    ],
)
def test_an_address_is_taken_apart(url: str, wanted: tuple[str, str, str, str]) -> None:
    found = Endpoint.of(url)
    assert (found.label, found.authority, found.api, found.root) == wanted


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"name": ()}, "upstream.name"),
        ({"name": ""}, "upstream.name"),
        ({"url": ()}, "upstream.url"),
        ({"url": "ftp://h"}, "upstream.url"),
        ({"url": "http://"}, "upstream.url"),
        ({"url": "http://h:99999"}, "upstream.url"),
        ({"url": "http://h/v1?x=1"}, "upstream.url"),
        ({"url": "http://h/a b"}, "upstream.url"),
        ({"url": "http://h/\r\nx: y"}, "upstream.url"),
        ({"url": f"http://user:{SECRET}@h"}, "upstream.url"),
        ({"url": ("http://h:1", "http://h:1/v1")}, "upstream.url"),
        ({"headers": {"Authorization": SECRET}}, "upstream.headers.Authorization"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "upstream.headers.Transfer-Encoding"),
        ({"headers": {"x": "a\r\nHost: b"}}, "upstream.headers.x"),
        ({"headers": {"a b": "c"}}, "upstream.headers"),
        ({"health_path": "health"}, "upstream.health_path"),
        ({"api_key_env": "A", "api_key_file": "b"}, "upstream.api_key_file"),
        ({"timeouts": Timeouts(total=0)}, "upstream.timeouts.total"),
        ({"max_concurrent": 0}, "upstream.max_concurrent"),
        ({"max_waiting": -1}, "upstream.max_waiting"),
        ({"breaker": BreakerSettings(window=0)}, "upstream.breaker.window"),
        ({"retries": RetrySettings(share=-0.1)}, "upstream.retries.share"),
        ({"retries": RetrySettings(in_a_row=0)}, "upstream.retries.in_a_row"),
        ({"tls": Tls(key_file="k")}, "upstream.tls.key_file"),
        ({"url": ("http://h:1", "http://h:2"), "launch": ("vllm",)}, "upstream.launch"),
    ],
)
def test_what_cannot_work_is_refused_by_its_field(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        check(made(**fields))
    assert raised.value.param == where
    assert SECRET not in raised.value.message


def test_a_key_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    assert read_key(made(), ()) is None
    assert read_key(made(api_key_env="K"), {"K": SECRET}.items()) == SECRET
    assert read_key(made(api_key_file=str(file)), os.environ.items()) == SECRET


@pytest.mark.parametrize("key", ["", f"{SECRET}\r\nx: y", f"{SECRET}é"])
def test_a_key_that_cannot_be_sent_is_refused_and_never_shown(key: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        read_key(made(api_key_env="K"), {"K": key}.items())
    assert raised.value.param == "upstream.api_key_env"
    assert SECRET not in raised.value.message


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"upstream\.api_key_file: .* cannot be read"):
        read_key(made(api_key_file=str(tmp_path / "none")), ())


@pytest.mark.parametrize("kind", [Kind.OPENAI, Kind.LLAMACPP, Kind.HEADWAY])
def test_priorities_need_a_server_that_knows_them(kind: Kind) -> None:
    made = UpstreamSettings(name="m", url="http://a", kind=kind, priority=True)
    with pytest.raises(InvalidSetting, match=r"upstream\.priority: needs kind sglang or vllm"):
        check(made)


def test_whether_answers_can_be_scored_is_known_by_the_kind_unless_it_is_said() -> None:
    known = {kind: UpstreamSettings(kind=kind).has_logprobs for kind in Kind}
    assert [kind for kind, has in known.items() if not has] == [Kind.OPENAI]
    assert UpstreamSettings(kind=Kind.OPENAI, logprobs=True).has_logprobs
    assert not UpstreamSettings(kind=Kind.VLLM, logprobs=False).has_logprobs
