"""Costs to the micro, whatever the price's digits."""

from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.price import Price, PriceSettings, PriceTable, check_prices

PRICES = st.decimals(0, 1000, places=6)
COUNTS = st.integers(0, 10**7)


def price(prompt: str, completion: str, cached: str | None = None) -> Price:
    return Price(
        prompt=Decimal(prompt),
        completion=Decimal(completion),
        cached=None if cached is None else Decimal(cached),
    )


def test_a_token_costs_as_many_micros_as_a_million_cost_units() -> None:
    table = PriceTable({"m": price("3", "15", "0.3")})
    assert table.cost("m", 1_000_000, 0, 0) == 3_000_000
    assert table.cost("m", 1000, 400, 10) == 600 * 3 + 120 + 150
    assert table.cost("other", 1000, 0, 1000) == 0


def test_other_prices_hold_from_when_they_are_set() -> None:
    table = PriceTable({"m": price("3", "15")})
    table.replace({"n": price("1", "2")})
    assert (table.cost("m", 10, 0, 0), table.cost("n", 10, 0, 0)) == (0, 10)


def test_the_sum_is_rounded_once_and_half_a_micro_up() -> None:
    table = PriceTable({"m": price("0.15", "0.25")})
    assert table.cost("m", 3, 0, 0) == 0  # 0.45
    assert table.cost("m", 0, 0, 2) == 1  # 0.5
    assert table.cost("m", 3, 0, 1) == 1  # 0.45 + 0.25
    assert table.cost("m", 10, 5, 0) == 2, "cached tokens cost as others where no price is set"


@given(PRICES, PRICES, COUNTS, COUNTS)
def test_costs_are_exact_and_never_fall_with_more_tokens(
    prompt: Decimal, completion: Decimal, num_prompt: int, num_completion: int
) -> None:
    table = PriceTable({"m": Price(prompt=prompt, completion=completion)})
    exact = Fraction(prompt) * num_prompt + Fraction(completion) * num_completion
    cost = table.cost("m", num_prompt, 0, num_completion)
    assert Fraction(-1, 2) < cost - exact <= Fraction(1, 2)
    assert table.cost("m", num_prompt + 1, 0, num_completion) >= cost


def test_prices_of_a_file_are_read_as_they_are_written() -> None:
    raw = {"currency": "EUR", "models": {"m": {"prompt": 0.1, "completion": "0.7", "cached": 0}}}
    settings = msgspec.convert(raw, PriceSettings)
    check_prices(settings)
    assert settings.models["m"] == price("0.1", "0.7", "0")


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (price("-1", "1"), "prices.models.m.prompt"),
        (price("1", "NaN"), "prices.models.m.completion"),
        (price("1", "0.0000001"), "prices.models.m.completion"),
        (price("1", "1", "2"), "prices.models.m.cached"),
        (price("1", "1000001"), "prices.models.m.completion"),
    ],
)
def test_a_price_that_cannot_be_counted_with_is_refused_by_name(broken: Price, field: str) -> None:
    with pytest.raises(InvalidSetting, match=field):
        check_prices(PriceSettings(models={"m": broken}))


def test_a_currency_needs_a_name() -> None:
    with pytest.raises(InvalidSetting, match=r"prices\.currency"):
        check_prices(PriceSettings(currency=" "))
