"""Admin keys: what is let in, and how fast one can guess."""

import hashlib

import pytest

from headway.core.base.errors import InvalidSetting, RateLimited, Unauthorized
from headway.service.gateway.admin_keys import (
    MAX_ADDRESSES,
    MAX_WRONG,
    MAX_WRONG_ALL,
    WINDOW_S,
    AdminKeys,
    check_admin_keys,
)

KEY = "an-admin-key-of-the-operator"


class Clock:
    """The time that the test says."""

    now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def wrong(keys: AdminKeys, address: str, times: int = 1) -> None:
    """Send a wrong key."""
    for number in range(times):
        with pytest.raises(Unauthorized):
            keys.check([f"Bearer guess-{number}"], address)


def test_a_right_key_is_named_by_its_digest_and_not_by_itself() -> None:
    keys = AdminKeys(["another-admin-key", KEY], Clock())
    who = keys.check([f"bearer {KEY}"], "10.0.0.1")
    assert who == f"admin:{hashlib.sha256(KEY.encode()).hexdigest()[:8]}"


@pytest.mark.parametrize(
    "headers", [[], [""], [KEY], [f"Basic {KEY}"], [f"Bearer {KEY}"] * 2, [f"Bearer {KEY},{KEY}"]]
)
def test_anything_else_is_refused_without_repeating_it(headers: list[str]) -> None:
    with pytest.raises(Unauthorized) as caught:
        AdminKeys([KEY], Clock()).check(headers, "10.0.0.1")
    assert KEY not in caught.value.message


def test_an_address_that_guesses_has_to_wait_also_with_the_right_key_and_others_do_not() -> None:
    clock = Clock()
    keys = AdminKeys([KEY], clock)
    wrong(keys, "10.0.0.1", MAX_WRONG)
    with pytest.raises(RateLimited) as caught:
        keys.check([f"Bearer {KEY}"], "10.0.0.1")
    assert caught.value.retry_after_s == WINDOW_S
    assert keys.check([f"Bearer {KEY}"], "10.0.0.2")
    clock.now += WINDOW_S
    assert keys.check([f"Bearer {KEY}"], "10.0.0.1")


def test_guesses_from_everywhere_are_bounded_together() -> None:
    clock = Clock()
    keys = AdminKeys([KEY], clock)
    for number in range(MAX_WRONG_ALL):
        wrong(keys, f"10.0.{number}.1")
    with pytest.raises(RateLimited):
        keys.check([f"Bearer {KEY}"], "10.9.9.9")
    clock.now += WINDOW_S
    assert keys.check([f"Bearer {KEY}"], "10.9.9.9")


def test_the_addresses_of_one_ipv6_network_count_as_one() -> None:
    keys = AdminKeys([KEY], Clock())
    for number in range(MAX_WRONG):
        wrong(keys, f"2001:db8:1:2::{number:x}")
    with pytest.raises(RateLimited):
        keys.check([f"Bearer {KEY}"], "2001:db8:1:2::ffff")
    assert keys.check([f"Bearer {KEY}"], "2001:db8:1:3::1")


def test_what_is_remembered_of_guesses_is_bounded() -> None:
    clock = Clock()
    keys = AdminKeys([KEY], clock)
    for number in range(3 * MAX_ADDRESSES):
        wrong(keys, f"host-{number}")
        clock.now += WINDOW_S / MAX_WRONG_ALL * 1.01
    assert len(keys._wrong) <= MAX_ADDRESSES
    assert len(keys._all_wrong) <= MAX_WRONG_ALL


@pytest.mark.parametrize("key", ["", "short", " " + KEY, "ä" * 20, KEY + "\n"])
def test_a_key_that_is_easy_to_guess_or_cannot_be_sent_is_refused_at_start(key: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_admin_keys([key], [])
    assert not key or key not in caught.value.message


def test_an_admin_key_must_not_be_a_clients_key_too() -> None:
    check_admin_keys([KEY], ["sk-other"])
    with pytest.raises(InvalidSetting):
        check_admin_keys([KEY], ["sk-other", KEY])
