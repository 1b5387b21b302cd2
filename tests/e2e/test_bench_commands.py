"""One real run of each benchmark that needs no running server."""

import json
from pathlib import Path

import pytest

from headway.app.cli import main

SMALL = {
    "latency": ["--num-iters", "2", "--num-iters-warmup", "0", "--kv-cache-memory-bytes", "256M"],
    "throughput": ["--num-prompts", "4", "--kv-cache-memory-bytes", "256M"],
    "startup": [],
}
WANTED = {
    "latency": ("avg_latency", "Mean latency (ms):"),
    "throughput": ("requests_per_second", "Request throughput (req/s):"),
    "startup": ("warm", "P50 time to first token (s):"),
}


@pytest.mark.parametrize("what", list(SMALL))
def test_a_quick_run_prints_a_table_and_writes_its_figures(
    what: str, smollm2_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    arguments = ["--quick", "--disable-tqdm", "--json", str(path), "--model", smollm2_path]
    assert main(["bench", what, *arguments, *SMALL[what]]) == 0
    key, row = WANTED[what]
    assert json.loads(path.read_text())[key]
    assert row in capsys.readouterr().out
