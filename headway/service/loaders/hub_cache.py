"""What of hubs' models is in the cache already; nobody is asked, nothing is fetched."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headway.core.base.errors import ModelFileError
from headway.service.loaders.hub_choice import INDEX, HubReference, choose, shards

COMMIT = re.compile(r"[0-9a-f]{40}")
MOST_SMALL_BYTES = 64 << 20  # of an index: it is read whole
PREFIX = "models--"  # of a repository's folder in the cache


class CachedModel(NamedTuple):
    """One model of the cache: where it lies, or why it is not whole."""

    reference: HubReference
    path: str | None
    problem: str | None = None


def repository_folder(cache_dir: Path, repo: str) -> Path:
    """Where the cache keeps a repository."""
    return cache_dir / f"{PREFIX}{repo.replace('/', '--')}"


def cached_path(reference: HubReference, cache_dir: Path) -> str:
    """Path of what an earlier call brought whole; raises ModelFileError."""
    folder = repository_folder(cache_dir, reference.repo)
    commit = reference.revision
    if not COMMIT.fullmatch(commit):
        ref = folder / "refs" / commit
        commit = ref.read_text().strip() if ref.is_file() else ""
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        raise ModelFileError(str(reference), f"it is not in the cache {cache_dir}")
    names = _names(snapshot)
    try:
        found = choose(reference, names)
        if INDEX in found:
            found += shards(reference, read_index(reference, snapshot / INDEX), names)
    except ModelFileError as error:
        raise ModelFileError(
            str(reference), f"it is not whole in the cache {snapshot} ({error.message})"
        ) from None
    return str(snapshot / found[0] if len(found) == 1 else snapshot)


def cached_models(cache_dir: Path) -> list[CachedModel]:
    """Every model that the cache has, or has a part of, by repository and branch.

    A repository of GGUF files has one entry a file. Repositories without weights of a kind that
    is ever served are left out.
    """
    return [
        _cached(reference, cache_dir)
        for folder in sorted(cache_dir.glob(f"{PREFIX}*"))
        for reference in _references(folder)
    ]


def read_index(reference: HubReference, path: Path) -> dict[str, Any]:
    """Which tensor is in which shard; raises ModelFileError for what is no JSON object."""
    try:
        if path.stat().st_size > MOST_SMALL_BYTES:
            raise ValueError("too long")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFileError(str(reference), f"{INDEX} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFileError(str(reference), f"{INDEX} is no JSON object")
    return found


def _references(folder: Path) -> Iterator[HubReference]:
    """Of one repository: by its branches, and by a commit that no branch leads to."""
    repo = folder.name.removeprefix(PREFIX).replace("--", "/")
    refs = folder / "refs"
    commits = {
        path.relative_to(refs).as_posix(): path.read_text().strip()
        for path in sorted(refs.rglob("*"))
        if path.is_file()
    }
    snapshots = {path.name: path for path in sorted((folder / "snapshots").glob("*"))}
    alone = snapshots.keys() - set(commits.values())
    for revision, commit in (commits | {each: each for each in sorted(alone)}).items():
        names = _names(snapshots[commit]) if commit in snapshots else set()
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            yield HubReference(repo, revision, None)
        else:
            for name in sorted(names):
                if name.lower().endswith(".gguf"):
                    yield HubReference(repo, revision, name)


def _cached(reference: HubReference, cache_dir: Path) -> CachedModel:
    try:
        return CachedModel(reference, cached_path(reference, cache_dir))
    except ModelFileError as error:
        return CachedModel(reference, None, error.message)


def _names(snapshot: Path) -> set[str]:
    """Files of one commit; a name whose blob is gone is no file."""
    return {p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()}
