"""Tokens of an identity provider: which are taken, and whose they are."""

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from headway.core.base.errors import InvalidSetting, StoreUnavailable, Unauthorized
from headway.core.tenancy.tenant import Principal, SloClass, Tenant
from headway.service.gateway import jwt_tokens
from headway.service.gateway.assemble import Access
from headway.service.gateway.jwt_settings import JwtSettings, check
from headway.service.gateway.jwt_tokens import JwtTokens
from headway.service.store.accounts_memory import MemoryAccounts
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, say_hello, site
from tests.unit.service.gateway.keys import add_tenant, bearer

ISSUER, AUDIENCE = "https://issuer.example", "headway"
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
TENANTS = {"acme": Tenant(name="acme", slo_class=SloClass.VIP)}


def jwks(*entries: dict[str, Any]) -> str:
    """The provider's file."""
    return json.dumps({"keys": list(entries)})


RSA_ENTRY = {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rsa", "use": "sig"}
OTHER_ENTRY = {**RSAAlgorithm.to_jwk(OTHER_RSA.public_key(), as_dict=True), "kid": "other"}
EC_ENTRY = {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "ec"}
ED_ENTRY = {**OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True), "kid": "ed"}
ALL = jwks(RSA_ENTRY, EC_ENTRY, ED_ENTRY)


def claims(**changes: Any) -> dict[str, Any]:
    """Good ones, but for the changes; None removes."""
    now = int(time.time())
    given = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": now + 600,
        "nbf": now - 10,
        "sub": "someone@example.com",
        "tenant": "acme",
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


def signed(key: Any = RSA_KEY, alg: str = "RS256", kid: str | None = "rsa", **changes: Any) -> str:
    """A token."""
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm=alg, headers=headers)


def by_hand(header: dict[str, Any], payload: dict[str, Any], secret: bytes | None) -> str:
    """A token that the library would not make: HMAC with any secret, or no signature."""

    def part(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    text = f"{part(json.dumps(header).encode())}.{part(json.dumps(payload).encode())}"
    tail = b"x" if secret is None else hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{part(tail)}"


def tokens(folder: Path, keys: str = ALL, **changes: Any) -> JwtTokens:
    """Made on the running loop, with its keys from a file."""
    path = folder / "jwks.json"
    path.write_text(keys)
    settings = JwtSettings(jwks=str(path), issuer=ISSUER, audience=AUDIENCE, **changes)
    return JwtTokens(settings, TENANTS.get)


def checked(folder: Path, token: str, **changes: Any) -> Principal | None:
    """Whose it is."""

    async def scenario() -> Principal | None:
        here = tokens(folder, **changes)
        await here.load()
        first = await here.check(token)
        assert await here.check(token) == first  # also when it is remembered
        return first

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "token",
    [
        lambda: signed(),
        lambda: signed(EC_KEY, "ES256", "ec"),
        lambda: signed(ED_KEY, "EdDSA", "ed"),
        lambda: signed(kid=None),
        lambda: signed(aud=["x", AUDIENCE]),
        lambda: signed(nbf=None),
    ],
)
def test_a_good_token_is_of_the_tenant_that_it_names(
    tmp_path: Path, token: Callable[[], str]
) -> None:
    principal = checked(tmp_path, token())
    assert principal is not None
    assert principal.tenant == TENANTS["acme"]
    assert principal.key_id.startswith("jwt-")
    assert "someone" not in principal.key_id


def test_a_claim_may_be_deep_and_mapped(tmp_path: Path) -> None:
    deep = signed(tenant=None, realm={"team": "blue"})
    changes = {"tenant_claim": "realm.team", "tenants": {"blue": "acme"}}
    principal = checked(tmp_path, deep, **changes)
    assert principal is not None
    assert principal.tenant.name == "acme"
    with pytest.raises(Unauthorized):
        checked(tmp_path, signed(tenant=None, realm={"team": "acme"}), **changes)


PUBLIC_PEM = b"-----BEGIN PUBLIC KEY-----"
NONE = {"alg": "none", "kid": "rsa"}


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (lambda: signed(exp=int(time.time()) - 60), "expired"),
        (lambda: signed(exp=None), "lacks"),
        (lambda: signed(iss=None), "lacks"),
        (lambda: signed(aud=None), "lacks"),
        (lambda: signed(nbf=int(time.time()) + 600), "not valid yet"),
        (lambda: signed(aud="another"), "audience"),
        (lambda: signed(iss="https://evil.example"), "issuer"),
        (lambda: signed(tenant="nobody"), "tenant"),
        (lambda: signed(tenant=None), "no tenant"),
        (lambda: signed(tenant=["acme"]), "no tenant"),
        (lambda: signed(OTHER_RSA), "signature"),
        (lambda: signed(OTHER_RSA, kid="other"), "not known"),
        (lambda: signed(RSA_KEY, "RS512"), "not known"),
        (lambda: signed(RSA_KEY, "PS256"), "not known"),
        (lambda: signed(EC_KEY, "ES256", "rsa"), "not known"),
        (lambda: by_hand(NONE, claims(), None), "not known"),
        (lambda: by_hand({"alg": "HS256", "kid": "rsa"}, claims(), PUBLIC_PEM), "not known"),
        (lambda: by_hand({"alg": "RS256", "kid": "rsa"}, claims(), PUBLIC_PEM), "signature"),
        (lambda: "a.b.c", "read"),
    ],
)
def test_any_other_token_is_refused_with_the_reason_and_nothing_of_its_own(
    tmp_path: Path, token: Callable[[], str], reason: str
) -> None:
    text = token()
    with pytest.raises(Unauthorized) as caught:
        checked(tmp_path, text)
    assert reason in caught.value.message
    for told in ("evil", "someone", text):
        assert told not in caught.value.message


