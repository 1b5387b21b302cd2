"""What the benchmarks without a server share: options, loading a model here, writing results."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headway.app.bench_dataset import DEFAULT_IDS
from headway.app.model_source import locate
from headway.app.option import Option
from headway.app.options import BY_KEY, OPTIONS
from headway.app.replica import load
from headway.app.settings import Settings, merge, replica_spec
from headway.core.base.errors import InvalidSetting, PromptTooLong, StartError
from headway.core.messages.health import LoadProgress
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe import log
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch

EXIT_NOT_STARTED, EXIT_INTERRUPTED = 2, 130
# Sections of the options of `headway serve` that say what computes, and how.
ENGINE_SECTIONS = frozenset({"", "executor", "cpu", "engine"})
NOT_OURS = frozenset({"served_model_name", "seed"})


def model_options() -> list[Option]:
    """Options of `headway serve` that an engine without a server has too."""
    return [o for o in OPTIONS if o.section in ENGINE_SECTIONS and o.key not in NOT_OURS]


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every benchmark of this kind."""
    group = parser.add_argument_group("result")
    group.add_argument(
        "--json", "--output-json", type=Path, metavar="PATH", help="write the figures as JSON"
    )
    group.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def fill(args: argparse.Namespace, usual: Mapping[str, int], quick: Mapping[str, int]) -> None:
    """Give each option that was not set its usual value, or with --quick its small one.

    Raises InvalidSetting for a number below 1; 0 is allowed where the usual value is named
    as a warm-up.
    """
    for name in usual:
        if getattr(args, name) is None:
            setattr(args, name, (quick if args.quick else usual)[name])
        least = 0 if name.endswith("warmup") else 1
        if getattr(args, name) < least:
            flag = "--" + name.replace("_", "-")
            raise InvalidSetting(flag, f"must be at least {least}, got {getattr(args, name)}")


def settings_of(args: argparse.Namespace, defaults: Mapping[str, object] | None = None) -> Settings:
    """The settings that the command line, the environment and `defaults` make, as in serve."""
    given = {key: value for key, value in vars(args).items() if key in BY_KEY}
    return merge({**(defaults or {}), **given}, os.environ, None)


def path_of(settings: Settings) -> str:
    """The model's path, fetched first if it is the built-in one or a hub's."""
    console = ConsoleProgress()
    try:
        cache = Path(settings.cache_dir) if settings.cache_dir else None
        return locate(settings.model, console, cache).path
    finally:
        console.close()


def random_token_ids(vocab_size: int) -> range:
    """Ids to draw prompts from: past the control tokens and bytes that come first."""
    return range(min(DEFAULT_IDS.start, vocab_size // 2), min(DEFAULT_IDS.stop, vocab_size))


def open_here(settings: Settings) -> ModelFile:
    """The model's file; from now on this process logs as the settings say."""
    log.configure(settings.log_level, as_json=settings.log_json)
    return open_model(path_of(settings))


def load_here(settings: Settings, model_file: ModelFile, most: tuple[int, int]) -> Loaded:
    """The engine and executor that `headway serve` would run, in this process.

    most  requests, and tokens of all their prompts, that the queue must hold at once
    """
    engine = msgspec.structs.replace(
        settings.engine, max_waiting_requests=most[0], max_waiting_tokens=most[1]
    )
    spec = replica_spec(msgspec.structs.replace(settings, engine=engine), model_file.card)

    def show(progress: LoadProgress) -> None:
        if progress.stage == "kernels":
            print("compiling the kernels, once on this machine", file=sys.stderr, flush=True)

    launch = Launch(spec=spec, commands_address="", reports_address="")
    return load(launch, show)


def check_lengths(loaded: Loaded, longest: int) -> None:
    """Raise PromptTooLong when prompt and answer together do not fit the context."""
    context = loaded.hello.max_model_len
    if longest > context:
        raise PromptTooLong(
            f"prompt and answer of {longest} tokens are over the context of {context} tokens",
            param=None,
        )


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write the figures if a path was given; raises InvalidSetting when that fails."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise InvalidSetting("--json", f"cannot write {path}: {error.strerror}") from error
    print(f"Saved {path}")


def guarded(name: str, work: Callable[[], int], command: str = "headway bench") -> int:
    """Run a benchmark; what goes wrong is one line on stderr and an exit code that is not 0."""
    try:
        return work()
    except (StartError, PromptTooLong) as error:
        print(f"{command} {name}: {' '.join(error.message.split())}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except KeyboardInterrupt:
        print(f"{command} {name}: interrupted; nothing is reported", file=sys.stderr)
        return EXIT_INTERRUPTED
