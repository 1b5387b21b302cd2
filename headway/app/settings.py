"""The settings of one server: file, then environment, then flags, merged once and frozen."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from headway.app.options import BY_KEY, BY_VARIABLE, Option, Value
from headway.compute.cpu.settings import CpuChoices
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.base.errors import InvalidSetting
from headway.core.engine.settings import EngineSettings
from headway.service.control.health import SupervisorSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.openai.limits import ApiLimits

# Kubernetes puts such variables into every pod beside a service named "headway".
SERVICE_LINK = re.compile(r"HEADWAY_(.+_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP)(_.*)?)?)")
OTHER_VARIABLES = frozenset({"HEADWAY_CONFIG"})
OTHER_PREFIXES = ("HEADWAY_TEST_", "HEADWAY_BENCH_")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator may set; each part is handed its own struct only."""

    model: str | None = None  # None: the built-in model
    served_model_name: tuple[str, ...] = ()
    cache_dir: str | None = None
    executor_choice: str = "auto"  # "cpu", "torch", or auto: the one that fits
    log_level: str = "info"
    log_json: bool = False
    seed: int | None = None
    executor: ExecutorSettings = ExecutorSettings()
    cpu: CpuChoices = CpuChoices()
    engine: EngineSettings = EngineSettings()
    gateway: GatewaySettings = GatewaySettings()
    limits: ApiLimits = ApiLimits()
    supervisor: SupervisorSettings = SupervisorSettings()


STRUCTS: Mapping[str, type[msgspec.Struct]] = {
    "": Settings,
    "executor": ExecutorSettings,
    "cpu": CpuChoices,
    "engine": EngineSettings,
    "gateway": GatewaySettings,
    "limits": ApiLimits,
    "supervisor": SupervisorSettings,
}


def merge(
    flags: Mapping[str, object], environment: Mapping[str, str], file: str | None
) -> Settings:
    """The settings tree out of all three sources; later ones win.

    `flags` holds only what was given, by the options' keys. Raises InvalidSetting, whose message
    names the flag, the variable, or the file and its key.
    """
    path = file or environment.get("HEADWAY_CONFIG")
    values: dict[str, Value] = _from_file(Path(path)) if path else {}
    values |= _from_environment(environment)
    for key, raw in flags.items():
        option = BY_KEY[key]
        values[key] = _read(option, raw, f"--{option.name}")
    return _build(values)


def default_of(option: Option) -> object:
    """The value that stands when nobody sets the option."""
    return getattr(STRUCTS[option.section](), option.field)


def _build(values: Mapping[str, Value]) -> Settings:
    parts: dict[str, dict[str, Value]] = {section: {} for section in STRUCTS}
    for key, value in values.items():
        option = BY_KEY[key]
        parts[option.section][option.field] = value
    sections = {name: msgspec.convert(parts[name], kind) for name, kind in STRUCTS.items() if name}
    return msgspec.convert({**parts[""], **sections}, Settings)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, raw in environment.items():
        if not name.startswith("HEADWAY_") or name in OTHER_VARIABLES:
            continue
        option = BY_VARIABLE.get(name)
        is_link = SERVICE_LINK.fullmatch(name) and (option is None or "://" in raw)
        if is_link or name.startswith(OTHER_PREFIXES):
            continue
        if option is None:
            raise InvalidSetting(name, f"is not a setting{_did_you_mean(name, BY_VARIABLE)}")
        found[option.key] = _read(option, raw, name)
    return found


def _from_file(path: Path) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, raw in _parse(path).items():
        name = str(key).replace("-", "_")
        option = BY_KEY.get(name)
        where = f"{path}: {key}"
        if option is None:
            raise InvalidSetting(where, f"is not a setting{_did_you_mean(name, BY_KEY)}")
        if raw is not None:
            found[name] = _read(option, raw, where)
    return found


def _parse(path: Path) -> dict[str, object]:
    name = f"--config {path}"
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(name, f"cannot be read: {_reason(error)}") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(content)
        if path.suffix in {".yaml", ".yml"}:
            loaded = yaml.safe_load(content)
        else:
            raise InvalidSetting(name, "must end in .toml, .yaml or .yml")
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise InvalidSetting(name, " ".join(str(error).split())) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InvalidSetting(name, "must hold keys and values, one setting each")
    return loaded


def _read(option: Option, raw: object, where: str) -> Value:
    try:
        return option.read(raw)
    except ValueError as error:
        raise InvalidSetting(where, str(error)) from None


def _did_you_mean(name: str, known: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; see docs/settings.md"


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
