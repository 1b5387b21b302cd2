"""What tokens cost: prices as an operator writes them, and exact sums of them.

Prices are decimal numbers of the currency a million tokens, so one token costs as many micros
(millionths of the currency) as its price says. A request's cost is the exact sum over its tokens,
rounded once, half a micro up: two requests never differ by the order of summing, and what
a request costs is at most what was reserved for more tokens of it.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

import msgspec

from headway.core.base.errors import InvalidSetting

PLACES = 6  # decimal places of a price; also the digits below a micro that sums are kept with
BELOW_MICRO: int = 10**PLACES
MAX_PRICE = Decimal(1_000_000)


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one model, for a million tokens each."""

    prompt: Decimal
    completion: Decimal
    cached: Decimal | None = None  # prompt tokens that came from the prefix cache; None: as prompt


class PriceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `prices` of the configuration file."""

    currency: str = "USD"  # how it is called; nothing is converted
    models: dict[str, Price] = {}  # by the name of a pool; others are free


class _Exact(NamedTuple):
    """Prices of one token in millionths of a micro."""

    prompt: int
    cached: int
    completion: int


class PriceTable:
    """Costs of requests by model."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        """Prices that `check_prices` has passed."""
        self._exact: dict[str, _Exact] = {}
        self.replace(prices)

    def replace(self, prices: Mapping[str, Price]) -> None:
        """These from now on; they too have been checked."""
        self._exact = {
            name: _Exact(
                prompt=_exact(price.prompt),
                cached=_exact(price.prompt if price.cached is None else price.cached),
                completion=_exact(price.completion),
            )
            for name, price in prices.items()
        }

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """Micros; `cached` of the `prompt` tokens came from the cache. 0 without a price."""
        price = self._exact.get(model)
        if price is None:
            return 0
        exact = (
            (prompt - cached) * price.prompt + cached * price.cached + completion * price.completion
        )
        return (exact + BELOW_MICRO // 2) // BELOW_MICRO


def check_prices(settings: PriceSettings, where: str = "prices") -> None:
    """Raises InvalidSetting that names the field of a price that cannot be counted with."""
    if not settings.currency.strip():
        raise InvalidSetting(f"{where}.currency", "must be a name such as USD, got an empty text")
    for model, price in settings.models.items():
        for field in ("prompt", "completion", "cached"):
            value = getattr(price, field)
            if value is not None:
                _check(value, f"{where}.models.{model}.{field}")
        if price.cached is not None and price.cached > price.prompt:
            raise InvalidSetting(
                f"{where}.models.{model}.cached",
                f"must be at most the price of other prompt tokens, {price.prompt}; got "
                f"{price.cached}",
            )


def _check(value: Decimal, where: str) -> None:
    if not value.is_finite() or not 0 <= value <= MAX_PRICE:
        raise InvalidSetting(where, f"must be from 0 to {MAX_PRICE} a million tokens, got {value}")
    if value != round(value, PLACES):
        raise InvalidSetting(where, f"must have at most {PLACES} decimal places, got {value}")


def _exact(price: Decimal) -> int:
    return int(price.scaleb(PLACES))
