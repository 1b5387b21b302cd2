"""Writes the documents that are made from the code: settings and metrics.

python tools/write_docs.py          write docs/settings.md and docs/metrics.md

A test fails while one of them differs from what this would write.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from headway.app.option import Option
from headway.app.options import OPTIONS
from headway.app.settings import default_of
from headway.service.observe.catalogue import EVERYTHING

DOCS = Path(__file__).resolve().parent.parent / "docs"

SETTINGS_HEAD = """\
# Settings

Made by `tools/write_docs.py` from `headway/app/options.py`; do not edit.

Every setting of `headway serve` has one flag, one environment variable and one key in a file
(`--config FILE` or `HEADWAY_CONFIG`; TOML or YAML, one `key: value` a setting, with `_` in the
key). The file is read first, then the environment, then the flags; later ones win. A setting,
variable or key that is not known ends the start with one line and status 2. Several models and what
each says for itself: [several-models.md](several-models.md).

"""
METRICS_HEAD = """\
# Metrics

Made by `tools/write_docs.py` from `headway/core/base/metrics.py` and `core/fleet/metrics.py`; do
not edit.

`GET /metrics` gives these in Prometheus' text format. Names are exact as scraped; a histogram
has `_bucket`, `_sum` and `_count` beside it.

"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside a cell are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def shown_default(option: Option) -> str:
    """The default as people read it."""
    value = default_of(option)
    if option.default:
        return option.default
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, ()) else f"`{value}`"


def settings_document() -> str:
    """docs/settings.md."""
    rows = [
        (
            f"`--{option.name}`",
            f"`{option.variable}`",
            shown_default(option),
            option.help + (f" ({option.unit})" if option.unit else ""),
        )
        for option in OPTIONS
    ]
    return SETTINGS_HEAD + table(("flag", "environment", "default", "meaning"), rows)


def metrics_document() -> str:
    """docs/metrics.md."""
    rows = [
        (
            f"`{metric.name}`",
            metric.kind.value,
            metric.unit,
            ", ".join(metric.labels),
            metric.help + (f". **Alert:** {metric.alert}" if metric.alert else ""),
        )
        for metric in EVERYTHING
    ]
    return METRICS_HEAD + table(("name", "kind", "unit", "labels", "meaning"), rows)


DOCUMENTS = {
    "settings.md": settings_document,
    "metrics.md": metrics_document,
}


def main() -> None:
    """Write all of them."""
    for name, document in DOCUMENTS.items():
        (DOCS / name).write_text(document())
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
