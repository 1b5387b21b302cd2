"""`headway config check`: is this configuration one that `headway serve` could start with?"""

import argparse
import asyncio
import os
from functools import partial
from pathlib import Path

from headway.app.document import read_document
from headway.app.entries import MODELS
from headway.app.fleet import served_names
from headway.app.limits import check_installed
from headway.app.sections import check_against, keys_of, with_line
from headway.app.settings import Settings, merge_models
from headway.app.stores import tokens_of
from headway.app.upstreams import open_upstreams
from headway.core.base.errors import InvalidSetting
from headway.core.engine.settings import check_numbers
from headway.core.route.table import PoolFacts
from headway.core.tenancy.limits import UNLIMITED
from headway.service.gateway.admin_keys import check_admin_keys
from headway.service.gateway.lifecycle import check_admin_listen
from headway.service.loaders.builtin import BUILTIN
from headway.service.store.ledger_settings import check as check_ledger
from headway.service.store.settings import url_of
from headway.service.upstream.settings import facts_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its sub-commands."""
    commands = parser.add_subparsers(dest="what", required=True)
    check = commands.add_parser("check", help="read it as headway serve would, and start nothing")
    check.add_argument(
        "file", nargs="?", help="TOML or YAML file (default: HEADWAY_CONFIG) [HEADWAY_CONFIG]"
    )


def run(chosen: argparse.Namespace) -> int:
    """Check it: 0 with a summary; raises StartError, which names file, line and reason.

    The environment counts as for `headway serve`. Model files are not opened, and nobody is asked;
    keys and certificates of upstreams, and an identity provider's key set, are read.
    """
    models = merge_models({}, os.environ, chosen.file)
    settings = models[0]
    pools = [
        PoolFacts(names=expected_names(each)) if each.upstream is None else facts_of(each.upstream)
        for each in models
    ]
    file, keys = settings.file, settings.gateway.api_key
    check_against(pools, settings.routes, settings.prices, file, settings.tenants)
    of_tenants = with_line(file, lambda: keys_of(settings.tenants))
    others = [*keys, *(key for key, _ in of_tenants)]
    with_line(file, lambda: check_admin_keys(settings.gateway.admin_key, others))
    with_line(file, lambda: open_upstreams(models))
    with_line(file, lambda: _check_server(settings))
    for index, each in enumerate(models):
        with_line(file, partial(_check_engine, each, index, file))
    print(summary(settings.file, models))
    return 0


def _check_server(settings: Settings) -> None:
    """What a start finds only when it opens its stores; raises InvalidSetting."""
    check_admin_listen(settings.gateway)
    url_of(settings.store)
    check_ledger(settings.ledger)
    check_installed(settings.rate_limits)
    if settings.jwt is not None:
        tokens = tokens_of(settings.jwt, lambda _: None)
        if not settings.jwt.is_url:  # nobody is asked
            asyncio.run(tokens.load())


def _check_engine(settings: Settings, index: int, file: str) -> None:
    """What can be said of a model's engine without its file; raises InvalidSetting."""
    try:
        check_numbers(settings.engine)
    except InvalidSetting as error:
        key = str(error.param).removeprefix("--").replace("-", "_")
        entries = read_document(Path(file)).content.get(MODELS) if file else None
        own = entries[index] if isinstance(entries, list) and index < len(entries) else None
        if not isinstance(own, dict) or key not in own:
            raise
        problem = error.message.removeprefix(f"{error.param}: ")
        raise InvalidSetting(f"{MODELS}[{index}].{key}", problem) from None


def expected_names(settings: Settings) -> tuple[str, ...]:
    """What a model will be called, as far as that is known without its file."""
    if settings.upstream is not None:
        return settings.upstream.names
    if settings.served_model_name:
        return settings.served_model_name
    return served_names(settings, settings.model or BUILTIN.file_name)


def summary(file: str, models: tuple[Settings, ...]) -> str:
    """What was understood, a line each."""
    settings = models[0]
    lines = [f"{file or 'the environment alone'}: fine"]
    for each in models:
        by = each.model or "(built in)"
        if each.upstream is not None:
            by = f"at {', '.join(each.upstream.urls)} ({each.upstream.kind})"
        lines.append(f"  model {by}: {', '.join(expected_names(each))}")
    if settings.routes is not None:
        names = [route.name for route in settings.routes.names]
        names += [settings.routes.auto.name] if settings.routes.auto is not None else []
        lines.append(f"  routes: {', '.join(names) or 'none of their own'}")
    tenants = [entry.name for entry in settings.tenants]
    if tenants or settings.gateway.tenant:
        lines.append(
            f"  tenants: {len(tenants)} in the file, {len(settings.gateway.tenant)} by --tenant"
        )
    rates = settings.rate_limits
    if rates.tenants or rates.default != UNLIMITED:
        others = "none of their own" if rates.default == UNLIMITED else "those of `default`"
        where = "this process" if rates.redis_url is None else "Redis"
        lines.append(
            f"  limits of {len(rates.tenants)} tenants, others have {others}; counted in {where}"
        )
    if settings.prices.models:
        lines.append(f"  prices in {settings.prices.currency}: {', '.join(settings.prices.models)}")
    return "\n".join(lines)
