"""`headway serve` with limits and prices in its file, and Redis from a flag."""

import asyncio
import signal
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


async def ask(here: Process, max_tokens: int = 2, key: str = "sk-acme") -> httpx.Response:
    return await here.client.post(
        CHAT,
        json=HI | {"max_tokens": max_tokens},
        headers={"Authorization": f"Bearer {key}"},
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


ADMIN_KEY = "an-admin-key-of-the-operator"
PRICES = "prices: {models: {tiny: {prompt: 0, completion: 1_000_000}}}\n"


@pytest.mark.spec("M4")
def test_a_budget_that_is_set_during_a_month_counts_what_was_spent_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "headway.yaml"
        file.write_text(PRICES)
        options = ("--model", tiny(tmp_path / "tiny.gguf"), "--config", str(file))
        kept = ("--data-dir", str(tmp_path / "data"), "--admin-key", ADMIN_KEY)
        async with server("ready", *options, *kept) as here:
            await here.answers("/ready", 200)
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}

            async def admin(method: str, path: str, body: object) -> dict[str, object]:
                answer = await here.client.request(method, path, json=body, headers=headers)
                assert answer.is_success, answer.text
                found: dict[str, object] = answer.json()
                return found

            await admin("POST", "/admin/tenants", {"name": "late"})
            key = str((await admin("POST", "/admin/tenants/late/keys", {}))["key"])
            for _ in range(3):
                assert (await ask(here, 2, key)).status_code == 200
            budget = {"limits": {"monthly_budget": 8_000_000}}
            await admin("PATCH", "/admin/tenants/late", budget)
            assert (await ask(here, 3, key)).status_code == 429
            assert (await ask(here, 2, key)).status_code == 200
            assert (await ask(here, 1, key)).status_code == 429

    run(scenario())


@pytest.mark.spec("M4")
def test_a_budget_that_comes_with_a_reload_counts_what_was_spent_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "headway.yaml"
        tenant = "tenants: [{name: late, keys: [sk-late]%s}]\n"
        file.write_text(PRICES + tenant % "")
        options = ("--model", tiny(tmp_path / "tiny.gguf"), "--config", str(file))
        async with server("ready", *options, "--data-dir", str(tmp_path / "data")) as here:
            await here.answers("/ready", 200)
            for _ in range(3):
                assert (await ask(here, 2, "sk-late")).status_code == 200
            file.write_text(PRICES + tenant % ", limits: {monthly_budget: 8_000_000}")
            here.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(30):
                while (
                    'reloads_total{outcome="ok"} 1.0'
                    not in (await here.client.get("/metrics")).text
                ):
                    await asyncio.sleep(0.02)
            assert (await ask(here, 3, "sk-late")).status_code == 429
            assert (await ask(here, 2, "sk-late")).status_code == 200
            assert (await ask(here, 1, "sk-late")).status_code == 429

    run(scenario())
