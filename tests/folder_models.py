"""A small random model of a folder, as a server can serve it."""

from pathlib import Path
from typing import Any

from tests.parity.folders import make, save
from tests.unit.service.loaders.folder_samples import write_json


def served_folder(folder: Path, **generation: Any) -> str:
    """A random Qwen3 with a byte tokenizer, whose makers sample by `generation`; its path."""
    path = save(make("qwen3"), folder, shard_size="200KB")
    if generation:
        write_json(folder / "generation_config.json", {"do_sample": True, **generation})
    return path
