"""Keys: their form, their hash, and when one is good."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import InvalidRequest
from headway.core.tenancy.account import (
    KEY_RANDOM_BYTES,
    MAX_MODELS,
    SECRET_BYTES,
    KeyRecord,
    TenantRecord,
    checked_label,
    checked_tenant,
    fault_of,
    hashed,
    matches,
    new_key,
    read_key,
)
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import SloClass, Tenant

TENANT = TenantRecord(name="acme", created=0.0, changed=0.0)
KEY = KeyRecord(id="a" * 16, tenant="acme", hash="", created=0.0)


def replaced(**changes: object) -> KeyRecord:
    """KEY with some fields otherwise."""
    return msgspec.structs.replace(KEY, **changes)


def test_a_new_key_has_its_id_and_a_secret_of_at_least_192_bits_in_it() -> None:
    made = new_key(bytes(range(KEY_RANDOM_BYTES)))
    presented = read_key(made.text)
    assert presented is not None
    assert presented.id == made.id
    assert SECRET_BYTES * 8 >= 192
    assert len(presented.secret) * 5 == SECRET_BYTES * 8
    assert presented.secret not in made.hash


def test_the_hash_is_of_the_secret_alone_and_salted() -> None:
    one, other = new_key(bytes(KEY_RANDOM_BYTES)), new_key(bytes([1]) * KEY_RANDOM_BYTES)
    secret = one.text.rpartition("-")[2]
    assert matches(secret, one.hash)
    assert not matches(secret, other.hash)
    assert hashed(secret, b"x" * 16, 4) != hashed(secret, b"y" * 16, 4)


def test_a_hash_says_its_own_parameters_so_that_old_ones_go_on() -> None:
    old = hashed("secret", b"salt" * 4, 4)
    assert old.startswith("scrypt$4$8$1$")
    assert matches("secret", old)
    assert not matches("Secret", old)


@pytest.mark.parametrize(
    "stored", ["", "scrypt$4$8$1$c2FsdA==", "argon2$4$8$1$a$b", "scrypt$x$8$1$a$b"]
)
def test_a_hash_of_another_form_is_not_taken_for_a_wrong_secret(stored: str) -> None:
    with pytest.raises(ValueError, match="hash"):
        matches("secret", stored)


@given(st.text(max_size=80))
def test_whatever_is_not_a_key_is_none(text: str) -> None:
    assert read_key(text) is None


@pytest.mark.parametrize("change", [str.upper, str.strip, lambda k: k + "\n", lambda k: " " + k])
def test_a_key_is_taken_only_as_it_was_shown(change: object) -> None:
    text = new_key(bytes(KEY_RANDOM_BYTES)).text
    changed = change(text)  # type: ignore[operator]  # one of the functions above
    assert (read_key(changed) is None) == (changed != text)


@pytest.mark.parametrize(
    ("key", "tenant", "now", "fault"),
    [
        (KEY, TENANT, 1.0, None),
        (replaced(expires=10.0), TENANT, 9.99, None),
        (replaced(expires=10.0), TENANT, 10.0, "expired"),
        (replaced(revoked=5.0), TENANT, 6.0, "revoked"),
        (KEY, None, 1.0, "no tenant"),
        (KEY, msgspec.structs.replace(TENANT, is_disabled=True), 1.0, "disabled"),
    ],
)
def test_a_key_is_good_until_it_is_revoked_expired_or_its_tenant_is_disabled(
    key: KeyRecord, tenant: TenantRecord | None, now: float, fault: str | None
) -> None:
    found = fault_of(key, tenant, now)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_a_record_becomes_the_tenant_that_the_gateway_knows() -> None:
    limits = Limits(requests_per_minute=3)
    record = msgspec.structs.replace(
        TENANT, slo_class=SloClass.VIP, weight=2.0, limits=limits, models=("m",), may_degrade=False
    )
    assert record.tenant() == Tenant(
        name="acme",
        slo_class=SloClass.VIP,
        weight=2.0,
        limits=limits,
        models=("m",),
        may_degrade=False,
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"name": "a\n"}, "name"),
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"limits": Limits(tokens_per_minute=-1)}, "limits.tokens_per_minute"),
        ({"limits": Limits(monthly_budget=2**60)}, "limits.monthly_budget"),
        ({"models": ("",)}, "models"),
        ({"models": ("m",) * (MAX_MODELS + 1)}, "models"),
    ],
)
def test_a_tenant_that_cannot_be_is_refused_by_field(
    changes: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_tenant(msgspec.structs.replace(TENANT, **changes))
    assert caught.value.param == param


@pytest.mark.parametrize("label", ["a" * 129, "two\nlines", "\x1b[31m"])
def test_a_label_that_would_break_a_line_is_refused(label: str) -> None:
    with pytest.raises(InvalidRequest):
        checked_label(label)
    assert checked_label("CI, für alle") == "CI, für alle"
