"""One request through a pool of other servers: sent, tried elsewhere, answered, ended once."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import (
    CapacityError,
    HeadwayError,
    ReplicaNotReady,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
)
from headway.core.base.units import Seconds
from headway.core.messages.path import Finished
from headway.core.route.admit import Admitter
from headway.core.route.retry import Tries
from headway.core.route.text_prefix import text_names
from headway.core.route.upstream_line import Newcomer
from headway.core.route.upstream_metrics import (
    UPSTREAM_ATTEMPTS,
    UPSTREAM_ESTIMATED,
    UPSTREAM_RETRIES,
)
from headway.service.observe.prometheus import Labelled
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.openai.schema import Asker
from headway.service.upstream.answers import Shown
from headway.service.upstream.attempt import Attempt, Refused
from headway.service.upstream.ends import Outlet, Sent, Witness
from headway.service.upstream.failures import Refusal
from headway.service.upstream.gather import Gathered, as_stream
from headway.service.upstream.outgoing import (
    TARGETS,
    check_modalities,
    header_lines,
    most_tokens,
    outgoing_body,
    outgoing_head,
    salt_of,
)
from headway.service.upstream.pool import UpstreamPool, Wish
from headway.service.upstream.replica import Lease, UpstreamReplica
from headway.service.upstream.settings import UpstreamSettings
from headway.service.upstream.token_calls import TokenCalls

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4  # of text, where nobody counts
RETRY_AFTER = Seconds(1.0)


class Call(NamedTuple):
    """One request, ready to be forwarded."""

    id: str  # the gateway's own
    endpoint: str  # a key of TARGETS
    request: ForwardedRequest
    shown: Shown
    passed: Mapping[str, str] = {}  # headers of the client's that go on
    bound: int | None = None  # most tokens of an answer, where the route says so
    counts_exactly: bool = False  # a limit or a price depends on the prompt's tokens


class Forwarder:
    """Takes requests for one model through its pool."""

    def __init__(
        self, pool: UpstreamPool, admitter: Admitter, clock: Clock, exporter: Labelled
    ) -> None:
        self._pool = pool
        self._settings = pool.settings
        self._admitter = admitter
        self._clock = clock
        self._exporter = exporter
        self._heads: dict[tuple[str, str], str] = {}  # by replica and endpoint
        self.tokens = TokenCalls(pool)

    async def run(self, call: Call, outlet: Outlet, witness: Witness) -> None:
        """Answer it; raises what the client is to be told.

        However it ends, no upstream works on it afterwards, as far as closing its connection and
        its own abort call can tell it.
        """
        request, limit = call.request, self._settings.timeouts.total
        check_modalities(request, self._settings)
        num_choices = request.n * request.num_prompts
        slo_class = request.asker.slo_class
        self._admitter.admit(call.id, num_choices, self._clock.now(), slo_class)
        try:
            async with asyncio.timeout(limit):
                await self._run(call, outlet, witness)
        except TimeoutError:
            raise UpstreamTimeout(
                f"the answer was not complete within {limit:g} s", RETRY_AFTER
            ) from None
        finally:
            self._admitter.finished(call.id, self._clock.now())

    async def _run(self, call: Call, outlet: Outlet, witness: Witness) -> None:
        request, settings = call.request, self._settings
        began = self._clock.now()
        prompt_tokens = await self._prompt_tokens(call)
        most = witness.reserved_for(most_tokens(request, settings, call.bound), request.max_tokens)
        num_choices = request.n * request.num_prompts
        await witness.sized(prompt_tokens, most * num_choices)
        streamed = as_stream(request) if request.is_watched and not request.stream else None
        body = outgoing_body(streamed or request, settings, call.id, call.bound)
        wish = Wish(
            self._names(request), _newcomer(request.asker, prompt_tokens, self._clock.now() - began)
        )
        self._pool.budget.came(began)
        tries, tried = Tries(self._pool.budget), set[str]()
        error: HeadwayError | None = None
        while True:
            with await self._lease(wish, tried, error) as lease:
                label = lease.replica.label
                sent = Sent(call.id, label, prompt_tokens, most, num_choices, tries.count)
                witness.forwarded(sent)
                self._admitter.started(call.id, num_choices, prompt_tokens)
                attempt = Attempt(sent, lease, settings, self._clock, call.shown)
                gathered = None if streamed is None else Gathered()
                out = outlet if gathered is None else _Gathering(gathered, outlet, settings)
                try:
                    data, ended = await self._attempt(call, body, attempt, out, witness)
                except (Refused, HeadwayError) as failed:
                    has_begun = attempt.has_begun and gathered is None
                    error = self._failed(call, lease, failed, tries, has_begun=has_begun)
                    tried.add(label)
                    continue
                except BaseException:
                    self._count(lease, "cancelled")
                    self._pool.abort(lease.replica, call.id)
                    raise
                self._succeeded(attempt, ended)
                if gathered is not None:
                    data = gathered.body(ended.usage)
            return await self._end(call, outlet, witness, data, self._timed(ended, attempt, began))

    async def _lease(self, wish: Wish, tried: set[str], error: HeadwayError | None) -> Lease:
        """A place; where there is no further one, the error of the last try."""
        try:
            return await self._pool.lease(wish, tried)
        except (CapacityError, ReplicaNotReady):
            if error is None:
                raise
            raise error from None

    async def _attempt(
        self, call: Call, body: bytes, attempt: Attempt, outlet: Outlet, witness: Witness
    ) -> tuple[bytes, Finished]:
        """Try it at one replica; the answer's last bytes and how it ended."""
        # Who reads both logs finds the request by this; vLLM takes it for its own id.
        own = {"x-request-id": call.id, **call.passed}
        head = self._head(attempt.lease.replica, call.endpoint) + header_lines(own)
        try:
            if not call.request.stream and not isinstance(outlet, _Gathering):
                return await attempt.whole(head, body)
            await attempt.stream(head, body, outlet, witness)
            return attempt.last(int(time.time()))
        finally:
            attempt.close()

    def _head(self, replica: UpstreamReplica, endpoint: str) -> str:
        """What all requests to one replica have in common."""
        key = (replica.label, endpoint)
        if key not in self._heads:
            path = TARGETS[endpoint].path
            made = outgoing_head(replica.endpoint, path, self._settings, self._pool.key)
            self._heads[key] = made
        return self._heads[key]

    def _succeeded(self, attempt: Attempt, ended: Finished) -> None:
        lease = attempt.lease
        lease.replica.breaker.succeeded(self._clock.now())
        lease.num_tokens = ended.usage.completion_tokens
        if attempt.first_at is not None:
            self._pool.line.began(attempt.first_at - attempt.began)
        self._count(lease, "ok")

    def _failed(
        self,
        call: Call,
        lease: Lease,
        failed: Refused | HeadwayError,
        tries: Tries,
        *,
        has_begun: bool,
    ) -> HeadwayError:
        """Note a failed try; returns if there may be another, else raises what the client gets."""
        error, is_retried, is_failure, detail, cools_s = _refusal(failed)
        now = self._clock.now()
        lease.replica.cool(cools_s, now)
        if is_failure:
            lease.replica.breaker.failed(now)
        else:
            lease.replica.breaker.succeeded(now)
        self._count(lease, "failed" if is_failure else ("busy" if is_retried else "refused"))
        if isinstance(failed, UpstreamError):  # a refusal has ended by itself
            self._pool.abort(lease.replica, call.id)
        goes_on = is_retried and not has_begun and tries.may_go_on(now)
        if is_failure or is_retried:
            log.warning(
                "upstream_failed",
                extra={
                    "request_id": call.id,
                    "model": call.shown.model,
                    "replica": lease.replica.label,
                    "reason": detail,
                    "had_begun": has_begun,
                    "tried_again": goes_on,
                },
            )
        if not goes_on:
            raise error
        self._exporter.add(UPSTREAM_RETRIES)
        return error

    async def _end(
        self, call: Call, outlet: Outlet, witness: Witness, data: bytes, ended: Finished
    ) -> None:
        if ended.usage.is_estimated:
            self._exporter.add(UPSTREAM_ESTIMATED)
        witness.saw(ended)
        # Its place is free before its last bytes leave: whoever has read them may ask again.
        self._admitter.finished(call.id, self._clock.now())
        if call.request.stream:
            await outlet.stream(data, ended.usage.completion_tokens, is_last=True)
        else:
            await outlet.whole(data, ended.usage.completion_tokens)

    def _timed(self, ended: Finished, attempt: Attempt, began: Seconds) -> Finished:
        """With the times that can be seen from here: waiting, to the first event, and after it."""
        now = self._clock.now()
        first = now if attempt.first_at is None else attempt.first_at
        usage = msgspec.structs.replace(
            ended.usage,
            queue_s=max(0.0, attempt.began - began),
            prefill_s=max(0.0, first - attempt.began),
            decode_s=max(0.0, now - first),
        )
        return msgspec.structs.replace(ended, usage=usage)

    def _count(self, lease: Lease, outcome: str) -> None:
        self._exporter.add(UPSTREAM_ATTEMPTS, replica=lease.replica.label, outcome=outcome)

    def _names(self, request: ForwardedRequest) -> Sequence[bytes]:
        """Of its text's beginning, where they decide anything."""
        if len(self._pool.replicas) == 1:
            return ()
        return text_names(request.texts(), salt_of(request))

    async def _prompt_tokens(self, call: Call) -> int:
        """Tokens of the prompt: asked for where they matter and can be, else by its bytes."""
        counted = await self.tokens.count(call.request) if call.counts_exactly else None
        if counted is not None:
            return counted
        return max(1, call.request.prompt_bytes() // BYTES_PER_TOKEN)


class _Gathering:
    """Where the stream of an answer goes that its client wants whole."""

    def __init__(self, gathered: Gathered, outlet: Outlet, settings: UpstreamSettings) -> None:
        self._gathered = gathered
        self._outlet = outlet
        self._most = settings.max_answer_bytes

    def push(self, data: bytes, num_tokens: int) -> bool:
        """Left to `stream`, which may refuse it."""
        return False

    async def stream(self, data: bytes, num_tokens: int, *, is_last: bool) -> None:
        """Put together; raises UpstreamBroken for more than may be kept."""
        self._gathered.feed(data)
        if self._gathered.size > self._most:
            raise UpstreamBroken(f"its answer has more than {self._most} bytes", RETRY_AFTER)
        if num_tokens:
            self._outlet.begun()

    async def whole(self, body: bytes, num_tokens: int) -> None:
        """It was asked for as a stream."""
        raise AssertionError("a stream is never whole")

    def begun(self) -> None:
        """Told by `stream`."""


def _newcomer(asker: Asker, prompt_tokens: int, passed: float) -> Newcomer:
    """Its place in the line goes by that; `passed` are the seconds since it came."""
    tenant, budget = asker.tenant, asker.first_token_budget_s
    return Newcomer(
        slo_class=asker.slo_class,
        tenant=tenant.name,
        weight=tenant.weight,
        tokens=prompt_tokens,
        budget_s=None if budget is None else max(0.0, budget - passed),
    )


def _refusal(failed: Refused | HeadwayError) -> Refusal:
    """What a failed try means; an error event may be the request's own fault."""
    if isinstance(failed, Refused):
        return failed.refusal
    is_theirs = isinstance(failed, UpstreamError)
    return Refusal(failed, is_theirs, is_theirs, failed.message if is_theirs else "")
