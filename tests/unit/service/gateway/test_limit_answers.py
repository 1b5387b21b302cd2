"""What a client is told of its limits."""

import pytest

from headway.core.base.errors import QuotaExceeded
from headway.core.tenancy.limits import Claim, Denied, LimitKind, Limits, Standing
from headway.service.gateway.limit_answers import denial, duration, headers_of
from headway.service.openai.errors import to_response

CLAIM = Claim(id="r", tenant="acme", limits=Limits(), tokens=700, cost=1_234_500)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.999, "59.999s"),
        (90.5, "1m30.5s"),
        (360.0, "6m0s"),
        (4320.0, "1h12m0s"),
        (90_000.0, "25h0m0s"),
    ],
)
def test_a_duration_is_written_as_openai_does(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_only_limits_that_there_are_get_headers() -> None:
    standing = Standing(remaining_requests=4, reset_requests_s=12.0)
    assert dict(headers_of(Limits(requests_per_minute=5), standing)) == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "12s",
    }
    both = Limits(requests_per_minute=5, tokens_per_minute=100, concurrent_requests=1)
    standing = Standing(remaining_requests=4, remaining_tokens=0, reset_tokens_s=60.0)
    assert dict(headers_of(both, standing))["x-ratelimit-reset-tokens"] == "1m0s"
    assert list(headers_of(Limits(concurrent_requests=1), Standing())) == []


def told(kind: LimitKind, wait: float | None, limit: int) -> tuple[str, dict[str, str], str]:
    standing = Standing(remaining_tokens=20)
    denied = Denied(kind=kind, retry_after_s=wait, limit=limit, standing=standing)
    error = denial(CLAIM, denied, "EUR")
    status, headers, _ = to_response(error)
    assert status == 429
    return error.message, dict(headers), error.error_type


def test_a_refusal_says_which_limit_its_value_and_when_to_come_again() -> None:
    message, headers, kind = told(LimitKind.REQUESTS, 1.2, 60)
    assert "'acme'" in message
    assert "60 requests a minute" in message
    assert message.endswith("Try again in 1.2s.")
    assert (headers["retry-after"], headers["retry-after-ms"], kind) == ("2", "1200", "requests")
    message, headers, kind = told(LimitKind.TOKENS, 0.0301, 1000)
    assert "1000 tokens a minute, of which 20 are left" in message
    assert "asks for 700" in message
    assert (headers["retry-after"], headers["retry-after-ms"], kind) == ("1", "31", "tokens")
    message, headers, kind = told(LimitKind.CONCURRENCY, 1.0, 2)
    assert "2 requests at the same time" in message
    assert (headers["retry-after"], kind) == ("1", "concurrency")


def test_what_no_waiting_grants_is_not_to_be_tried_again() -> None:
    message, headers, _ = told(LimitKind.TOKENS, None, 500)
    assert "too large" in message
    assert "700 tokens" in message
    assert headers["x-should-retry"] == "false"
    assert not {"retry-after", "retry-after-ms"} & set(headers)
    message, headers, _ = told(LimitKind.BUDGET, None, 1_000_000)
    assert "1.00 EUR a month" in message
    assert "1.2345 EUR" in message
    assert "retry-after" not in headers


@pytest.mark.parametrize("kind", [LimitKind.REQUESTS, LimitKind.CONCURRENCY])
def test_who_may_do_nothing_is_not_told_to_wait(kind: LimitKind) -> None:
    message, headers, _ = told(kind, None, 0)
    assert message.startswith("No requests are allowed for tenant 'acme'")
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers


def test_a_budget_says_when_its_month_ends_and_clients_do_not_insist() -> None:
    message, headers, kind = told(LimitKind.BUDGET, 86_400.0, 5_000_000)
    assert "5.00 EUR a calendar month" in message
    assert message.endswith("Try again in 24h0m0s.")
    assert (headers["retry-after"], headers["x-should-retry"]) == ("86400", "false")
    assert kind == QuotaExceeded.code == "insufficient_quota"


def test_everybody_without_a_tenant_is_told_so() -> None:
    everybody = Claim(id="r", tenant="", limits=Limits())
    denied = Denied(kind=LimitKind.REQUESTS, retry_after_s=1.0, limit=1)
    assert "everybody without a tenant" in denial(everybody, denied, "").message
