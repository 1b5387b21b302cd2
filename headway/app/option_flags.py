"""A setting of the server as a flag of any command."""

import argparse

from headway.app.options import Option
from headway.app.settings import default_of


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
