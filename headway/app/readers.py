"""Readers of options: text, or a file's value, to the value of a field.

Each raises ValueError whose message begins with "must be" and completes "<where>: ...".
"""

import math
import re
from collections.abc import Callable

from headway.core.tenancy.tenant import read_targets, read_tenants
from headway.service.store.redis_url import check_redis_url

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?", re.IGNORECASE)
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
DATABASE = re.compile(r"sqlite:///(?!:memory:$).+|(postgres|postgresql|postgresql\+psycopg)://.*")
TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})
MOST = 2**53  # what every part that a number is handed to can count with


def text(value: object) -> str:
    """A non-empty string of what can be printed."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be text, got {value!r}")
    if not value.isprintable():
        raise ValueError(f"must be text without line ends and control characters, got {value!r}")
    return value


def texts(value: object) -> tuple[str, ...]:
    """A list of strings; text is split at commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"must be a list of texts, got {value!r}")
    return tuple(text(item).strip() for item in items)


def secrets(value: object) -> tuple[str, ...]:
    """The same for what stands in a header, and must not be repeated in a message."""
    try:
        found = texts(value)
    except ValueError:
        raise ValueError(
            "must be a list of texts that are not empty and have no control characters"
        ) from None
    if not all(each.isascii() for each in found):
        raise ValueError("must be a list of texts of ASCII characters, as headers can carry")
    return found


def tenants(value: object) -> tuple[str, ...]:
    """Tenants with their keys; see core.tenancy.tenant.read_tenants."""
    items = secrets(value)
    read_tenants(items)
    return items


def targets(value: object) -> tuple[str, ...]:
    """Targets a class; see core.tenancy.tenant.read_targets."""
    items = texts(value)
    read_targets(items)
    return items


def database_url(value: object) -> str:
    """Of SQLite or PostgreSQL; what follows the scheme is checked when it is opened."""
    if not isinstance(value, str) or not DATABASE.fullmatch(value) or not value.isprintable():
        raise ValueError("must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/NAME")
    return value


def redis_url(value: object) -> str:
    """Of a Redis; it may hold a password, so that no message repeats it."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    check_redis_url(value)
    return value


def address(value: object) -> str:
    """HOST:PORT, with an IPv6 host in brackets."""
    found = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[2]) > 65535:
        raise ValueError(f"must be HOST:PORT such as 127.0.0.1:8001, got {value!r}")
    return str(value)


def share(value: object) -> float:
    """A part of a whole: above 0, at most 1."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not 0.0 < number <= 1.0:
        raise ValueError(f"must be above 0 and at most 1, got {value!r}")
    return number


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    """A reader of whole numbers from low to high; none has more than 53 bits."""

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, got {value!r}")
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"must be {bounds}, got {value}")
        if high is None and value > MOST:
            raise ValueError(f"must be at most {MOST}, got {value}")
        return value

    return read


def seconds(low: float) -> Callable[[object], float]:
    """A reader of finite numbers of seconds from low up."""

    def read(value: object) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise ValueError(f"must be a number of seconds, got {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number of seconds, got {value!r}")
        if not low <= value <= 1e9:
            raise ValueError(f"must be a number of seconds of at least {low:g}, got {value}")
        return float(value)

    return read


def size(value: object) -> int:
    """Bytes, plain or as 512M, 2G, 1.5GiB (powers of 1024)."""
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        value = int(float(match[1]) * 1024 ** POWERS[match[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"must be a size such as 512M, 2G or a number of bytes, got {value!r}")
    return value


def size_or_none(value: object) -> int:
    """The same, or 0 for nothing at all."""
    is_zero = value == 0 if not isinstance(value, str) else value.strip() == "0"
    return 0 if is_zero and not isinstance(value, bool) else size(value)


def switch(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise ValueError(f"must be true or false, got {value!r}")


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader of one of the given words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}; got {value!r}")
        return value

    return read


def context(value: object) -> int | str:
    """A number of tokens, or "auto"."""
    if value == "auto":
        return "auto"
    try:
        return whole(2)(value)
    except ValueError as error:
        raise ValueError(f"must be 'auto' or a number of tokens: {error}") from None
