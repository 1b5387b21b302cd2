"""`headway config check`: is this configuration one that `headway serve` could start with?"""

import argparse
import os

from headway.app.settings import Settings, merge_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its sub-commands."""
    commands = parser.add_subparsers(dest="what", required=True)
    check = commands.add_parser("check", help="read it as headway serve would, and start nothing")
    check.add_argument(
        "file", nargs="?", help="TOML or YAML file (default: HEADWAY_CONFIG) [HEADWAY_CONFIG]"
    )


def run(chosen: argparse.Namespace) -> int:
    """Check it: 0 with a summary; raises StartError, which names file, line and reason.

    The environment counts as for `headway serve`. Model files are not opened.
    """
    models = merge_models({}, os.environ, chosen.file)
    print(summary(chosen.file or os.environ.get("HEADWAY_CONFIG"), models))
    return 0


def summary(file: str | None, models: tuple[Settings, ...]) -> str:
    """What was understood, a line each."""
    lines = [f"{file or 'the environment alone'}: fine"]
    for settings in models:
        if settings.upstream is not None:
            where = ", ".join(settings.upstream.urls)
            names = ", ".join(settings.upstream.names)
            lines.append(f"  model {names}: answered by {where} ({settings.upstream.kind})")
            continue
        names = ", ".join(settings.served_model_name) or "named by its file"
        lines.append(f"  model {settings.model or '(built in)'}: {names}")
    if keys := len(models[0].gateway.tenant):
        lines.append(f"  {keys} keys of tenants")
    return "\n".join(lines)
