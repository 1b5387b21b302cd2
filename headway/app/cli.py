"""The command line: argument parsing only. What can go wrong at start is one line here."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, NoReturn

from headway import __version__
from headway.app.gateway import serve
from headway.app.option_flags import add_option
from headway.app.options import BY_KEY, OPTIONS, SECTIONS
from headway.app.settings import Settings, merge, merge_models
from headway.core.base.errors import StartError

EXIT_NOT_STARTED = 2
EXIT_NOT_READ = 1
TALKS = {
    "chat": "chat with a model in the terminal",
    "complete": "continue prompts in the terminal",
    "models": "list, download and describe models",
}


class Late(NamedTuple):
    """A command whose module is imported when it is called: a server has no use for it.

    The module has `add_arguments(parser)` and `run(chosen) -> exit code`.
    """

    help: str
    module: str


LATE: Mapping[str, Late] = {
    "admin": Late("tenants, keys and the audit log", "headway.app.admin"),
    "config": Late("check a configuration file", "headway.app.config"),
    "explain": Late("what happened to one request, and why", "headway.app.explain"),
    "usage": Late("what was used, by whom and when", "headway.app.usage"),
}
# Keys of those that `warmup` takes.
WARMUP_OPTIONS = ("model", "cache_dir", "cpu_isa", "quantization", "kv_cache_dtype")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(EXIT_NOT_STARTED)


def parser() -> argparse.ArgumentParser:
    """All commands; the options of `bench`, `chat` and `complete` stand in their own modules."""
    top = OneLineParser(prog="headway", description="An LLM inference service.")
    commands = top.add_subparsers(dest="command", required=True, parser_class=OneLineParser)
    serving = commands.add_parser(
        "serve", help="serve a model over OpenAI's API", allow_abbrev=False
    )
    _add_serve(serving)
    warming = commands.add_parser(
        "warmup", help="compile the CPU kernels now, so that no start waits", allow_abbrev=False
    )
    for key in WARMUP_OPTIONS:
        add_option(warming, BY_KEY[key])
    commands.add_parser("version", help="print the version")
    commands.add_parser("bench", help="measure a server or an engine (headway bench --help)")
    commands.add_parser("simulate", help="predict a workload's latencies (headway simulate)")
    for name, text in (*TALKS.items(), *((name, late.help) for name, late in LATE.items())):
        commands.add_parser(name, help=text)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0, or 2 with one line on stderr when it cannot start."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # as by `| head`: who read it has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOT_READ
    return code


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    elsewhere = _ELSEWHERE.get(given[0]) if given else None
    if elsewhere is not None:
        return elsewhere(given[1:])
    chosen, unknown = parser().parse_known_args(given)
    if unknown:
        print(
            f"headway {chosen.command}: {_no_option(chosen.command, unknown[0])}", file=sys.stderr
        )
        return EXIT_NOT_STARTED
    if chosen.command == "version":
        print(f"headway {__version__}")
        return 0
    return _start(chosen)


def _start(chosen: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(chosen).items() if name not in _NOT_OPTIONS}
    try:
        if chosen.command == "warmup":
            return _warm_up(merge(flags, os.environ, None))
        named = [*chosen.model_paths, *flags.pop("model", [])]
        given = flags | {"model": named} if named else flags
        read = partial(merge_models, given, os.environ, chosen.config)
        models = read()
        return serve(models, read if models[0].file else None)
    except StartError as error:
        print(f"headway {chosen.command}: {' '.join(error.message.split())}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except KeyboardInterrupt:  # it was asked to stop before it had begun to serve
        return 0


def _warm_up(settings: Settings) -> int:
    # Here and not above: it brings Numba, which a server's own process does without.
    from headway.app.warmup import warm_up

    return warm_up(settings)


def _no_option(command: str, given: str) -> str:
    name = given.partition("=")[0]
    keys = [option.key for option in OPTIONS] if command == "serve" else WARMUP_OPTIONS
    flags = [f"--{BY_KEY[key].name}" for key in keys]
    close = difflib.get_close_matches(name, flags, n=1)
    hint = f"did you mean {close[0]}?" if close else f"see headway {command} --help"
    return f"{name}: is not an option; {hint}"


def _bench(arguments: Sequence[str]) -> int:
    # Here and not above: HTTP clients, kernels and the simulator are of no use to a server.
    from headway.app.bench_commands import COMMANDS

    top = OneLineParser(prog="headway bench", description="Measure a server or an engine.")
    commands = top.add_subparsers(dest="what", required=True, parser_class=OneLineParser)
    for name, command in COMMANDS.items():
        command.declare(commands.add_parser(name, help=command.help, allow_abbrev=False))
    chosen = top.parse_args(arguments)
    return COMMANDS[chosen.what].run(chosen)


def _simulate(arguments: Sequence[str]) -> int:
    # Here and not above: as for bench.
    from headway.app.bench_commands import SIMULATE

    command = OneLineParser(prog="headway simulate", allow_abbrev=False)
    SIMULATE.declare(command)
    return SIMULATE.run(command.parse_args(arguments))


def _late(name: str, arguments: Sequence[str]) -> int:
    command = import_module(LATE[name].module)
    top = OneLineParser(prog=f"headway {name}", description=f"{LATE[name].help.capitalize()}.")
    try:
        command.add_arguments(top)
        code = command.run(top.parse_args(arguments))
    except StartError as error:
        print(f"headway {name}: {' '.join(error.message.split())}", file=sys.stderr)
        return EXIT_NOT_STARTED
    assert isinstance(code, int), f"{LATE[name].module}.run gives an exit code"
    return code


def _talk(name: str, arguments: Sequence[str]) -> int:
    # Here and not above: a server has no use for them.
    from headway.app import chat, models

    top = OneLineParser(prog=f"headway {name}", description=f"{TALKS[name].capitalize()}.")
    try:
        if name == "models":
            models.add_arguments(top)
            return models.run(top.parse_args(arguments))
        chat.add_arguments(top, is_chat=name == "chat")
        return chat.run(top.parse_args(arguments), is_chat=name == "chat")
    except StartError as error:
        print(f"headway {name}: {' '.join(error.message.split())}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except KeyboardInterrupt:  # while the server was starting
        return EXIT_NOT_STARTED


_ELSEWHERE: Mapping[str, Callable[[Sequence[str]], int]] = {
    "bench": _bench,
    "simulate": _simulate,
    **{name: partial(_talk, name) for name in TALKS},
    **{name: partial(_late, name) for name in LATE},
}
_NOT_OPTIONS = frozenset({"command", "config", "model_paths"})


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model_paths", nargs="*", metavar="MODEL", help="models to serve; the same as --model"
    )
    command.add_argument(
        "--config", metavar="FILE", help="TOML or YAML file of settings [HEADWAY_CONFIG]"
    )
    groups = {section: command.add_argument_group(title) for section, title in SECTIONS.items()}
    for option in OPTIONS:
        add_option(groups[option.section], option, is_repeated=option.key == "model")


if __name__ == "__main__":
    sys.exit(main())
