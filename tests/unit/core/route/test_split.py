"""The split of users over arms: exact, stable, and moving only whom it must."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.route.split import draw, pick

USERS = [f"user-{number}" for number in range(2000)]
Weights = Mapping[str, float]


def arms(weights: Weights, split: str = "chat") -> dict[str, str]:
    return {user: pick(split, weights, user) for user in USERS}


@pytest.mark.spec("B3")
@pytest.mark.parametrize(
    "weights",
    [
        {"v1": 100, "v2": 0},
        {"v1": 0, "v2": 100},
        {"v1": 99, "v2": 1},
        {"v1": 50, "v2": 50},
        {"v1": 1, "v2": 1, "v3": 1},
        {"v1": 0.9, "v2": 0.1},
    ],
)
def test_reload_canary_02_shares_are_those_of_the_weights(weights: Weights) -> None:
    counted = Counter(arms(weights).values())
    for arm, weight in weights.items():
        share = weight / sum(weights.values())
        deviation = math.sqrt(len(USERS) * share * (1 - share))
        assert abs(counted[arm] - len(USERS) * share) <= 4 * deviation, (arm, counted)


def test_a_user_s_arm_is_the_same_in_another_process() -> None:
    weights = {"v1": 90.0, "v2": 10.0}
    script = (
        "from headway.core.route.split import pick\n"
        f"print(''.join(pick('chat', {weights}, f'user-{{i}}')[1] for i in range(300)))"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert made.stdout.strip() == "".join(pick("chat", weights, u)[1] for u in USERS[:300])


def test_a_user_s_arm_is_the_same_in_every_release() -> None:
    # Written down once: who was in the preview stays in it.
    assert draw("chat", "preview", "user-1") == 0.5022267786181446
    in_b = [user for user in USERS[:60] if pick("chat", {"a": 9, "b": 1}, user) == "b"]
    assert in_b == [f"user-{number}" for number in (1, 15, 31, 35, 36, 47, 56)]


@pytest.mark.spec("B3")
def test_an_arm_that_grows_only_takes_and_gives_nobody_away() -> None:
    before = arms({"stable": 90, "preview": 9, "next": 1})
    after = arms({"stable": 90, "preview": 20, "next": 1})
    moved = {user for user in USERS if before[user] != after[user]}
    assert moved
    assert {after[user] for user in moved} == {"preview"}


def test_an_arm_that_leaves_moves_only_its_own_users() -> None:
    before = arms({"a": 1, "b": 1, "c": 1})
    after = arms({"a": 1, "b": 1})
    assert all(before[user] == after[user] for user in USERS if before[user] != "c")


def test_two_splits_divide_the_same_users_independently() -> None:
    half = {"a": 1, "b": 1}
    one, other = arms(half, "chat"), arms(half, "code")
    agree = sum(one[user] == other[user] for user in USERS)
    assert abs(agree - 1000) < 4 * math.sqrt(500)


@given(
    weights=st.dictionaries(
        st.sampled_from("abcde"), st.floats(0.001, 1000), min_size=2, max_size=5
    ),
    factor=st.floats(1.001, 100),
    key=st.text(max_size=40),
)
def test_whoever_is_in_an_arm_that_grows_stays_there(
    weights: dict[str, float], factor: float, key: str
) -> None:
    chosen = pick("x", weights, key)
    assert pick("x", {**weights, chosen: weights[chosen] * factor}, key) == chosen
    # And the same shares in another unit are the same arms.
    assert pick("x", {arm: 1024 * weight for arm, weight in weights.items()}, key) == chosen


@given(arm=st.text(max_size=10), key=st.text(max_size=40))
def test_a_draw_is_inside_the_open_interval(arm: str, key: str) -> None:
    assert 0.0 < draw("s", arm, key) < 1.0
