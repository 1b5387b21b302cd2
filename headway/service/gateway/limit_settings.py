"""The section `rate_limits` of the configuration file."""

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.limits import UNLIMITED, Limits, check_limits
from headway.core.tenancy.tenant import TENANT_NAME, Tenant
from headway.service.store.redis_url import check_redis_url

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.05, 60.0


class RateLimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tenants may use, and where that is counted."""

    redis_url: str | None = None  # None: in this process's memory
    redis_prefix: str = "headway"  # of every key
    redis_timeout: float = 1.0  # s; of one try of a call
    outage_share: float | None = None  # of each limit, while Redis is away; None: by the gateways
    reserve_tokens: int = 1024  # for each choice of a request that gives no max_tokens
    metrics_by_tenant: bool = False  # refusals with the tenant's name as a label
    default: Limits = UNLIMITED  # of whoever has none of their own
    tenants: dict[str, Limits] = {}  # by name


def check_rate_limits(settings: RateLimitSettings, where: str = "rate_limits") -> None:
    """Raises InvalidSetting that names the field."""
    if settings.redis_url is not None:
        try:
            check_redis_url(settings.redis_url)
        except ValueError as error:
            raise InvalidSetting(f"{where}.redis_url", str(error)) from None
    if not MIN_TIMEOUT_S <= settings.redis_timeout <= MAX_TIMEOUT_S:
        raise InvalidSetting(
            f"{where}.redis_timeout",
            f"must be {MIN_TIMEOUT_S} to {MAX_TIMEOUT_S} seconds, got {settings.redis_timeout}",
        )
    share = settings.outage_share
    if share is not None and not 0 < share <= 1:
        raise InvalidSetting(f"{where}.outage_share", f"must be above 0 and at most 1, got {share}")
    if settings.reserve_tokens < 1:
        raise InvalidSetting(
            f"{where}.reserve_tokens", f"must be at least 1, got {settings.reserve_tokens}"
        )
    check_limits(settings.default, f"{where}.default")
    for name, limits in settings.tenants.items():
        if not TENANT_NAME.fullmatch(name):
            raise InvalidSetting(
                f"{where}.tenants", f"must have names of tenants as keys, got {name[:80]!r}"
            )
        check_limits(limits, f"{where}.tenants.{name}")


class LimitTable:
    """The settings as they are now; a reload replaces them, and what was counted stays."""

    def __init__(self, settings: RateLimitSettings) -> None:
        """Settings that `check_rate_limits` has passed."""
        self.settings = settings

    def replace(self, settings: RateLimitSettings) -> None:
        """These from now on, for requests that come; where things are counted stays as it was."""
        self.settings = settings

    def of(self, tenant: Tenant) -> Limits:
        """A tenant's own limits, else those set for its name, else those for everybody else."""
        if tenant.limits != UNLIMITED:
            return tenant.limits
        return self.settings.tenants.get(tenant.name, self.settings.default)
