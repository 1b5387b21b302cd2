"""Which instructions kernels may use: the host's, or fewer where the operator says so."""

from collections.abc import Mapping

import numba
from llvmlite import binding

from headway.compute.cpu.settings import Isa
from headway.core.base.errors import InvalidSetting

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

# What CPUs of each family have, for those that are told to behave as one. The first is all
# that an x86 CPU of 64 bits must have.
_BASE = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87"})
_AVX2 = _BASE | {
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "crc32", "movbe", "lzcnt",
    "bmi", "bmi2", "xsave", "avx", "avx2", "fma", "f16c",
}  # fmt: skip
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"}
ALLOWED: Mapping[Isa, tuple[frozenset[str], ...]] = {
    Isa.AVX512_VNNI: (_AVX512,),
    # The second for a CPU that has the instruction in AVX-512's encoding only; without
    # avx512bw it is not taken for one of the family above.
    Isa.AVX_VNNI: (_AVX2 | {"avxvnni"}, _AVX2 | {"avx512f", "avx512vl", "avx512vnni"}),
    Isa.AVX2: (_AVX2,),
    Isa.PLAIN: (_BASE,),
}
GENERIC_CPU = "x86-64"  # whose name gives LLVM no more than _BASE
X86 = ("x86_64", "i386", "i686")


def host_features() -> frozenset[str]:
    """What this machine's CPU and operating system offer, by LLVM's names."""
    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


def enabled() -> frozenset[str]:
    """What kernels may use: what the compiler has been told, else what the host offers.

    A kernel with a variant for newer instructions asks here while its code is generated.
    """
    told = numba.config.CPU_FEATURES
    if told is None:
        return host_features()
    return frozenset(item[1:] for item in told.split(",") if item.startswith("+"))


def cpu_name() -> str:
    """The CPU that code is generated for, by LLVM's name."""
    return str(numba.config.CPU_NAME or binding.get_host_cpu_name())


def restrict(isa: Isa | None) -> None:
    """Make all code that is compiled from now on such as a CPU of this family would run.

    None changes nothing. It must come before anything is compiled, since Numba asks once,
    and before `kernel_cache.prepare`, because such kernels are kept in a folder of their own.

    Raises InvalidSetting, with what this CPU offers, when it lacks that.
    """
    if isa is None:
        return
    host = host_features()
    if not offers(isa, host):
        found = ", ".join(each for each in Isa if offers(each, host))
        raise InvalidSetting("--cpu-isa", f"this CPU does not offer {isa}; it offers {found}")
    if not binding.get_process_triple().startswith(X86):
        return  # there is one family only, and it uses what every such CPU has
    allowed = next(each for each in ALLOWED[isa] if offers(isa, each & host))
    kept = allowed & host
    signs = {name: "+" if name in kept else "-" for name in binding.get_host_cpu_features()}
    numba.config.CPU_NAME = GENERIC_CPU
    numba.config.CPU_FEATURES = ",".join(f"{sign}{name}" for name, sign in sorted(signs.items()))


def offers(isa: Isa, features: frozenset[str]) -> bool:
    """Whether a CPU with these features runs the kernels of `isa`."""
    return any(needed <= features for needed in NEEDED[isa])


def detect(force: Isa | None = None, features: frozenset[str] | None = None) -> Isa:
    """The fastest family that kernels may use, or `force`.

    features  instead of those that are enabled, for a test
    Raises ValueError when `force` needs more than that.
    """
    found = enabled() if features is None else features
    if force is None:
        return next(isa for isa in Isa if offers(isa, found))
    if not offers(force, found):
        raise ValueError(
            f"this CPU does not offer {force} kernels; "
            f"choose {detect(features=found)} or leave the choice open"
        )
    return force
