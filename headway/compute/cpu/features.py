"""Which instructions the kernels may use: asked once, at start."""

from collections.abc import Mapping
from enum import Enum

from llvmlite import binding


class Isa(Enum):
    """Families of kernels, fastest first."""

    AVX512_VNNI = "avx512-vnni"
    AVX_VNNI = "avx-vnni"
    AVX2 = "avx2"
    PLAIN = "plain"


# Names as LLVM gives them. AVX-512 with its dot product contains the 256-bit forms.
NEEDED: Mapping[Isa, tuple[frozenset[str], ...]] = {
    Isa.AVX512_VNNI: (frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vnni"}),),
    Isa.AVX_VNNI: (
        frozenset({"avx2", "fma", "f16c", "avxvnni"}),
        frozenset({"avx2", "fma", "f16c", "avx512vl", "avx512vnni"}),
    ),
    Isa.AVX2: (frozenset({"avx2", "fma", "f16c"}),),
    Isa.PLAIN: (frozenset(),),
}


def host_features() -> frozenset[str]:
    """What this machine's CPU and operating system offer, by LLVM's names."""
    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


def enabled() -> frozenset[str]:
    """What kernels may use: the host's features."""
    return host_features()


def offers(isa: Isa, features: frozenset[str]) -> bool:
    """Whether a CPU with these features runs the kernels of `isa`."""
    return any(needed <= features for needed in NEEDED[isa])


def detect(force: Isa | None = None, features: frozenset[str] | None = None) -> Isa:
    """The fastest family for this machine, or `force`.

    features  instead of the host's, for a test
    Raises ValueError when the machine does not offer `force`.
    """
    found = host_features() if features is None else features
    if force is None:
        return next(isa for isa in Isa if offers(isa, found))
    if not offers(force, found):
        raise ValueError(
            f"this CPU does not offer {force.value} kernels; "
            f"choose {detect(features=found).value} or leave the choice open"
        )
    return force
