"""Checks tokens of an identity provider. Imported only where they are configured: needs PyJWT."""

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
import msgspec

from headway.core.base.errors import InvalidSetting, StoreUnavailable, Unauthorized
from headway.core.base.units import Seconds
from headway.core.tenancy.tenant import Principal
from headway.service.gateway.auth import FindTenant
from headway.service.gateway.jwt_settings import JwtSettings, check

log = logging.getLogger(__name__)

TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
MAX_TOKEN = 16 * 1024
MAX_JWKS_BYTES = 1024 * 1024
FETCH_S = 5.0
PLAIN = {"Accept-Encoding": "identity"}  # what is small on its way stays small here
MIN_PAUSE_S = 1.0  # between two fetches, also while no key is known
ASK_AGAIN_S = 30.0  # at the earliest, for a key id that is not known
MAX_REMEMBERED = 4096
RETRY = Seconds(5.0)
ASYMMETRIC = frozenset({"RSA", "EC", "OKP"})
REFUSED = "The token is not good here: {}."


class _Checked(NamedTuple):
    """What a token said that had a good signature."""

    tenant: str
    key_id: str
    expires: float


class JwtTokens:
    """A KeySource of signed tokens; `load` before the first check, `follow` from then on."""

    is_empty = False  # who configures it wants nobody in without

    def __init__(
        self,
        settings: JwtSettings,
        find_tenant: FindTenant,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        check(settings)
        self._settings = settings
        self._find_tenant = find_tenant
        self._wall_clock = wall_clock
        self._keys: tuple[jwt.PyJWK, ...] = ()
        self._checked: OrderedDict[bytes, _Checked] = OrderedDict()
        self._fetched = -ASK_AGAIN_S  # when it was last tried, in monotonic seconds
        self._fetching = asyncio.Lock()

    async def load(self) -> None:
        """Read the keys; raises InvalidSetting for a file that holds none.

        A provider that does not answer now is asked again later: tokens wait for it, keys of
        our own do not.
        """
        if not self._settings.is_url:
            self._take(await asyncio.to_thread(self._read_file))
        else:
            await self._fetch()

    async def follow(self) -> None:
        """Fetch or read the keys again and again; to be cancelled."""
        while True:
            await asyncio.sleep(self._settings.refresh_s if self._keys else ASK_AGAIN_S)
            await self._fetch()

    async def check(self, token: str) -> Principal | None:
        """Whose token it is; None for what has not the form of one.

        Raises Unauthorized, and StoreUnavailable while the provider's keys are not known.
        """
        if len(token) > MAX_TOKEN or not TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode("ascii")).digest()
        checked = self._checked.get(digest)
        if checked is None:
            checked = self._verified(token, await self._key_of(token))
            self._checked[digest] = checked
            if len(self._checked) > MAX_REMEMBERED:
                self._checked.popitem(last=False)
        if checked.expires + self._settings.leeway_s <= self._wall_clock():
            raise Unauthorized(REFUSED.format("it has expired"))
        tenant = self._find_tenant(checked.tenant)
        if tenant is None:
            raise Unauthorized(REFUSED.format("its tenant is not known, or disabled"))
        return Principal(tenant=tenant, key_id=checked.key_id)

    async def _key_of(self, token: str) -> jwt.PyJWK:
        """The provider's key that the token names."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise Unauthorized(REFUSED.format("it cannot be read")) from None
        found = self._find(header)
        if found is None:  # the provider may have a new one
            await self._fetch()
            found = self._find(header)
        if not self._keys:
            raise StoreUnavailable("the keys of the identity provider are not known now", RETRY)
        if found is None:
            raise Unauthorized(REFUSED.format("it is signed by a key that is not known"))
        return found

    def _find(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        fit = [each for each in self._keys if each.algorithm_name == header.get("alg")]
        if "kid" in header:
            fit = [each for each in fit if each.key_id == header["kid"]]
        return fit[0] if len(fit) == 1 else None

    def _verified(self, token: str, key: jwt.PyJWK) -> _Checked:
        settings = self._settings
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Unauthorized(REFUSED.format(_why(error))) from None
        value = _claim(claims, settings.tenant_claim)
        name = settings.tenants.get(value) if settings.tenants else value
        if not name:
            raise Unauthorized(REFUSED.format("it is of no tenant"))
        # The subject may be a person's address: the ledger tells them apart without it.
        subject = f"{settings.issuer}\n{claims.get('sub', '')}".encode()
        return _Checked(
            name, f"jwt-{hashlib.sha256(subject).hexdigest()[:16]}", float(claims["exp"])
        )

    async def _fetch(self) -> None:
        """Ask the provider, or read the file, unless that was done a moment ago; what is known
        stays.
        """
        async with self._fetching:
            # Never longer than between two regular fetches, which this would skip.
            pause = min(ASK_AGAIN_S, self._settings.refresh_s / 2) if self._keys else MIN_PAUSE_S
            if time.monotonic() - self._fetched < pause:
                return
            self._fetched = time.monotonic()
            try:
                read = self._body() if self._settings.is_url else asyncio.to_thread(self._read_file)
                self._take(await read)
            except (httpx.HTTPError, httpx.InvalidURL, InvalidSetting) as error:
                log.warning("jwks_not_fetched", extra={"reason": str(error) or repr(error)})

    async def _body(self) -> bytes:
        body = bytearray()
        async with (
            httpx.AsyncClient(timeout=FETCH_S, follow_redirects=False, trust_env=True) as client,
            client.stream("GET", self._settings.jwks, headers=PLAIN) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise httpx.HTTPError(f"status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise httpx.HTTPError("is compressed, which was not asked for")
            async for part in answer.aiter_raw():
                body += part
                if len(body) > MAX_JWKS_BYTES:
                    raise httpx.HTTPError(f"more than {MAX_JWKS_BYTES} bytes")
        return bytes(body)

    def _read_file(self) -> bytes:
        try:
            return Path(self._settings.jwks).read_bytes()
        except (OSError, ValueError) as error:  # of a name that no file can have
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidSetting("jwt.jwks", f"cannot be read: {reason}") from None

    def _take(self, body: bytes) -> None:
        keys = _read_keys(body, frozenset(self._settings.algorithms))
        if not keys:
            raise InvalidSetting(
                "jwt.jwks", f"has no key for {', '.join(self._settings.algorithms)}"
            )
        self._keys = keys
        self._checked.clear()  # a key that is gone takes its tokens along


def _read_keys(body: bytes, algorithms: frozenset[str]) -> tuple[jwt.PyJWK, ...]:
    """The public keys of a JWKS that we can use; those of other kinds are passed over."""
    try:
        entries = msgspec.json.decode(body, type=_Jwks).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidSetting("jwt.jwks", "is not a JSON object with a list `keys`") from None
    found = []
    for entry in entries:
        if entry.get("kty") not in ASYMMETRIC or entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in algorithms:
            found.append(key)
    return tuple(found)


class _Jwks(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[dict[str, Any]]


def _claim(claims: Mapping[str, Any], path: str) -> str:
    """The text at a path into the claims; "" if there is none."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def _why(error: jwt.InvalidTokenError) -> str:
    """In words of our own: PyJWT's repeat what the token says."""
    for kind, text in _REASONS.items():
        if isinstance(error, kind):
            return text
    return "it is not valid"


_REASONS: Mapping[type[jwt.InvalidTokenError], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "its audience is another",
    jwt.InvalidIssuerError: "its issuer is another",
    jwt.MissingRequiredClaimError: "it lacks one of the claims exp, iss and aud",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.InvalidAlgorithmError: "its algorithm is not allowed",
}
