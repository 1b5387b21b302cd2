"""A server that may use an older CPU's instructions only, from its first compiled line on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from llvmlite import binding

from headway.compute.cpu.features import X86, host_features, offers
from headway.compute.cpu.settings import Isa
from tests.e2e.server import Server

FACTS = json.loads((Path(__file__).parent / "facts.json").read_text())
OFFERED = [isa for isa in (Isa.AVX2, Isa.PLAIN) if offers(isa, host_features())]


@pytest.mark.spec("M1")
@pytest.mark.parametrize("isa", OFFERED)
def test_a_machine_without_vnni_serves(isa: Isa, start: Callable[..., Server]) -> None:
    server = start("--cpu-isa", isa, wait=False).wait_ready(300.0)
    for fact in FACTS[:3]:
        answer = server.chat(fact["question"], max_tokens=32)["choices"][0]["message"]["content"]
        assert fact["answer"] in answer
    said = server.log.read_text()
    assert f"cpu {isa}" in said
    assert "cpu_kernels" in said


@pytest.mark.skipif(not binding.get_process_triple().startswith(X86), reason="one family only")
def test_startup_config_01_what_the_cpu_lacks_ends_the_start_with_what_it_has(
    start: Callable[..., Server],
) -> None:
    lacking = next((isa for isa in Isa if not offers(isa, host_features())), None)
    server = start("--cpu-isa", lacking or "avx", wait=False)
    assert server.process.wait(60) == 2
    assert "plain" in server.log.read_text()
