"""Keys: what is let in, what is refused, and what never needs one."""

import asyncio
from collections.abc import Sequence

import pytest

from headway.core.base.errors import Unauthorized
from headway.core.tenancy.tenant import Principal, SloClass, Tenant
from headway.service.gateway.auth import KeyRing
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, say_hello, site

KEYS = ("sk-one", "sk-two")


def check(ring: KeyRing, headers: Sequence[str]) -> Principal:
    """Whose key these headers have."""
    return asyncio.run(ring.check(headers))


def test_without_keys_everybody_is_let_in() -> None:
    check(KeyRing(()), [])
    with pytest.raises(Unauthorized):
        check(KeyRing(("k",)), [])


@pytest.mark.parametrize("value", ["Bearer sk-one", "bearer sk-two", "Bearer  sk-one "])
def test_each_of_several_keys_is_let_in(value: str) -> None:
    ring = KeyRing(KEYS)
    check(ring, [value])
    with pytest.raises(Unauthorized):
        check(ring, [value + "x"])


def test_a_key_says_whose_it_is() -> None:
    acme = Tenant(name="acme", slo_class=SloClass.VIP)
    ring = KeyRing(("sk-all",), (("sk-acme", acme),))
    assert check(ring, ["Bearer sk-acme"]).tenant == acme
    assert check(ring, ["Bearer sk-all"]).tenant == Tenant()
    with pytest.raises(Unauthorized):
        check(ring, [])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["sk-one"],
        ["Basic sk-one"],
        ["Bearer"],
        ["Bearer sk-ONE"],
        ["Bearer sk-one", "Bearer sk-two"],
        ["Bearer sk-one, sk-two"],
        ["Bearer \xff\xfe"],
    ],
)
def test_anything_else_is_refused_without_repeating_it(headers: list[str]) -> None:
    with pytest.raises(Unauthorized) as caught:
        check(KeyRing(KEYS), headers)
    assert "sk-" not in caught.value.message


def test_only_v1_needs_a_key_and_the_body_is_not_read_without() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(settings=GatewaySettings(api_key=KEYS), replica=replica) as here:
            for path in ("/health", "/ready", "/metrics", "/version", "/openapi.json", "/docs"):
                assert (await here.client.get(path)).status_code == 200
            for answer in (
                await here.client.get("/v1/models"),
                await here.client.get("/v1/models/m"),
                await here.client.post("/tokenize", json={"prompt": "Hi"}),
                await here.client.post("/detokenize", json={"tokens": []}),
                await here.client.post(CHAT, content=b"no json"),
                await here.client.post(CHAT, json=HI, headers={"X-API-Key": "sk-one"}),
                await here.client.post(CHAT + "?api_key=sk-one", json=HI),
            ):
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
            good = {"Authorization": "Bearer sk-two"}
            assert (await here.client.get("/v1/models", headers=good)).status_code == 200
            assert (await here.client.post(CHAT, json=HI, headers=good)).status_code == 200
            assert await here.outcomes() == {"unauthorized": 3, "ok": 1}

    run(scenario())