def test_only_algorithms_that_are_allowed_are_taken(tmp_path: Path) -> None:
    assert checked(tmp_path, signed(ED_KEY, "EdDSA", "ed"), algorithms=("EdDSA",)) is not None
    with pytest.raises(Unauthorized):
        checked(tmp_path, signed(), algorithms=("EdDSA",))


def test_a_symmetric_key_in_the_set_is_passed_over(tmp_path: Path) -> None:
    secret = b"s" * 32
    entry = {"kty": "oct", "kid": "oct", "k": base64.urlsafe_b64encode(secret).decode()}
    with pytest.raises(Unauthorized):
        checked(tmp_path, signed(secret, "HS256", "oct"), keys=jwks(RSA_ENTRY, entry))
    with pytest.raises(InvalidSetting, match="no key"):
        checked(tmp_path, signed(secret, "HS256", "oct"), keys=jwks(entry))


@pytest.mark.parametrize("token", ["", "hw-abc-def", "sk-one", "a.b", "a.b.c.d", "a" * 20_000])
def test_what_is_no_token_is_left_to_others(tmp_path: Path, token: str) -> None:
    assert checked(tmp_path, token) is None


def test_a_remembered_token_ends_with_its_time_and_with_its_tenant(tmp_path: Path) -> None:
    began = time.time()
    now = [began]
    tenants = dict(TENANTS)

    async def scenario() -> None:
        path = tmp_path / "jwks.json"
        path.write_text(ALL)
        settings = JwtSettings(jwks=str(path), issuer=ISSUER, audience=AUDIENCE, leeway_s=5.0)
        here = JwtTokens(settings, tenants.get, lambda: now[0])
        await here.load()
        token = signed(exp=int(began) + 100)
        assert await here.check(token) is not None
        tenants.clear()
        with pytest.raises(Unauthorized, match="tenant"):
            await here.check(token)
        tenants.update(TENANTS)
        assert await here.check(token) is not None
        now[0] = began + 106
        with pytest.raises(Unauthorized, match="expired"):
            await here.check(token)

    asyncio.run(scenario())


