"""The samples in the documents work as they stand: run against a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, documents
from tests.e2e.server import Server

ADDRESS = "http://127.0.0.1:8000"
SAMPLES = [
    pytest.param(sample, id=f"{document.name}-{number}")
    for document in documents()
    for number, sample in enumerate(document.samples(), 1)
]
PYTHON = re.compile(r"```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(command: list[str], text: str, folder: Path) -> str:
    """Run a sample; its output, after a status of 0."""
    # `headway` and `python3` are those that run this test.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        input=text,
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_shell_sample_runs(sample: str, server: Server, tmp_path: Path) -> None:
    assert ADDRESS in sample, "a sample that runs talks to the server"
    script = sample.replace(ADDRESS, server.url)
    output = run(["bash", "-euo", "pipefail"], script, tmp_path)
    assert '"error"' not in output or "param" in sample, output


@pytest.mark.e2e
def test_the_python_sample_of_the_readme_prints_an_answer(server: Server, tmp_path: Path) -> None:
    (sample,) = PYTHON.findall((ROOT / "README.md").read_text())
    output = run([sys.executable, "-"], sample.replace(ADDRESS, server.url), tmp_path)
    assert len(output.strip()) > 5


def test_the_documents_have_samples() -> None:
    assert len(SAMPLES) > 8
