"""The file of `headway bench steps`: what a step costs, and for which model and machine."""

from pathlib import Path
from typing import Any

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.base.model_card import ModelCard
from headway.core.cost.arithmetic import arithmetic_of
from headway.core.engine.settings import EngineSettings, ResolvedEngine, resolve
from headway.core.sim.costs import MeasuredStep, StepTable
from headway.core.sim.fit import fit, relative_error
from headway.core.sim.report import percentile


class CostFile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a simulation needs to know of a replica."""

    card: ModelCard
    bytes_per_kv_value: int
    free_bytes: int  # that the KV cache may be taken from, when it was measured
    table: StepTable
    num_steps: int
    error_p50: float  # of the fit, relative and without sign
    error_p90: float
    client_s: float = 0.0  # what a request takes outside of the engine, there and back
    machine: dict[str, Any] = {}

    def engine(self, settings: EngineSettings) -> ResolvedEngine:
        """The settings as `headway serve` would resolve them; raises StartError."""
        return resolve(settings, self.card, self.free_bytes, self.bytes_per_kv_value)


def make_cost_file(
    steps: list[MeasuredStep],
    card: ModelCard,
    *,
    bytes_per_kv_value: int,
    free_bytes: int,
    machine: dict[str, Any],
) -> CostFile:
    """Fit a table to measured steps."""
    table = fit(steps, arithmetic_of(card))
    errors = sorted(abs(relative_error(table, step)) for step in steps)
    return CostFile(
        card=msgspec.structs.replace(card, path=Path(card.path).name),
        bytes_per_kv_value=bytes_per_kv_value,
        free_bytes=free_bytes,
        table=table,
        num_steps=len(steps),
        error_p50=percentile(errors, 50),
        error_p90=percentile(errors, 90),
        machine=machine,
    )


def read_cost_file(path: Path) -> CostFile:
    """Read one; raises InvalidSetting that names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostFile)
    except OSError as error:
        raise InvalidSetting("--cost-table", f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidSetting(
            "--cost-table", f"{path} is not a file of `headway bench steps`: {error}"
        ) from error
