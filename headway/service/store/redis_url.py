"""URLs of a Redis, and of one that sentinels watch. Imports nothing of a Redis.

`redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/NUMBER` names the sentinels; user,
password and number are of the Redis that they name. The same with `rediss` is over TLS, to both.
"""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

SCHEMES = frozenset({"redis", "rediss", "unix"})
BEHIND = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
SERVICE = re.compile(r"[A-Za-z0-9._-]+")
NUMBER = re.compile(r"[0-9]{0,5}")
OF_SENTINELS = ("sentinel_username", "sentinel_password")  # options of their own
SHAPE = (
    "must be redis://HOST:PORT/NUMBER, rediss://..., unix://PATH or "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"
)

Address = tuple[str, int]


class Sentinels(NamedTuple):
    """Who knows where the Redis is."""

    addresses: tuple[Address, ...]
    service: str  # by which they know it
    own_url: str  # of the Redis, without an address
    username: str | None  # of the sentinels themselves
    password: str | None


def check_redis_url(url: str) -> None:
    """Raises ValueError for what is no URL of a Redis; it never repeats it."""
    try:
        if sentinels_of(url) is None:
            parts = urlsplit(url)
            is_one = parts.scheme in SCHEMES and (parts.port is None or parts.port > 0)
        else:
            is_one = True
    except ValueError:  # of the host or the port
        is_one = False
    if not is_one or not url.isprintable():
        raise ValueError(SHAPE)


def sentinels_of(url: str) -> Sentinels | None:
    """Of such a URL; None for every other one. Raises ValueError, which never repeats it."""
    scheme, _, rest = url.partition("://")
    if scheme not in BEHIND:
        return None
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    account, at, hosts = hosts.rpartition("@")
    service, _, number = path.partition("/")
    if not SERVICE.fullmatch(service) or not NUMBER.fullmatch(number):
        raise ValueError(SHAPE)
    options = dict(parse_qsl(query, keep_blank_values=True))
    username, password = (options.pop(name, None) for name in OF_SENTINELS)
    return Sentinels(
        addresses=tuple(_address(each) for each in hosts.split(",")),
        service=service,
        own_url=f"{BEHIND[scheme]}://{account}{at}/{number}?{urlencode(options)}",
        username=username,
        password=password,
    )


def _address(text: str) -> Address:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or "@" in text or parts.port == 0:
        raise ValueError(SHAPE)
    return parts.hostname, SENTINEL_PORT if parts.port is None else parts.port
