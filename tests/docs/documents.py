"""The documents, and what stands in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUNS = re.compile(r"<!-- runs -->\s*\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Document(NamedTuple):
    """One Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """The text without code blocks."""
        return BLOCK.sub("", self.text)

    def links(self) -> list[str]:
        """Targets of all links outside of code."""
        return LINK.findall(INLINE.sub("", self.prose))

    def code(self) -> list[str]:
        """Everything in code: blocks and inline pieces."""
        return [match[2] for match in BLOCK.findall(self.text)] + INLINE.findall(self.prose)

    def samples(self) -> list[str]:
        """Shell blocks that are marked to run."""
        return RUNS.findall(self.text)

    def anchors(self) -> set[str]:
        """Anchors of its headings, as code hosts make them."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def documents() -> list[Document]:
    """All documents: those at the top, in docs, in adr, and beside the code."""
    patterns = ("*.md", "docs/*.md", "adr/*.md", "benchmarks/**/*.md", "headway/**/*.md")
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [Document(path, path.read_text()) for path in paths]
