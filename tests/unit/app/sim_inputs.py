"""Inputs of simulations: a cost table of a small model on a machine of nobody's."""

from pathlib import Path

import msgspec

from headway.app.cost_file import CostFile
from headway.core.sim.costs import StepTable
from tests.fault.scripted import SPEC

TABLE = StepTable(
    rows=((1, 0.004), (16, 0.020)), decode_pair_s=1e-6, prefill_token_s=3e-4, prefill_pair_s=1e-7
)
CARD = msgspec.structs.replace(SPEC.card, context_length=8192)
COSTS = CostFile(
    card=CARD,
    bytes_per_kv_value=2,
    free_bytes=8 << 30,
    table=TABLE,
    num_steps=100,
    error_p50=0.01,
    error_p90=0.05,
)


def write_costs(folder: Path) -> str:
    """The file of `headway bench steps`; its path."""
    path = folder / "steps.json"
    path.write_bytes(msgspec.json.encode(COSTS))
    return str(path)
