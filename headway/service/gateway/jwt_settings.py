"""Settings of tokens that an identity provider signs (JWT), in place of keys of our own."""

from urllib.parse import urlsplit

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.tenant import TENANT_NAME

# Asymmetric ones only: a verifier that also takes HS256 can be given its public key as the secret.
ALGORITHMS = ("RS256", "ES256", "EdDSA")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose tokens are taken, and which tenant each is of."""

    jwks: str  # path of a file, or URL, of the provider's public keys
    issuer: str  # must equal the claim `iss`
    audience: str  # must be in the claim `aud`
    algorithms: tuple[str, ...] = ALGORITHMS
    tenant_claim: str = "tenant"  # dots go into objects: "realm.team"
    tenants: dict[str, str] = {}  # the claim's value to a tenant's name; empty: it is the name
    leeway_s: float = 30.0  # that clocks may differ by
    refresh_s: float = 600.0  # between two looks at the URL or the file

    @property
    def is_url(self) -> bool:
        """Whether the keys are fetched."""
        return self.jwks.startswith(("https://", "http://"))


def check(settings: JwtSettings) -> None:
    """Raise InvalidSetting, which names the field, for what cannot be."""
    for field in ("jwks", "issuer", "audience", "tenant_claim"):
        if not getattr(settings, field).strip():
            raise InvalidSetting(f"jwt.{field}", "must not be empty")
    wrong = [name for name in settings.algorithms if name not in ALGORITHMS]
    if wrong or not settings.algorithms:
        raise InvalidSetting(
            "jwt.algorithms", f"must be some of {', '.join(ALGORITHMS)}, got {wrong or 'none'}"
        )
    if settings.is_url:
        _check_url(settings.jwks)
    for value, name in settings.tenants.items():
        if not TENANT_NAME.fullmatch(name):
            raise InvalidSetting(f"jwt.tenants.{value}", f"{name!r} is not a tenant's name")
    if not 0 <= settings.leeway_s <= 300:
        raise InvalidSetting("jwt.leeway_s", f"must be 0 to 300, got {settings.leeway_s:g}")
    if not 10 <= settings.refresh_s <= 86400:
        raise InvalidSetting("jwt.refresh_s", f"must be 10 to 86400, got {settings.refresh_s:g}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # of the host or the port
        raise InvalidSetting("jwt.jwks", "is no URL") from None
    if not parts.hostname or parts.username is not None:
        raise InvalidSetting("jwt.jwks", "must be https://HOST/PATH without a user")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise InvalidSetting(
            "jwt.jwks",
            "must be https:// (http:// only to this machine): who can change the "
            "keys on their way can be any tenant",
        )
