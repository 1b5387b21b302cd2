"""Asks a server how it is: its health, its load, and what its model can hold."""

import asyncio
import logging

import msgspec

from headway.core.base.errors import HeadwayError
from headway.service.upstream.http1 import NotTrusted
from headway.service.upstream.outgoing import outgoing_head, probe_head
from headway.service.upstream.replica import UpstreamReplica
from headway.service.upstream.settings import Kind, UpstreamSettings
from headway.service.upstream.told import INSTEAD, NAMES, Told, read_told

log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 16 * 1024 * 1024
# Calls by which a server of this kind forgets a request; both also do when its connection closes.
ABORTS = {Kind.SGLANG: "/abort_request", Kind.VLLM: "/inference/v1/abort_requests"}


class Prober:
    """Probes the replicas of one pool."""

    def __init__(self, settings: UpstreamSettings, key: str | None) -> None:
        self._settings = settings
        self._key = key

    async def problem_of(self, replica: UpstreamReplica) -> str:
        """What is wrong with it, in a few words; "" for nothing."""
        path = self._settings.probe_path
        models = f"{replica.endpoint.api}/models"
        try:
            status, _ = await self._get(
                replica, models if path is None else self._at(replica, path)
            )
        except NotTrusted as error:
            return error.advice
        except HeadwayError as error:
            return error.message
        if status == 200:
            return ""
        if status in {401, 403}:
            return f"it does not take this gateway's key (status {status})"
        return f"its health has status {status}"

    async def told(self, replica: UpstreamReplica) -> Told | None:
        """Its load, where its kind tells it; None where it does not answer."""
        if self._settings.kind not in NAMES:
            return None
        found = read_told(await self._page(replica, "/metrics"), self._settings.kind)
        instead = INSTEAD.get(self._settings.kind)
        if found is None and instead is not None:
            path, read = instead
            found = read(await self._page(replica, path))
        return found

    async def _page(self, replica: UpstreamReplica, path: str) -> bytes:
        """Of a GET beside its API; nothing where it has none."""
        try:
            status, page = await self._get(replica, self._at(replica, path))
        except HeadwayError:
            return b""
        return page if status == 200 else b""

    async def context_length(self, replica: UpstreamReplica) -> int | None:
        """Tokens that its model takes, as its list of models says: all kinds but `openai` do."""
        try:
            status, page = await self._get(replica, f"{replica.endpoint.api}/models")
            models = msgspec.json.decode(page)["data"] if status == 200 else []
            lengths = [
                each.get("max_model_len") or (each.get("meta") or {}).get("n_ctx")
                for each in models
                if each.get("id") == self._settings.upstream_model
            ]
        except (HeadwayError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
            return None
        return next((each for each in lengths if isinstance(each, int) and each > 0), None)

    async def post(
        self, replica: UpstreamReplica, path: str, body: bytes, limit: float | None = None
    ) -> tuple[int, bytes]:
        """Another call of its own, at this path beside its API: status and body.

        limit  seconds; None: those of a probe. Raises HeadwayError where it does not answer.
        """
        return await self._post(replica, self._at(replica, path), body, limit)

    async def abort(self, replica: UpstreamReplica, request_id: str) -> None:
        """Have it forget a request whose connection was closed before its end."""
        kind = self._settings.kind
        ids: object = {"rid": request_id}
        if kind is Kind.VLLM:
            ids = {"request_ids": [f"chatcmpl-{request_id}", f"cmpl-{request_id}"]}
        try:
            status, _ = await self.post(replica, ABORTS[kind], msgspec.json.encode(ids))
        except HeadwayError as error:
            log.debug("upstream_abort_failed", extra={"reason": error.message})
            return
        log.debug("upstream_abort", extra={"replica": replica.label, "status": status})

    def _at(self, replica: UpstreamReplica, path: str) -> str:
        return f"{replica.endpoint.root}{path}"

    async def _get(self, replica: UpstreamReplica, path: str) -> tuple[int, bytes]:
        head = probe_head(path, self._settings, self._key)
        return await self._ask(replica, head, b"")

    async def _post(
        self, replica: UpstreamReplica, path: str, body: bytes, limit: float | None
    ) -> tuple[int, bytes]:
        endpoint = msgspec.structs.replace(replica.endpoint, api="")
        head = outgoing_head(endpoint, path, self._settings, self._key)
        return await self._ask(replica, head, body, limit)

    async def _ask(
        self, replica: UpstreamReplica, head: str, body: bytes, limit: float | None = None
    ) -> tuple[int, bytes]:
        limit = self._settings.timeouts.probe if limit is None else limit
        try:
            async with asyncio.timeout(limit):
                reply = await replica.client.send(head, body, limit)
                try:
                    return reply.status, await reply.whole(MAX_PAGE_BYTES)
                finally:
                    reply.close()
        except TimeoutError:
            raise _Silent(f"it does not answer within {limit:g} s") from None


class _Silent(HeadwayError):
    """No answer to a probe."""
