"""Writes the table of families in docs/models.md from what readers and parity tests know.

python -m tools.write_models

A test fails while it differs from what this would write.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from headway.compute.arch.families import FAMILIES
from headway.compute.formats.blocks import EXPAND
from headway.service.loaders.folder_card import FAMILIES as FOLDERS
from headway.service.loaders.gguf_card import ARCHITECTURES
from tests.parity.families import FAMILIES as ON_CPU_GGUF
from tests.parity.folders import MODELS, ON_CPU
from tests.parity.test_families_gguf import FILES
from tools.write_docs import table

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"
PLAIN = "plain"
# By tests of their own, which have no table.
LLAMAS = "SmolLM2-135M itself, and tiny Llamas"


def families() -> str:
    """The whole part between the two marks."""
    head = (
        "family",
        "folder: `model_type`",
        "GGUF: `general.architecture`",
        "torch executor, folders",
        "torch executor, GGUF",
        "CPU executor",
    )
    rows = [_row(family) for family in FAMILIES]
    types = ", ".join(f"`{name}`" for name in EXPAND)
    return f"{table(head, rows)}\nTypes of tensors in GGUF files: {types}.\n"


def written(text: str) -> str:
    """The document with this part in it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{families()}{END}{after}"


def main() -> None:
    """Write it."""
    DOCUMENT.write_text(written(DOCUMENT.read_text()))


def _row(family: str) -> tuple[str, ...]:
    kinds = [f"`{kind}`" for kind, habits in FOLDERS.items() if habits.architecture == family]
    own = [LLAMAS] if family == "llama" else []
    as_llama = [] if family in ARCHITECTURES else ["as `llama`"]
    return (
        f"`{family}`",
        ", ".join(kinds),
        *(as_llama or [f"`{family}`"]),
        _listed(_variants(MODELS, family)),
        _listed([*own, *as_llama, *_variants(FILES, family)]),
        _listed([*own, *_variants(ON_CPU_GGUF, family), *_variants(ON_CPU, family)]),
    )


def _variants(names: Iterable[str] | Mapping[str, object], family: str) -> list[str]:
    """What follows the family's name in those of tests."""
    found = [name.partition(", ") for name in names]
    return [variant or PLAIN for name, _, variant in found if name == family]


def _listed(variants: list[str]) -> str:
    return "; ".join(dict.fromkeys(variants)) or "not compared"


if __name__ == "__main__":
    main()
