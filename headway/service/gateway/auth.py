"""Whether a request may use /v1."""

import hashlib
import hmac
from collections.abc import Sequence

from headway.core.base.errors import Unauthorized


class KeyRing:
    """The keys that are let in; holds only their hashes."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def check(self, authorization: Sequence[str]) -> None:
        """Raise Unauthorized unless the one Authorization header has a known bearer token.

        Every key is compared, in constant time each, so that the time taken tells nothing.
        """
        if not self._digests:
            return
        if len(authorization) != 1:
            raise Unauthorized(
                "An API key is needed: send one header 'Authorization: Bearer <key>'."
            )
        scheme, _, token = authorization[0].partition(" ")
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized("The API key is not known to this server.")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
