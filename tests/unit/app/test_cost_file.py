"""The file of `headway bench steps`."""

from pathlib import Path

import pytest

from headway.app.cost_file import make_cost_file, read_cost_file
from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.cost.work import StepWork
from headway.core.engine.settings import EngineSettings
from headway.core.sim.costs import measured
from tests.unit.app.sim_inputs import CARD, COSTS, TABLE, write_costs


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert read_cost_file(Path(write_costs(tmp_path))) == COSTS


def test_measured_steps_become_a_table_and_its_error() -> None:
    works = [StepWork(rows, rows * 100) for rows in (1, 2, 4, 8) for _ in range(4)]
    steps = [measured(work, TABLE.seconds(work)) for work in works]
    made = make_cost_file(steps, CARD, bytes_per_kv_value=2, free_bytes=1 << 30, machine={})
    assert made.num_steps == 16
    assert made.error_p90 < 0.01
    assert "/" not in made.card.path, "this machine's folders stay here"


def test_the_engine_is_resolved_as_the_server_does_it() -> None:
    engine = COSTS.engine(EngineSettings(max_num_seqs=4))
    assert (engine.max_num_seqs, engine.max_model_len) == (4, 8192)
    with pytest.raises(NotEnoughMemory, match="--max-model-len"):
        COSTS.engine(EngineSettings(kv_cache_memory_bytes=1 << 14))


@pytest.mark.parametrize("content", [None, b"{}", b"[1", b'{"card": 3}'])
def test_another_file_is_refused_with_its_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSetting, match=r"--cost-table: .*other\.json"):
        read_cost_file(path)
