"""Whether a request may use /v1, and whose it is."""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.base.errors import Unauthorized
from headway.core.tenancy.tenant import Principal, Tenant

NEEDED = "An API key is needed: send one header 'Authorization: Bearer <key>'."
UNKNOWN = "The API key is not known to this server."


FindTenant = Callable[[str], Tenant | None]  # None: no such tenant, or it is disabled


class KeySource(Protocol):
    """Keys, or tokens, of one kind."""

    @property
    def is_empty(self) -> bool:
        """Whether none was ever set up."""
        ...

    async def check(self, token: str) -> Principal | None:
        """Whose it is; None if it has not the form of this kind. Raises Unauthorized."""
        ...


class TokenSource(KeySource, Protocol):
    """One whose keys are read from elsewhere."""

    async def load(self) -> None:
        """Before the first check; raises InvalidSetting."""
        ...

    async def follow(self) -> None:
        """Keep up with changes, for ever."""
        ...


class KeyRing:
    """The keys that are let in; holds only hashes of those of the settings."""

    def __init__(
        self,
        keys: Sequence[str],
        tenants: Sequence[tuple[str, Tenant]] = (),
        sources: Sequence[KeySource] = (),
        *,
        is_closed: bool = False,
    ) -> None:
        """`keys` are of nobody in particular, `tenants` of somebody each.

        sources    asked in order for what is not a key of the settings
        is_closed  a key is needed also while there is none
        """
        self._known: tuple[tuple[bytes, Principal], ...] = ()
        self._sources = tuple(sources)
        self._is_closed = is_closed
        self.replace(keys, tenants)

    def replace(self, keys: Sequence[str], tenants: Sequence[tuple[str, Tenant]]) -> None:
        """These keys of the settings from now on.

        Where a key was needed once it stays needed, also if all are taken away.
        """
        everybody = Tenant()
        self._known = tuple(
            (digest(key), Principal(tenant=tenant))
            for key, tenant in (*((key, everybody) for key in keys), *tenants)
        )
        self._is_closed = self._is_closed or bool(self._known)

    @property
    def is_open(self) -> bool:
        """Whether everybody is let in: nobody ever set up a key."""
        return not self._is_closed and all(source.is_empty for source in self._sources)

    async def check(self, authorization: Sequence[str]) -> Principal:
        """Whose key it is; everybody's where none was ever set up.

        Raises Unauthorized unless the one Authorization header has a known bearer token.
        Every key of the settings is compared, in constant time each, so that the time taken
        tells nothing.
        """
        if self.is_open:
            return Principal()
        if len(authorization) != 1:
            raise Unauthorized(NEEDED)
        scheme, _, rest = authorization[0].partition(" ")
        token = rest.strip()
        given = digest(token)
        matches = [whose for known, whose in self._known if hmac.compare_digest(given, known)]
        if scheme.lower() != "bearer":
            raise Unauthorized(UNKNOWN)
        if matches:
            return matches[-1]
        for source in self._sources:
            principal = await source.check(token)
            if principal is not None:
                return principal
        raise Unauthorized(UNKNOWN)


def digest(key: str) -> bytes:
    """Of a key, so that keys of any length are compared in constant time."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
