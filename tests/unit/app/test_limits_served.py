"""`headway serve` with limits and prices in its file, and Redis from a flag."""

from pathlib import Path

import httpx
import pytest

from tests.unit.app.test_gateway import Process, server
from tests.unit.service.gateway.fakes import CHAT, HI, run
from tests.unit.service.loaders.samples import tiny

FILE = """\
tenant: [acme:standard:sk-acme]
rate_limits:
  tenants:
    acme: {requests_per_minute: 3, monthly_budget: 10_000_000}
prices:
  currency: EUR
  models:
    tiny: {prompt: 0, completion: 1_000_000}
"""


async def ask(here: Process, max_tokens: int = 2) -> httpx.Response:
    return await here.client.post(
        CHAT,
        json=HI | {"max_tokens": max_tokens},
        headers={"Authorization": "Bearer sk-acme"},
    )


@pytest.mark.spec("M4")
def test_two_servers_count_a_tenants_requests_and_money_together(
    tmp_path: Path, redis_url: str
) -> None:
    async def scenario() -> None:
        model = tiny(tmp_path / "tiny.gguf")
        file = tmp_path / "headway.yaml"
        file.write_text(FILE)
        options = ("--model", model, "--config", str(file), "--redis-url", redis_url)
        async with server("ready", *options) as one, server("ready", *options) as other:
            for here in (one, other):
                await here.answers("/ready", 200)
            first = await ask(one)
            assert first.status_code == 200
            assert first.headers["x-ratelimit-remaining-requests"] == "2"
            dear = await ask(other, max_tokens=9)
            assert dear.status_code == 429
            error = dear.json()["error"]
            assert error["code"] == "insufficient_quota"
            assert "10.00 EUR a calendar month" in error["message"]
            assert "9.00 EUR" in error["message"]
            assert dear.headers["x-ratelimit-remaining-requests"] == "2"
            second = await ask(other, max_tokens=8)
            assert second.status_code == 200
            assert second.headers["x-ratelimit-remaining-requests"] == "1"
            metrics = (await other.client.get("/metrics")).text
            assert "headway_limit_store_up 1.0" in metrics
            assert 'headway_limit_denials_total{kind="budget",slo_class="standard"} 1.0' in metrics

    run(scenario())
