"""Settings of the server as flags of other commands too."""

import argparse
import os
from collections.abc import Sequence

from headway.app.options import BY_KEY, OPTIONS, Option
from headway.app.settings import Settings, default_of, merge

# Of the options outside of the engine's section, those that change what it computes with.
COMPUTING = ("model", "cache_dir", "threads")


def add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Declare one setting as a flag; what is not given stays out of the parsed arguments."""
    default = option.default or str(default_of(option))
    unit = f" {option.unit}" if option.unit and not option.default else ""
    text = f"{option.help} (default: {default}{unit}) [{option.variable}]".replace("%", "%%")
    flag = f"--{option.name}"
    if option.is_switch:
        group.add_argument(
            flag,
            dest=option.key,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=text,
        )
    else:
        group.add_argument(
            flag,
            dest=option.key,
            default=argparse.SUPPRESS,
            nargs="+" if option.takes_many else None,
            metavar=option.name.rpartition("-")[2].upper(),
            help=text,
        )


def add_engine_options(
    group: argparse._ActionsContainer, others: Sequence[str] = COMPUTING
) -> None:
    """All settings of the engine, by the names that `headway serve` has for them."""
    for option in OPTIONS:
        if option.section == "engine" or option.key in others:
            add_option(group, option)


def engine_settings(
    args: argparse.Namespace, defaults: dict[str, object] | None = None
) -> Settings:
    """The settings tree of the flags, over the environment; raises InvalidSetting.

    `defaults` hold where a flag is not given, before the environment does.
    """
    given = {
        key: value
        for key, value in vars(args).items()
        if key in BY_KEY and (BY_KEY[key].section == "engine" or key in COMPUTING)
    }
    return merge((defaults or {}) | given, os.environ, None)
