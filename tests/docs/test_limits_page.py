"""The page on limits of tenants says what is so."""

import re
from pathlib import Path

from headway.app.settings import merge
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.metrics import LIMIT_CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "gateway-limits.md"


def test_its_configuration_is_understood_as_it_stands(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    file = tmp_path / "headway.yaml"
    file.write_text(found[1])
    settings = merge({}, {}, str(file))
    assert settings.rate_limits.default == Limits(requests_per_minute=60)
    assert settings.rate_limits.tenants["acme"].monthly_budget == 500 * 10**6
    assert settings.prices.currency == "EUR"


def test_it_names_every_metric_of_limits() -> None:
    text = PAGE.read_text()
    assert [each.name for each in LIMIT_CATALOGUE if each.name not in text] == []
