"""Tenants and keys in a store, for tests of the gateway."""

import itertools
import random

import msgspec

from headway.core.tenancy import administer
from headway.core.tenancy.account import KEY_RANDOM_BYTES, NewKey, new_key
from headway.core.tenancy.administer import Author, TenantChange
from headway.core.tenancy.book import AccountStore

ME = Author("test", 1000.0)
FAST_LOG_N = 4
_numbers = itertools.count(1)


def fresh_key() -> NewKey:
    """A key that no other test has, with a hash that is quick to check."""
    return new_key(random.Random(next(_numbers)).randbytes(KEY_RANDOM_BYTES), FAST_LOG_N)


def add_tenant(store: AccountStore, name: str, **given: object) -> NewKey:
    """A tenant with a key."""
    change = msgspec.convert(given, TenantChange)
    store.edit(lambda book: administer.create_tenant(book, name, change, ME))
    return add_key(store, name)


def add_key(store: AccountStore, tenant: str, expires: float | None = None) -> NewKey:
    """A key more."""
    made = fresh_key()
    store.edit(lambda book: administer.add_key(book, tenant, made, "", expires, ME))
    return made


def bearer(key: NewKey | str) -> dict[str, str]:
    """The header."""
    return {"Authorization": f"Bearer {key if isinstance(key, str) else key.text}"}
