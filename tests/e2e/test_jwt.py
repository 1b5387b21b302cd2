"""Tokens of an identity provider at a real server, with OpenAI's own client."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from openai import AuthenticationError, OpenAI

from tests.e2e.server import Server, until

pytestmark = pytest.mark.e2e
ISSUER, AUDIENCE = "https://login.example.com/", "headway"
OLD, NEW = (rsa.generate_private_key(65537, 2048) for _ in range(2))
CONFIG = """\
models:
  - model: {model}
tenants:
  - {{name: acme, class: vip}}
jwt:
  jwks: {jwks}
  issuer: {issuer}
  audience: {audience}
  tenant_claim: realm.team
  tenants: {{blue: acme}}
  leeway_s: 1
  refresh_s: 10
"""


def entry(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    """As a set of keys has it."""
    return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


class Provider(HTTPServer):
    """Serves a set of public keys, which the test may change."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.entries = [entry(OLD, "old")]
        self.url = f"http://127.0.0.1:{self.server_port}/jwks.json"


class _Answer(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        body = json.dumps({"keys": self.server.entries}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not told."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as here:
        thread = threading.Thread(target=here.serve_forever)
        thread.start()
        yield here
        here.shutdown()
        thread.join()


@pytest.fixture
def served(provider: Provider, tmp_path: Path, smollm2_path: str) -> Iterator[Server]:
    config = tmp_path / "headway.yaml"
    config.write_text(
        CONFIG.format(model=smollm2_path, jwks=provider.url, issuer=ISSUER, audience=AUDIENCE)
    )
    server = Server(tmp_path, None, "--config", str(config)).wait_ready()
    yield server
    assert server.stop() == 0


def claims(**changes: Any) -> dict[str, Any]:
    """Good ones, but for the changes."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, "sub": "ann@example.com"}
    return {**good, "realm": {"team": "blue"}, **changes}


def token(key: rsa.RSAPrivateKey = OLD, kid: str = "old", **changes: Any) -> str:
    """As the provider signs it."""
    return jwt.encode(claims(**changes), key, "RS256", headers={"kid": kid})


def forged(alg: str, sign: Callable[[bytes], bytes]) -> str:
    """One that no library would make."""

    def part(raw: bytes) -> bytes:
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    head = json.dumps({"alg": alg, "kid": "old", "typ": "JWT"}).encode()
    text = part(head) + b"." + part(json.dumps(claims()).encode())
    return (text + b"." + part(sign(text))).decode()


def ask(server: Server, key: str) -> str:
    """What the model says to whoever has this token; raises AuthenticationError."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=2,
        )
    return answer.choices[0].message.content or ""


def is_taken(server: Server, key: str) -> bool:
    """Whether it opens /v1."""
    headers = {"Authorization": f"Bearer {key}"}
    return server.client.get("/v1/models", headers=headers).status_code == 200


def public_pem() -> bytes:
    """What everybody may know of the provider's key."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return OLD.public_key().public_bytes(serialization.Encoding.PEM, kind)


def test_tokens_open_v1_for_their_tenant_and_nothing_that_only_looks_like_one(
    served: Server, provider: Provider
) -> None:
    assert ask(served, token())
    row = "headway_class_requests_total"
    counted = [name for name in served.metrics() if name.startswith(row) and "vip" in name]
    assert counted  # the claim's value was mapped to the tenant of the file, and so to its class

    secret = public_pem()
    refused = {
        "expired": token(exp=int(time.time()) - 60),
        "audience": token(aud="another-service"),
        "issuer": token(iss="https://evil.example/"),
        "of no tenant": token(realm={"team": "red"}),
        "signature": token(NEW, "old"),
        "not known": forged("HS256", lambda text: hmac.new(secret, text, hashlib.sha256).digest()),
        "is signed by a key": forged("none", lambda text: b""),
        "key is not known": "sk-no-token-at-all",
    }
    for reason, key in refused.items():
        with pytest.raises(AuthenticationError) as caught:
            ask(served, key)
        assert caught.value.code == "invalid_api_key"
        assert "ann@" not in caught.value.message
        if reason != "is signed by a key":
            assert reason in caught.value.message
    assert not is_taken(served, token(exp=int(time.time()) - 60))

    # A token ends while it is remembered, with its time and the leeway.
    short = token(exp=int(time.time()) + 4)
    assert is_taken(served, short)
    until(lambda: not is_taken(served, short), 10.0, "it has expired")

    # The provider changes its key: the new one is taken, the old one goes with all that it signed.
    assert not is_taken(served, token(NEW, "new"))
    provider.entries = [entry(OLD, "old"), entry(NEW, "new")]
    until(lambda: is_taken(served, token(NEW, "new")), 30.0, "the new key is known")
    assert is_taken(served, token())
    provider.entries = [entry(NEW, "new")]
    until(lambda: not is_taken(served, token()), 30.0, "the old key is gone")
    assert ask(served, token(NEW, "new"))
    told = served.log.read_text()
    assert "ann@" not in told
    assert token(NEW, "new").split(".")[0] not in told
