"""Models that other servers answer for, opened: their keys and certificates read, nothing sent."""

import hashlib
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway.app.settings import Settings
from headway.core.base.clock import Clock
from headway.core.base.errors import InvalidSetting
from headway.service.upstream.http1 import tls_context
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import Tls, UpstreamSettings, read_key


class OpenedUpstream(NamedTuple):
    """One model, ready to be sent to."""

    place: int  # among all models: the first is the default
    settings: UpstreamSettings
    key: str | None
    tls: ssl.SSLContext | None
    files: bytes = b""  # digest of its certificates, as they were read

    def is_as(self, other: object) -> bool:
        """Whether both are the same model, and their files hold the same; wherever they stand."""
        return isinstance(other, OpenedUpstream) and other[1:3] + other[4:] == self[1:3] + self[4:]

    def pool(self, clock: Clock) -> UpstreamPool:
        """Its pool, not started."""
        return UpstreamPool(self.settings, self.key, self.tls, clock)


def open_upstreams(models: Sequence[Settings]) -> list[OpenedUpstream]:
    """Those of the models that other servers answer for; raises InvalidSetting."""
    return [
        _opened(each.upstream, index)
        for index, each in enumerate(models)
        if each.upstream is not None
    ]


def _opened(settings: UpstreamSettings, index: int) -> OpenedUpstream:
    where = f"models[{index}]"
    try:
        key = read_key(settings, os.environ.items())
    except InvalidSetting as error:
        raise InvalidSetting(f"{where}.{error.param}", _problem(error)) from None
    if not any(url.startswith("https:") for url in settings.urls):
        return OpenedUpstream(index, settings, key, None)
    _check_files(settings.tls, f"{where}.upstream.tls")
    try:
        return OpenedUpstream(
            index, settings, key, tls_context(settings.tls), _digest_of(settings.tls)
        )
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"{where}.upstream.tls",
            f"its files hold no certificates that can be used: {error.strerror or error}",
        ) from None


def _check_files(tls: Tls, where: str) -> None:
    """Raise InvalidSetting for the first file that cannot be read."""
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(tls, name)
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}"
            raise InvalidSetting(f"{where}.{name}", problem) from None


def _digest_of(tls: Tls) -> bytes:
    found = hashlib.sha256()
    for path in (tls.ca_file, tls.cert_file, tls.key_file):
        found.update(hashlib.sha256(Path(path).read_bytes() if path else b"").digest())
    return found.digest()


def _problem(error: InvalidSetting) -> str:
    return error.message.removeprefix(f"{error.param}: ")
