"""Who may use /admin: keys of the operator's own, and a bound on wrong ones."""

import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence

from headway.core.base.errors import InvalidSetting, RateLimited, Unauthorized
from headway.core.base.units import Seconds
from headway.service.gateway.auth import digest

MIN_CHARS = 16
WINDOW_S = 60.0
MAX_WRONG = 10  # from one address within the window
MAX_WRONG_ALL = 100  # from all of them
MAX_ADDRESSES = 1024
NEEDED = "The admin key is missing or wrong: send one header 'Authorization: Bearer <admin key>'."


def check_admin_keys(admin_keys: Sequence[str], other_keys: Sequence[str]) -> None:
    """Raise InvalidSetting for keys that are easy to guess, or that clients have too."""
    for key in admin_keys:
        if len(key) < MIN_CHARS or not (key.isascii() and key.isprintable()) or key != key.strip():
            raise InvalidSetting(
                "--admin-key", f"must have {MIN_CHARS} characters or more, ASCII, no spaces around"
            )
        if key in other_keys:
            raise InvalidSetting("--admin-key", "must not be a key for /v1 as well")


class AdminKeys:
    """Compares keys in constant time; an address that sent too many wrong ones has to wait.

    While it waits, its keys are not compared at all, so that guessing has a bounded speed; the
    others go on, unless wrong ones come from everywhere.
    """

    def __init__(self, keys: Sequence[str], clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._known = tuple(digest(key) for key in keys)
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()  # times, by address
        self._all_wrong: list[float] = []

    def check(self, authorization: Sequence[str], address: str) -> str:
        """Who it is, as the audit log names them: "admin:" and the start of the key's digest.

        Raises Unauthorized, and RateLimited without looking at the key.
        """
        now = self._clock()
        self._forget(now)
        times = self._wrong.get(_site(address), [])
        if len(times) >= MAX_WRONG or len(self._all_wrong) >= MAX_WRONG_ALL:
            oldest = times[0] if len(times) >= MAX_WRONG else self._all_wrong[0]
            raise RateLimited(
                "Too many wrong admin keys were sent; wait.", Seconds(oldest + WINDOW_S - now)
            )
        scheme, _, token = (authorization[0] if len(authorization) == 1 else "").partition(" ")
        given = digest(token.strip())
        matches = [known for known in self._known if hmac.compare_digest(given, known)]
        if scheme.lower() == "bearer" and matches:
            return f"admin:{matches[0].hex()[:8]}"
        if authorization:  # who sends none guesses none
            self._note(_site(address), now)
        raise Unauthorized(NEEDED)

    def _note(self, site: str, now: float) -> None:
        self._wrong.setdefault(site, []).append(now)
        self._wrong.move_to_end(site)
        self._all_wrong.append(now)
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def _forget(self, now: float) -> None:
        since = now - WINDOW_S
        self._all_wrong = [time for time in self._all_wrong if time > since]
        for site in [site for site, times in self._wrong.items() if times[-1] <= since]:
            del self._wrong[site]
        for site, times in self._wrong.items():
            if times[0] <= since:
                self._wrong[site] = [time for time in times if time > since]


def _site(address: str) -> str:
    """An IPv4 address, or the network of an IPv6 one: who has one has 2^64 of them."""
    return ":".join(address.split(":")[:4]) if ":" in address else address