class Provider:
    """An identity provider on loopback."""

    def __init__(self) -> None:
        self.body: str | bytes = ALL
        self.status = "200 OK"
        self.more = ""
        self.num_asked = 0
        self.url = ""

    async def start(self) -> asyncio.Server:
        """Serve until closed."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.num_asked += 1
        head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(self.body)}\r\n{self.more}"
        data = self.body.encode() if isinstance(self.body, str) else self.body
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()


def test_keys_of_a_url_are_fetched_and_again_for_a_key_id_that_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        provider = Provider()
        provider.body = jwks(RSA_ENTRY)
        server = await provider.start()
        settings = JwtSettings(jwks=provider.url, issuer=ISSUER, audience=AUDIENCE)
        here = JwtTokens(settings, TENANTS.get)
        await here.load()
        assert await here.check(signed()) is not None
        provider.body = jwks(OTHER_ENTRY)  # the provider has rotated its key
        rotated = signed(OTHER_RSA, kid="other")
        for _ in range(20):  # a key id that is not known does not make us ask each time
            with pytest.raises(Unauthorized):
                await here.check(rotated)
        assert provider.num_asked == 1
        monkeypatch.setattr(jwt_tokens, "ASK_AGAIN_S", 0.0)
        monkeypatch.setattr(jwt_tokens, "MIN_PAUSE_S", 0.0)
        assert await here.check(rotated) is not None
        with pytest.raises(Unauthorized):  # the old key is gone, and what it signed
            await here.check(signed())
        server.close()

    run(scenario())


def test_keys_of_a_file_are_read_again_and_what_is_broken_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        here = tokens(tmp_path, jwks(RSA_ENTRY))
        await here.load()
        monkeypatch.setattr(jwt_tokens, "ASK_AGAIN_S", 0.0)
        rotated = signed(OTHER_RSA, kid="other")
        for broken in ("no json", jwks(), None):
            path = tmp_path / "jwks.json"
            path.unlink() if broken is None else path.write_text(broken)
            with pytest.raises(Unauthorized):
                await here.check(rotated)
            assert await here.check(signed()) is not None
        path.write_text(jwks(OTHER_ENTRY))
        assert await here.check(rotated) is not None
        with pytest.raises(Unauthorized):
            await here.check(signed())

    run(scenario())


def test_a_token_cannot_name_the_place_of_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider = Provider()
        provider.body = jwks(OTHER_ENTRY)
        server = await provider.start()
        here = tokens(tmp_path)
        await here.load()
        jwk = {name: value for name, value in OTHER_ENTRY.items() if name != "kid"}
        for more in ({"jku": provider.url}, {"x5u": provider.url}, {"jwk": jwk}):
            for kid in ("rsa", "other", provider.url, "../../etc/passwd"):
                token = jwt.encode(claims(), OTHER_RSA, "RS256", headers={"kid": kid, **more})
                with pytest.raises(Unauthorized):
                    await here.check(token)
        assert provider.num_asked == 0
        server.close()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "more", "body"),
    [
        ("500 No", "", ALL),
        ("302 Found", "Location: http://127.0.0.1:1/\r\n", ALL),
        ("200 OK", "", "no json"),
        ("200 OK", "", jwks()),
        ("200 OK", "", " " * (jwt_tokens.MAX_JWKS_BYTES + 1)),
        ("200 OK", "", '{"keys":[' + '{"a":' * 100_000),
        ("200 OK", "", b'{"keys": [{"kid": "\xff"}]}'),
        ("200 OK", "Content-Encoding: gzip\r\n", gzip.compress(ALL.encode())),
    ],
)
def test_a_provider_that_does_not_answer_well_makes_tokens_wait(
    status: str, more: str, body: str | bytes
) -> None:
    async def scenario() -> None:
        provider = Provider()
        provider.status, provider.more, provider.body = status, more, body
        server = await provider.start()
        settings = JwtSettings(jwks=provider.url, issuer=ISSUER, audience=AUDIENCE)
        here = JwtTokens(settings, TENANTS.get)
        await here.load()
        with pytest.raises(StoreUnavailable):
            await here.check(signed())
        server.close()

    run(scenario())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"jwks": "http://provider.example/keys"}, "jwt.jwks"),
        ({"jwks": "https://user:hush@provider.example/keys"}, "jwt.jwks"),
        ({"jwks": ""}, "jwt.jwks"),
        ({"issuer": ""}, "jwt.issuer"),
        ({"audience": ""}, "jwt.audience"),
        ({"algorithms": ("HS256",)}, "jwt.algorithms"),
        ({"algorithms": ("none",)}, "jwt.algorithms"),
        ({"algorithms": ()}, "jwt.algorithms"),
        ({"tenants": {"a": "no name"}}, "jwt.tenants.a"),
        ({"leeway_s": -1.0}, "jwt.leeway_s"),
        ({"refresh_s": 1.0}, "jwt.refresh_s"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    given = {"jwks": "https://p.example/k", "issuer": ISSUER, "audience": AUDIENCE, **changes}
    with pytest.raises(InvalidSetting) as caught:
        check(JwtSettings(**given))
    assert caught.value.param == field
    assert "hush" not in caught.value.message


def test_a_file_that_is_missing_ends_the_start(tmp_path: Path) -> None:
    settings = JwtSettings(jwks=str(tmp_path / "none"), issuer=ISSUER, audience=AUDIENCE)
    with pytest.raises(InvalidSetting, match="cannot be read"):
        asyncio.run(JwtTokens(settings, TENANTS.get).load())


def test_a_token_opens_v1_for_its_tenant_of_the_store_and_nobody_elses(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        path = tmp_path / "jwks.json"
        path.write_text(ALL)
        settings = JwtSettings(jwks=str(path), issuer=ISSUER, audience=AUDIENCE)
        store, replica = MemoryAccounts(), FakeReplica()
        replica.script = say_hello
        key = add_tenant(store, "blue", **{"class": "internal"}, models=["m"])
        access = Access(store=store, tokens=lambda find: JwtTokens(settings, find))
        async with site(replica=replica, access=access) as here:
            token = bearer(signed(tenant="blue"))
            for headers, status in ((token, 200), (bearer(key), 200), ({}, 401)):
                answer = await here.client.post(CHAT, json=HI, headers=headers)
                assert answer.status_code == status
            assert [each.tenant for each in replica.requests.values()] == ["blue", "blue"]
            assert [each.slo_class for each in replica.requests.values()] == [2, 2]
            listed = (await here.client.get("/v1/models", headers=token)).json()["data"]
            assert [each["id"] for each in listed] == ["m"]
            for unknown in (signed(tenant="acme"), signed(tenant=""), "a.b.c"):
                answer = await here.client.post(CHAT, json=HI, headers=bearer(unknown))
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"

    run(scenario())
