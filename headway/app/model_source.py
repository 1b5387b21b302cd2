"""From what `--model` says to a path: nothing, a path, or a model's id on a hub."""

import os
from pathlib import Path
from typing import NamedTuple

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.hub_choice import read_reference
from headway.service.loaders.progress import Progress


class Located(NamedTuple):
    """A model that is here."""

    path: str
    names: tuple[str, ...]  # that clients may call it by; empty: those of its file


def locate(
    model: str | None, progress: Progress, cache_dir: Path | None, *, verify: bool = False
) -> Located:
    """Find a model, fetching it first if it is not here; raises StartError.

    None is the built-in model. A path that exists is never looked for on a hub. `verify`
    hashes also what was here before.
    """
    if model is None:
        return Located(fetch_builtin(progress, cache_dir, verify=verify), ())
    reference = None if Path(model).exists() else read_reference(model)
    if reference is None:
        return Located(model, ())
    # Its library tells the hub what it runs in, unless this is set; no telemetry is our promise.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Here and not above: the hub's library takes a quarter of a second.
    from headway.service.loaders.hub import fetch_from_hub

    path = fetch_from_hub(reference, progress, verify=verify)
    if path.endswith(".gguf"):
        return Located(path, (str(reference),) if reference.file else (reference.repo,))
    return Located(path, (reference.repo, reference.repo.partition("/")[2]))
