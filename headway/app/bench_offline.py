"""Batches of requests through an engine in this process, without HTTP.

The loop is the replica's own `Driver`; only its outbox is replaced, by one that measures and
hands it the next batch when the last one has ended.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import StartError
from headway.core.base.units import Seconds
from headway.core.messages.health import StepReport
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Sampling, Stop, Submit
from headway.service.replica.driver import Driver
from headway.service.replica.server import Loaded

Batch = Sequence[EngineRequest]


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch took; all its requests were there at its start."""

    seconds: float  # from handing over the requests to the last one's end
    num_requests: int
    prompt_tokens: int
    cached_tokens: int  # of them, not computed
    output_tokens: int


def greedy_request(request_id: str, prompt: Sequence[int], max_tokens: int) -> EngineRequest:
    """A request of exactly `max_tokens` output tokens."""
    sampling = Sampling(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    return EngineRequest(id=request_id, prompt=tuple(prompt), sampling=sampling)


def run_batches(
    loaded: Loaded,
    clock: Clock,
    batches: Sequence[Batch],
    *,
    on_request: Callable[[], None] = lambda: None,
    on_batch: Callable[[], None] = lambda: None,
) -> list[BatchResult]:
    """One batch after the other; closes the executor. Request ids are unique over all of them.

    on_request, on_batch  told of each end, for progress
    Raises StartError when the engine refuses a request.
    """
    outbox = _Outbox(clock, batches, on_request, on_batch)
    driver = Driver(loaded.engine, loaded.executor, outbox.take, clock)
    outbox.feed(driver)
    driver.run()
    if outbox.refused is not None:
        raise StartError(outbox.refused)
    return outbox.results


class _Outbox:
    """Hears the driver, in its own thread, and gives it what comes next."""

    def __init__(
        self,
        clock: Clock,
        batches: Sequence[Batch],
        on_request: Callable[[], None],
        on_batch: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._batches: Iterator[Batch] = iter(batches)
        self._on_request = on_request
        self._on_batch = on_batch
        self._driver: Driver | None = None
        self._open = 0
        self._ends: list[Finished] = []
        self._began = Seconds(0.0)
        self.results: list[BatchResult] = []
        self.refused: str | None = None

    def feed(self, driver: Driver) -> None:
        """Hand the next batch over, or tell the driver to stop."""
        self._driver = driver
        batch = next(self._batches, None)
        if batch is None or self.refused is not None:
            driver.put(Stop())
            return
        assert batch, "a batch needs a request"
        self._ends, self._open, self._began = [], len(batch), self._clock.now()
        for request in batch:
            driver.put(Submit(request=request))

    def take(self, report: StepReport) -> None:
        """What the driver sends."""
        for event in report.events:
            if isinstance(event, Finished):
                self._finished(event)
        if self._open == 0 and self._ends and self._driver is not None:
            self._close_batch()
            self.feed(self._driver)

    def _finished(self, event: Finished) -> None:
        self._open -= 1
        self._ends.append(event)
        if event.reason is FinishReason.ERROR:
            self.refused = event.error or "the engine refused a request"
        self._on_request()

    def _close_batch(self) -> None:
        usages = [end.usage for end in self._ends]
        self.results.append(
            BatchResult(
                seconds=self._clock.now() - self._began,
                num_requests=len(usages),
                prompt_tokens=sum(usage.prompt_tokens for usage in usages),
                cached_tokens=sum(usage.cached_tokens for usage in usages),
                output_tokens=sum(usage.completion_tokens for usage in usages),
            )
        )
        self._ends = []
        self._on_batch()
