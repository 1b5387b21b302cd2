"""Settings of the server as flags of any command, and back to a command line."""

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from headway.app.option import Option
from headway.app.options import OPTIONS
from headway.app.settings import default_of


def add_option(
    group: argparse._ActionsContainer, option: Option, *, is_repeated: bool = False
) -> None:
    """Declare one setting as a flag; what is not given stays out of the parsed arguments.

    is_repeated  it may be given again, and becomes a list
    """
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
            action="append" if is_repeated else "store",
            default=argparse.SUPPRESS,
            nargs="+" if option.takes_many else None,
            metavar=option.name.rpartition("-")[2].upper(),
            help=text,
        )


def flags_of(values: Mapping[str, Any], left_out: Collection[str] = ()) -> list[str]:
    """Those of the options of `headway serve` that have a value, as its command line has them."""
    flags: list[str] = []
    for option in OPTIONS:
        if option.key not in values or option.key in left_out:
            continue
        value = values[option.key]
        if option.is_switch:
            flags.append(f"--{'' if value else 'no-'}{option.name}")
        elif option.takes_many:
            flags += [f"--{option.name}", *value]
        else:
            flags += [f"--{option.name}", str(value)]
    return flags
