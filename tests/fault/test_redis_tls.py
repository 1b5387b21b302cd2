"""A Redis that speaks TLS: trusted by a named authority or by the system's, and never unasked."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from headway.core.base.errors import StoreUnavailable
from headway.core.tenancy.limits import Claim, Granted, Limits
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from tests.services.servers import Redis, free_port

CLAIM = Claim(id="one", tenant="acme", limits=Limits(requests_per_minute=5))


class Tls:
    """A Redis with a certificate of an authority of its own, which asks for clients' too."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.client = folder / "client.pem"
        server, key = folder / "server.pem", folder / "server.key"
        authority.cert_pem.write_to_path(str(self.ca))
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(server))
        authority.issue_cert("headway@example.com").private_key_and_cert_chain_pem.write_to_path(
            str(self.client)
        )
        port = str(free_port())
        self.redis = Redis(
            folder,
            *("--tls-port", port, "--tls-cert-file", str(server), "--tls-key-file", str(key)),
            *("--tls-ca-cert-file", str(self.ca), "--tls-auth-clients", "yes", "--port", "0"),
        )
        self.address = f"rediss://127.0.0.1:{port}/0"
        self.own = f"ssl_certfile={self.client}&ssl_keyfile={self.client}"
        self.redis.url = f"{self.address}?{self.own}&ssl_ca_certs={self.ca}"


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    """Running until the test ends."""
    found = Tls(tmp_path)
    found.redis.start()
    yield found
    found.redis.stop()


def enter(url: str) -> object:
    """The answer to a first request."""

    async def asked() -> object:
        store = RedisLimits(RedisSettings(url=url, timeout_s=5.0))
        try:
            return await store.enter(CLAIM, time.time())
        finally:
            await store.close()

    return asyncio.run(asked())


def test_an_authority_and_a_certificate_of_our_own_are_named_in_the_url(tls: Tls) -> None:
    assert isinstance(enter(tls.redis.url), Granted)


def test_the_authorities_of_the_system_are_those_of_ssl_cert_file(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{tls.address}?{tls.own}"
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        enter(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca))
    assert isinstance(enter(url), Granted)


def test_who_comes_without_a_certificate_or_without_tls_is_not_let_in(tls: Tls) -> None:
    for url in (
        f"{tls.address}?ssl_ca_certs={tls.ca}",
        tls.address.replace("rediss:", "redis:"),
    ):
        with pytest.raises(StoreUnavailable, match="Redis does not answer"):
            enter(url)
