import json
import subprocess
import sys
from pathlib import Path

from tests.parity.tiny_llama import TinyLlama, write_gguf


def test_no_traffic_compiles_a_kernel_again(tmp_path: Path) -> None:
    """In a process of its own: other tests call kernels with types of arguments of their own."""
    tiny = TinyLlama(head_dim=32, context_length=1024)
    path = write_gguf(tmp_path / "m.gguf", tiny, quantized="Q4_1")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.compute.cpu.varied_traffic", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["finished"] == 30
    assert found["rows"][0] == 1
    assert found["rows"][-1] == 9, "there were steps of one row and of as many as may be"
    assert found["after"] == found["start"]
    assert found["start"]["headway.compute.cpu.step.step"] == 1
    assert max(found["start"].values()) <= 2
