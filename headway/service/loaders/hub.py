"""Models of a hub, by their ids: the few files that serving needs, kept in the hub's own cache.

`huggingface_hub` says where the hub is (HF_ENDPOINT), who asks (HF_TOKEN, or `hf auth login`),
whether to ask at all (HF_HUB_OFFLINE) and where files lie (HF_HOME, HF_HUB_CACHE); what other
tools fetched is found and not fetched again. Import this module late: the library takes a
quarter of a second.
"""

import errno
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

from headway.core.base.errors import HeadwayError, StartError
from headway.service.loaders.hub_blob import Blob, checksum_of, fetch_blob
from headway.service.loaders.hub_cache import (
    COMMIT,
    cached_path,
    read_index,
    repository_folder,
)
from headway.service.loaders.hub_choice import INDEX, HubReference, choose, shards
from headway.service.loaders.progress import Progress

CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
ETAG = re.compile(r"[\w-]+")
UNAUTHORIZED = (401, 403)
LEAST_UNAVAILABLE = 500
GB = 1e9

logger = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # else a line a request of the library's


class Hub(NamedTuple):
    """Where models come from and where they are kept; `usual()` is what the environment says."""

    endpoint: str
    cache_dir: Path
    offline: bool = False

    @classmethod
    def usual(cls) -> "Hub":
        """The hub and the cache that the environment names."""
        cache = Path(constants.HF_HUB_CACHE).expanduser()
        return cls(constants.ENDPOINT, cache, constants.HF_HUB_OFFLINE)


class _Unreachable(Exception):
    """No answer from the hub, or one that says that it is down."""


class _Listed(NamedTuple):
    commit: str
    files: dict[str, tuple[int, str | None]]  # name -> bytes, checksum


def fetch_from_hub(
    reference: HubReference, progress: Progress, hub: Hub | None = None, *, verify: bool = False
) -> str:
    """Path of a model: a folder, or the GGUF file; what is not in the cache is fetched first.

    A branch is looked up at each call, so that a newer commit is fetched; a commit that is here
    whole asks for nothing, and a hub that cannot be reached leaves what is here. With `verify`
    the files that were here already are hashed too. Raises StartError, in one line.
    """
    hub = hub or Hub.usual()
    if hub.offline or (COMMIT.fullmatch(reference.revision) and not verify):
        try:
            return cached_path(reference, hub.cache_dir)
        except HeadwayError as error:
            if hub.offline:
                raise StartError(
                    f"{error.message}; HF_HUB_OFFLINE is set: unset it, or fetch the model where "
                    "there is a network and bring the folder HF_HOME"
                ) from None
    try:
        listed = _listed(reference, hub)
    except _Unreachable as unreachable:
        return _despite(reference, hub, unreachable)
    try:
        return _Fetch(reference, hub, listed, progress, verify=verify).run()
    except (_Unreachable, httpx2.TransportError) as error:
        raise StartError(
            f"{reference}: {hub.endpoint} stopped answering: {_first_line(error)}; what is here "
            "is kept, the same command goes on from there"
        ) from None
    except OSError as error:
        raise _of_disk(reference, hub, error) from None


def _despite(reference: HubReference, hub: Hub, unreachable: _Unreachable) -> str:
    try:
        path = cached_path(reference, hub.cache_dir)
    except HeadwayError as error:
        raise StartError(
            f"{reference}: cannot reach {hub.endpoint} ({unreachable}), and {error.message}; "
            "check the network, HF_ENDPOINT and proxies"
        ) from None
    logger.warning("hub_unreachable", extra={"model": str(reference), "reason": str(unreachable)})
    return path


def _listed(reference: HubReference, hub: Hub) -> _Listed:
    api = HfApi(endpoint=hub.endpoint, library_name="headway")
    info = _asked(
        reference,
        hub,
        lambda: api.model_info(
            reference.repo, revision=reference.revision, files_metadata=True, timeout=30.0
        ),
    )
    files = {}
    for each in info.siblings or ():
        if ".." in each.rfilename.split("/") or each.rfilename.startswith("/"):
            continue  # of a repository that wants to write elsewhere
        checksum = each.lfs.sha256 if each.lfs is not None else each.blob_id
        known = checksum is not None and CHECKSUM.fullmatch(checksum) is not None
        files[each.rfilename] = (each.size or 0, checksum if known else None)
    if info.sha is None:
        raise StartError(f"{reference}: {hub.endpoint} does not say which commit this is")
    return _Listed(info.sha, files)


def _asked(reference: HubReference, hub: Hub, ask: Callable[[], Any]) -> Any:
    """What the hub says; its refusals in one line, its silence as _Unreachable."""
    try:
        return ask()
    except GatedRepoError:
        problem = (
            f"is gated at {hub.endpoint}: accept its terms on its page there, and set HF_TOKEN "
            "to a token of that account"
        )
    except RevisionNotFoundError:
        problem = f"has no revision {reference.revision!r} at {hub.endpoint}"
    except RepositoryNotFoundError as error:
        refused = error.response.status_code in UNAUTHORIZED
        hint = "no such repository, or a private one: check the name, and HF_TOKEN"
        problem = f"{hint} ({hub.endpoint} {'refused' if refused else 'does not know'} it)"
    except HFValidationError as error:
        problem = f"is no id of a model: {_first_line(error)}"
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status >= LEAST_UNAVAILABLE:
            raise _Unreachable(f"status {status}") from None
        token = "; check HF_TOKEN" if status in UNAUTHORIZED else ""
        problem = f"{hub.endpoint} answered {status}: {_first_line(error)}{token}"
    except (httpx2.TransportError, OfflineModeIsEnabled) as error:
        raise _Unreachable(_first_line(error)) from None
    raise StartError(f"{reference}: {problem}")


