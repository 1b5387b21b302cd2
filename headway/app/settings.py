"""The settings of one server: file, then environment, then flags, merged once and frozen."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headway.app.document import Document, read_document
from headway.app.entries import (
    MODELS,
    UPSTREAM,
    Values,
    did_you_mean,
    entries_of,
    entry_of_text,
    read_option,
)
from headway.app.option import Option, Value
from headway.app.options import BY_KEY, BY_VARIABLE
from headway.app.sections import RATE_LIMITS, Sections, TenantEntry, read_sections
from headway.compute.cpu.settings import CpuChoices
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.base.errors import InvalidSetting
from headway.core.base.model_card import ModelCard
from headway.core.engine.settings import EngineSettings
from headway.core.fleet.residency import ResidencySettings
from headway.core.route.table import RoutesSettings
from headway.core.tenancy.price import PriceSettings
from headway.service.control.health import SupervisorSettings
from headway.service.control.replica_set import ReplicaSetSettings
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.openai.limits import ApiLimits
from headway.service.store.ledger_settings import LedgerSettings
from headway.service.store.settings import StoreSettings
from headway.service.upstream.settings import UpstreamSettings
from headway.service.wire.spec import ReplicaSpec

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
    generation_config: str = "auto"  # "none": no sampling defaults of the model's makers
    log_level: str = "info"
    log_json: bool = False
    seed: int | None = None
    executor: ExecutorSettings = ExecutorSettings()
    cpu: CpuChoices = CpuChoices()
    engine: EngineSettings = EngineSettings()
    residency: ResidencySettings = ResidencySettings()
    pool: ReplicaSetSettings = ReplicaSetSettings()
    gateway: GatewaySettings = GatewaySettings()
    limits: ApiLimits = ApiLimits()
    rate_limits: RateLimitSettings = RateLimitSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    store: StoreSettings = StoreSettings()
    ledger: LedgerSettings = LedgerSettings()
    upstream: UpstreamSettings | None = None  # other servers answer for this model, and no engine
    # Sections of the file, and its path for messages about them.
    jwt: JwtSettings | None = None
    routes: RoutesSettings | None = None
    prices: PriceSettings = PriceSettings()
    tenants: tuple[TenantEntry, ...] = ()
    file: str = ""


STRUCTS: Mapping[str, type[msgspec.Struct]] = {
    "": Settings,
    "executor": ExecutorSettings,
    "cpu": CpuChoices,
    "engine": EngineSettings,
    "residency": ResidencySettings,
    "pool": ReplicaSetSettings,
    "gateway": GatewaySettings,
    "limits": ApiLimits,
    "rate_limits": RateLimitSettings,
    "supervisor": SupervisorSettings,
    "store": StoreSettings,
    "ledger": LedgerSettings,
}


def merge(
    flags: Mapping[str, object], environment: Mapping[str, str], file: str | None
) -> Settings:
    """The settings tree out of all three sources; later ones win.

    `flags` holds only what was given, by the options' keys. Raises InvalidSetting, whose message
    names the flag, the variable, or the file and its key; also where several models are set.
    """
    models = merge_models(flags, environment, file)
    if len(models) > 1:
        raise InvalidSetting(
            "--model", f"{len(models)} models are set, and this command takes one; name it"
        )
    return models[0]


def merge_models(
    flags: Mapping[str, object], environment: Mapping[str, str], file: str | None
) -> tuple[Settings, ...]:
    """One settings tree a model, in the order given; at least one.

    They differ in what the models say for themselves (`options.OF_A_MODEL`); what one does not
    say it has from the rest of the settings. The latest source that names models names them all.
    Raises InvalidSetting.
    """
    path = file or environment.get("HEADWAY_CONFIG")
    document = read_document(Path(path)) if path else Document("", {})
    content = document.content
    entries: list[Values] = []
    if MODELS in content:
        entries = entries_of(content.pop(MODELS), document)
        if content.get("model") is not None:
            raise InvalidSetting(
                document.where("model"), f"stands beside {MODELS}; put it into that list"
            )
    sections = read_sections(document)
    values: Values = {**_from_file(document)}
    values |= _from_environment(environment)
    for key, raw in flags.items():
        option = BY_KEY[key]
        if key != "model":
            values[key] = read_option(option, raw, f"--{option.name}")
    named = _named(flags, environment)
    if named:
        entries = named
        values.pop("model", None)
    if len(entries) > 1 and "served_model_name" in values:
        name = "served_model_name"
        where = document.where(name) if name in content else name
        raise InvalidSetting(where, "names one model, and there are several; give each its own")
    return tuple(_build({**values, **entry}, sections, document.path) for entry in entries or [{}])


def _named(flags: Mapping[str, object], environment: Mapping[str, str]) -> list[Values]:
    """The models of the flags, else of the environment; none if neither has any."""
    given = flags.get("model")
    if given is None:
        variable = environment.get("HEADWAY_MODEL")
        return [] if variable is None else [entry_of_text(variable, "HEADWAY_MODEL")]
    texts = given if isinstance(given, list | tuple) else (given,)
    return [entry_of_text(text, "--model") for text in texts]


def default_of(option: Option) -> object:
    """The value that stands when nobody sets the option."""
    return getattr(STRUCTS[option.section](), option.field)


def _build(values: Values, more: Sections, file: str) -> Settings:
    parts: dict[str, dict[str, Any]] = {section: {} for section in STRUCTS}
    for key, value in values.items():
        if key == UPSTREAM:
            parts[""][UPSTREAM] = value
            continue
        option = BY_KEY[key]
        parts[option.section][option.field] = value
    limits = msgspec.structs.replace(more.rate_limits, **parts.pop(RATE_LIMITS))
    sections = {name: msgspec.convert(each, STRUCTS[name]) for name, each in parts.items() if name}
    return msgspec.structs.replace(
        msgspec.convert({**parts[""], **sections}, Settings),
        rate_limits=limits,
        jwt=more.jwt,
        routes=more.routes,
        prices=more.prices,
        tenants=more.tenants,
        file=file,
    )


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
            raise InvalidSetting(name, f"is not a setting{did_you_mean(name, BY_VARIABLE)}")
        found[option.key] = read_option(option, raw, name)
    return found


def _from_file(document: Document) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, raw in document.content.items():
        name = str(key).replace("-", "_")
        option = BY_KEY.get(name)
        where = document.where(key)
        if option is None:
            raise InvalidSetting(where, f"is not a setting{did_you_mean(name, BY_KEY)}")
        if raw is not None:
            found[name] = read_option(option, raw, where)
    return found


def threads_of(settings: Settings, cores: int) -> int | None:
    """Threads of each replica: the cores are divided among them; None: the executor decides."""
    count = settings.pool.replicas
    if settings.executor.threads is not None or count == 1:
        return settings.executor.threads
    return max(1, cores // count)


def replica_spec(settings: Settings, card: ModelCard) -> ReplicaSpec:
    """What the engine's process has to know to serve that model."""
    return ReplicaSpec(
        model_path=card.path,
        card=card,
        engine=settings.engine,
        executor=settings.executor_choice,
        cache_dir=settings.cache_dir,
        dtype=settings.executor.dtype,
        device=settings.executor.device,
        threads=threads_of(settings, len(os.sched_getaffinity(0))),
        attention=settings.executor.attention,
        cpu_isa=settings.cpu.cpu_isa,
        quantization=settings.cpu.quantization,
        kv_cache_dtype=settings.cpu.kv_cache_dtype,
        log_level=settings.log_level,
        log_json=settings.log_json,
    )
