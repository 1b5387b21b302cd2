import subprocess
import sys

import numba
import pytest
from llvmlite import binding

from headway.compute.cpu import features, kernel_cache
from headway.compute.cpu.features import NEEDED, detect, enabled, host_features, restrict
from headway.compute.cpu.settings import Isa, isa_of
from headway.core.base.errors import InvalidSetting

OLD = frozenset({"sse2"})
AVX2 = frozenset({"avx2", "fma", "f16c"})
NEWEST = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "sse2"}
OFFERED = [isa for isa in Isa if features.offers(isa, host_features())]
IS_X86 = binding.get_process_triple().startswith(features.X86)

# A process of its own, because Numba asks once what it may use. Prints the instructions'
# registers and operations that only newer CPUs have.
COMPILE = """
import re, sys
import numpy as np
from headway.compute.cpu import features
from headway.compute.cpu.settings import Isa
features.restrict(Isa(sys.argv[1]))
from headway.compute.cpu.activation import gate_rows
x = np.linspace(-3, 3, 192, dtype=np.float32).reshape(2, 96)
out = np.empty((2, 48), np.float32)
at = x.ctypes.data
gate_rows(at, at + 4 * 48, 96, 48, 2, out.ctypes.data)
want = x[:, :48] / (1 + np.exp(-x[:, :48])) * x[:, 48:]
assert np.allclose(out, want, rtol=1e-5, atol=1e-6)
(code,) = gate_rows.inspect_asm().values()
print(*sorted({found[0] for found in re.finditer(r"zmm|ymm|vfmadd", code)}))
"""


@pytest.fixture(autouse=True)
def _same_code_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `restrict` tells Numba must not outlive the test."""
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)


def a_host_with(offered: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict.fromkeys(NEWEST | {"avxvnni", "amx-tile"}, False)
    monkeypatch.setattr(
        binding, "get_host_cpu_features", lambda: names | dict.fromkeys(offered, True)
    )
    monkeypatch.setattr(binding, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")


@pytest.mark.parametrize(
    ("offered", "isa"),
    [
        (OLD, Isa.PLAIN),
        (AVX2, Isa.AVX2),
        (AVX2 | {"avxvnni"}, Isa.AVX_VNNI),
        (AVX2 | {"avx512f", "avx512bw", "avx512vl"}, Isa.AVX2),
        (AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}, Isa.AVX512_VNNI),
    ],
)
def test_the_fastest_family_that_the_cpu_offers_is_chosen(
    offered: frozenset[str], isa: Isa
) -> None:
    assert detect(features=offered) is isa


def test_a_slower_family_can_be_forced() -> None:
    assert [detect(force, NEWEST) for force in Isa] == list(Isa)


def test_forcing_what_the_cpu_lacks_names_what_it_has() -> None:
    with pytest.raises(ValueError, match=r"does not offer avx512-vnni kernels.*choose avx2"):
        detect(Isa.AVX512_VNNI, AVX2)


def test_this_machine_runs_what_is_detected() -> None:
    assert any(needed <= host_features() for needed in NEEDED[detect()])


def test_unless_it_is_restricted_all_that_the_host_offers_is_enabled() -> None:
    restrict(None)
    assert enabled() == host_features()
    assert features.cpu_name() == binding.get_host_cpu_name()


@pytest.mark.parametrize("isa", Isa)
@pytest.mark.parametrize("offered", [NEWEST, NEWEST | {"avxvnni", "amx-tile"}], ids=len)
def test_a_restricted_machine_is_one_of_that_family_in_all_its_code(
    isa: Isa, offered: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_host_with(offered, monkeypatch)
    restrict(isa)
    assert detect() is isa
    assert enabled() < offered
    assert not enabled() & {"avx512bf16", "amx-tile"}
    assert ("avx2" in enabled()) is (isa is not Isa.PLAIN)
    told = numba.config.CPU_FEATURES.split(",")
    assert "-avx512bf16" in told, "what is left out must be denied, not only unnamed"
    assert numba.config.CPU_NAME == features.cpu_name() == "x86-64"


def test_a_cpu_with_the_256_bit_form_needs_no_avx512_to_behave_as_such_a_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_host_with(NEWEST | {"avxvnni"}, monkeypatch)
    restrict(Isa.AVX_VNNI)
    assert enabled() == AVX2 | {"avxvnni", "sse2"}


def test_what_the_cpu_lacks_is_refused_with_what_it_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_host_with(AVX2, monkeypatch)
    with pytest.raises(InvalidSetting) as caught:
        restrict(Isa.AVX512_VNNI)
    assert caught.value.message == (
        "--cpu-isa: this CPU does not offer avx512-vnni; it offers avx2, plain"
    )
    assert numba.config.CPU_FEATURES is None


def test_other_processors_have_one_family_which_uses_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    restrict(Isa.PLAIN)
    assert numba.config.CPU_FEATURES is None


def test_kernels_of_a_restricted_machine_have_a_folder_of_their_own() -> None:
    names = {kernel_cache.name()}
    for isa in OFFERED if IS_X86 else ():
        restrict(isa)
        names.add(kernel_cache.name())
    assert len(names) == 1 + len(OFFERED) * IS_X86


@pytest.mark.skipif(not IS_X86, reason="the registers are those of x86 CPUs")
@pytest.mark.parametrize("isa", [isa for isa in OFFERED if isa in (Isa.AVX2, Isa.PLAIN)])
def test_compiled_code_holds_no_newer_instructions(isa: Isa) -> None:
    found = subprocess.run(
        [sys.executable, "-c", COMPILE, isa], check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == (["vfmadd", "ymm"] if isa is Isa.AVX2 else [])


@pytest.mark.parametrize("isa", Isa)
def test_startup_config_01_families_are_chosen_by_name(isa: Isa) -> None:
    assert isa_of(str(isa)) is isa
    assert isa_of("auto") is None


def test_startup_config_01_another_name_is_refused_with_all_there_are() -> None:
    with pytest.raises(InvalidSetting) as caught:
        isa_of("avx")
    assert caught.value.message == (
        "--cpu-isa: must be one of auto, avx512-vnni, avx-vnni, avx2, plain; got 'avx'"
    )