class _Fetch:
    """One model on its way into the cache."""

    def __init__(
        self,
        reference: HubReference,
        hub: Hub,
        listed: _Listed,
        progress: Progress,
        *,
        verify: bool,
    ) -> None:
        self._reference = reference
        self._hub = hub
        self._listed = listed
        self._progress = progress
        self._verify = verify
        self._done = 0
        self._fetched = False

    def run(self) -> str:
        """The model's path, once all of it is here."""
        files = self._listed.files
        names = choose(self._reference, files)
        if INDEX in names:
            self._refuse_no_space([INDEX])
            index = read_index(self._reference, self._bring(INDEX, 0, files[INDEX][0]))
            names += shards(self._reference, index, files)
        self._refuse_no_space(names)
        total = sum(files[name][0] for name in names)
        for name in names:
            path = self._bring(name, self._done, total)
            self._done += files[name][0]
        self._remember_branch()
        if self._fetched:
            self._progress(self._job(), total, total)
        return str(path if self._reference.file or len(names) == 1 else path.parent)

    def _job(self) -> str:
        return f"fetching {self._reference}"

    def _bring(self, name: str, before: int, total: int) -> Path:
        """The file's path in the cache's folder of this commit."""
        num_bytes, checksum = self._listed.files[name]
        here = self._here(name)
        if here is not None and (not self._verify or self._is_right(name, here, checksum)):
            return here
        self._fetched = True
        url = hf_hub_url(
            self._reference.repo,
            name,
            revision=self._listed.commit,
            endpoint=self._hub.endpoint,
        )
        headers = build_hf_headers(library_name="headway")
        seen = _asked(
            self._reference, self._hub, lambda: get_hf_file_metadata(url, headers=headers)
        )
        etag = seen.etag or ""
        # It becomes the name of a file.
        if not ETAG.fullmatch(etag) or not CHECKSUM.fullmatch(checksum or etag):
            raise StartError(
                f"{self._reference}: {self._hub.endpoint} states no checksum or ETag of {name}, "
                "so it cannot be checked; use another HF_ENDPOINT"
            )
        blob = Blob(
            f"{self._reference}: {name}",
            url,
            num_bytes or seen.size or 0,
            checksum or etag,
        )
        job, most = self._job(), max(total, 1)
        _asked(
            self._reference,
            self._hub,
            lambda: fetch_blob(
                blob,
                self._folder() / "blobs" / etag,
                headers,
                lambda have: self._progress(job, min(before + have, most - 1), most),
            ),
        )
        return self._pointed_to(name)

    def _pointed_to(self, name: str) -> Path:
        """The blob's name in the commit's folder, which the hub's library makes."""
        found = _asked(
            self._reference,
            self._hub,
            lambda: hf_hub_download(
                self._reference.repo,
                name,
                revision=self._listed.commit,
                cache_dir=self._hub.cache_dir,
                endpoint=self._hub.endpoint,
            ),
        )
        return Path(found)

    def _here(self, name: str) -> Path | None:
        found = try_to_load_from_cache(
            self._reference.repo, name, self._hub.cache_dir, self._listed.commit
        )
        return Path(found) if isinstance(found, str) else None

    def _is_right(self, name: str, path: Path, checksum: str | None) -> bool:
        self._progress(f"checking {name}", 0, 1)
        right = checksum is None or checksum_of(path, checksum) == checksum
        self._progress(f"checking {name}", 1, 1)
        if not right:
            path.resolve().unlink()  # the blob; without it its name in the folder leads nowhere
            path.unlink(missing_ok=True)
        return right

    def _remember_branch(self) -> None:
        """For a later call without a hub; written last, so that it names what is here whole."""
        if not COMMIT.fullmatch(self._reference.revision):
            ref = self._folder() / "refs" / self._reference.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self._listed.commit)

    def _folder(self) -> Path:
        return repository_folder(self._hub.cache_dir, self._reference.repo)

    def _refuse_no_space(self, names: list[str]) -> None:
        self._hub.cache_dir.mkdir(parents=True, exist_ok=True)
        needed = sum(self._listed.files[name][0] for name in names if self._here(name) is None)
        free = shutil.disk_usage(self._hub.cache_dir).free
        parts = sum(part.stat().st_size for part in self._folder().glob("blobs/*.incomplete"))
        if needed - parts > free:
            raise StartError(
                f"{self._reference} takes {needed / GB:.1f} GB more in {self._hub.cache_dir}, "
                f"where {free / GB:.1f} GB are free; free space there, or set HF_HOME"
            )


def _of_disk(reference: HubReference, hub: Hub, error: OSError) -> StartError:
    if isinstance(error, LocalEntryNotFoundError | HfHubHTTPError):
        return StartError(f"{reference}: {_first_line(error)}")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "no space is left; free some" if full else f"{error.strerror or error}"
    return StartError(
        f"{reference}: cannot write to the cache {hub.cache_dir}: {what}, or set HF_HOME"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
