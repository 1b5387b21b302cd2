"""Whether a request may use /v1, and whose it is."""

import hashlib
import hmac
from collections.abc import Sequence

from headway.core.base.errors import Unauthorized
from headway.core.tenancy.tenant import Principal, Tenant


class KeyRing:
    """The keys that are let in; holds only their hashes."""

    def __init__(self, keys: Sequence[str], tenants: Sequence[tuple[str, Tenant]] = ()) -> None:
        """`keys` are of nobody in particular, `tenants` of somebody each."""
        everybody = Tenant()
        self._known = tuple(
            (_digest(key), tenant)
            for key, tenant in (*((key, everybody) for key in keys), *tenants)
        )

    def check(self, authorization: Sequence[str]) -> Principal:
        """Whose key it is; everybody's where no key is set.

        Raises Unauthorized unless the one Authorization header has a known bearer token.
        Every key is compared, in constant time each, so that the time taken tells nothing.
        """
        if not self._known:
            return Principal()
        if len(authorization) != 1:
            raise Unauthorized(
                "An API key is needed: send one header 'Authorization: Bearer <key>'."
            )
        scheme, _, token = authorization[0].partition(" ")
        given = _digest(token.strip())
        matches = [tenant for known, tenant in self._known if hmac.compare_digest(given, known)]
        if scheme.lower() != "bearer" or not matches:
            raise Unauthorized("The API key is not known to this server.")
        return Principal(tenant=matches[-1])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
