import pytest

from headway.compute.cpu.features import NEEDED, Isa, detect, host_features

OLD = frozenset({"sse2"})
AVX2 = frozenset({"avx2", "fma", "f16c"})


@pytest.mark.parametrize(
    ("features", "isa"),
    [
        (OLD, Isa.PLAIN),
        (AVX2, Isa.AVX2),
        (AVX2 | {"avxvnni"}, Isa.AVX_VNNI),
        (AVX2 | {"avx512f", "avx512bw", "avx512vl"}, Isa.AVX2),
        (AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}, Isa.AVX512_VNNI),
    ],
)
def test_the_fastest_family_that_the_cpu_offers_is_chosen(
    features: frozenset[str], isa: Isa
) -> None:
    assert detect(features=features) is isa


def test_a_slower_family_can_be_forced() -> None:
    newest = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}
    assert [detect(force, newest) for force in Isa] == list(Isa)


def test_forcing_what_the_cpu_lacks_names_what_it_has() -> None:
    with pytest.raises(ValueError, match=r"does not offer avx512-vnni kernels.*choose avx2"):
        detect(Isa.AVX512_VNNI, AVX2)


def test_this_machine_runs_what_is_detected() -> None:
    assert any(needed <= host_features() for needed in NEEDED[detect()])
