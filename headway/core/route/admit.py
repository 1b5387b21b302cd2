"""Take a request or refuse it: the bounded queue as the gateway sees it."""

from collections import deque

import msgspec

from headway.core.base.errors import InvalidRequest, QueueFull, ShuttingDown
from headway.core.base.units import Seconds
from headway.core.tenancy.tenant import NUM_CLASSES, SloClass

RATE_WINDOW = Seconds(30.0)  # the drain rate is measured over this long
MIN_RETRY = Seconds(1.0)  # Retry-After is a whole number of seconds
MAX_RETRY = Seconds(60.0)  # longer estimates are guesses
UNKNOWN_RETRY = Seconds(5.0)  # nothing has finished lately, so there is no rate


class AdmitLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be in flight, and how much of it may still wait, as each class sees it."""

    max_choices: int  # running and waiting together; a request with n=4 counts as 4
    max_waiting_tokens: int  # prompt tokens of requests that no step has taken yet


class _Flight:
    """One admitted request, and the part of it that still waits."""

    __slots__ = ("num_choices", "slo_class", "waiting_choices", "waiting_tokens")

    def __init__(self, num_choices: int, slo_class: int) -> None:
        self.slo_class = slo_class
        self.num_choices = num_choices
        self.waiting_choices = num_choices
        self.waiting_tokens = 0  # unknown until it is weighed


class Admitter:
    """Counts what is in flight from the moment of admission and refuses what is too much.

    Only what is as important as the request that comes counts against it, so best effort
    never fills the line for others. A request is admitted before it is tokenized, so that a
    flood costs nothing, and weighed once its prompt is known. It leaves the queue when the
    engine starts it, and the count when it finishes, is cancelled or fails.
    """

    def __init__(self, limits: AdmitLimits) -> None:
        self.limits = limits
        self._flights: dict[str, _Flight] = {}  # in order of arrival
        self._num_choices = [0] * NUM_CLASSES
        self._waiting_choices = 0
        self._waiting_tokens = [0] * NUM_CLASSES
        self._draining_until: Seconds | None = None
        self._drained = _DrainRate()

    @property
    def num_in_flight(self) -> int:
        """Requests admitted and not finished."""
        return len(self._flights)

    @property
    def num_choices(self) -> int:
        """Choices admitted and not finished."""
        return sum(self._num_choices)

    @property
    def num_waiting(self) -> int:
        """Choices that no engine step has taken yet."""
        return self._waiting_choices

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens, as far as known, of the requests that wait."""
        return sum(self._waiting_tokens)

    def admit(
        self,
        request_id: str,
        num_choices: int,
        now: Seconds,
        slo_class: int = SloClass.STANDARD,
    ) -> None:
        """Count the request in; raises QueueFull or ShuttingDown and counts nothing then.

        A request that could never fit, even alone, is an InvalidRequest.
        """
        assert request_id not in self._flights, f"{request_id} is in flight already"
        if self._draining_until is not None:
            wait = max(MIN_RETRY, Seconds(self._draining_until - now))
            raise ShuttingDown("the server is shutting down and takes no new requests", wait)
        if num_choices > self.limits.max_choices:
            raise InvalidRequest(
                f"{num_choices} choices were asked for; this server takes at most "
                f"{self.limits.max_choices} at a time",
                param="n",
            )
        taken = sum(self._num_choices[: slo_class + 1])
        excess = taken + num_choices - self.limits.max_choices
        if excess > 0:
            raise QueueFull(
                f"{taken} sequences are running or waiting and the limit is "
                f"{self.limits.max_choices}; this request adds {num_choices}",
                self._drained.time_for(excess, now),
            )
        self._flights[request_id] = _Flight(num_choices, slo_class)
        self._num_choices[slo_class] += num_choices
        self._waiting_choices += num_choices

    def weigh(
        self, request_id: str, prompt_tokens: int, now: Seconds, *, num_prompts: int = 1
    ) -> None:
        """Tell how long its prompts are together; raises QueueFull when too many tokens wait.

        A single prompt is always taken while no other tokens wait, whatever its length;
        several that could never wait together are an InvalidRequest, as waiting will not
        help. The caller still has to call `finished` after a refusal.
        """
        if num_prompts > 1 and prompt_tokens > self.limits.max_waiting_tokens:
            raise InvalidRequest(
                f"the {num_prompts} prompts have {prompt_tokens} tokens together; this server "
                f"lets at most {self.limits.max_waiting_tokens} wait. Send them in several "
                f"requests",
                param="prompt",
            )
        flight = self._flights[request_id]
        assert flight.waiting_tokens == 0, f"{request_id} was weighed twice"
        waiting = sum(self._waiting_tokens[: flight.slo_class + 1])
        excess = waiting + prompt_tokens - self.limits.max_waiting_tokens
        if excess > 0 and waiting > 0:
            raise QueueFull(
                f"{waiting} prompt tokens are waiting and the limit is "
                f"{self.limits.max_waiting_tokens}; this prompt adds {prompt_tokens}",
                self._drained.time_for(self._choices_ahead(excess), now),
            )
        flight.waiting_tokens = prompt_tokens
        self._waiting_tokens[flight.slo_class] += prompt_tokens

    def started(self, request_id: str, num_choices: int, prompt_tokens: int) -> None:
        """The engine has planned the first tokens of this many of its choices.

        Ids that are not in flight any more are ignored.
        """
        flight = self._flights.get(request_id)
        if flight is None:
            return
        self._leave_queue(
            flight,
            min(num_choices, flight.waiting_choices),
            min(prompt_tokens, flight.waiting_tokens),
        )

    def finished(self, request_id: str, now: Seconds) -> None:
        """It ended, however it did; calling it twice is harmless.

        What never started was refused or cancelled and is no measure of speed.
        """
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return
        self._num_choices[flight.slo_class] -= flight.num_choices
        num_started = flight.num_choices - flight.waiting_choices
        self._leave_queue(flight, flight.waiting_choices, flight.waiting_tokens)
        if num_started:
            self._drained.add(num_started, now)

    def drain(self, until: Seconds) -> None:
        """Refuse everything from now on; clients are told to come back after `until`."""
        self._draining_until = until

    def check(self) -> None:
        """Every sum equals what the requests in flight add up to."""
        flights = self._flights.values()
        for each in range(NUM_CLASSES):
            own = [f for f in flights if f.slo_class == each]
            assert self._num_choices[each] == sum(f.num_choices for f in own)
            assert self._waiting_tokens[each] == sum(f.waiting_tokens for f in own)
        assert self._waiting_choices == sum(f.waiting_choices for f in flights)
        assert 0 <= self._waiting_choices <= self.num_choices

    def _leave_queue(self, flight: _Flight, num_choices: int, prompt_tokens: int) -> None:
        flight.waiting_choices -= num_choices
        flight.waiting_tokens -= prompt_tokens
        self._waiting_choices -= num_choices
        self._waiting_tokens[flight.slo_class] -= prompt_tokens

    def _choices_ahead(self, tokens: int) -> int:
        """Choices that must start before `tokens` fewer prompt tokens wait."""
        choices = 0
        for flight in self._flights.values():
            if tokens <= 0:
                break
            tokens -= flight.waiting_tokens
            choices += flight.waiting_choices
        return max(choices, 1)


class _DrainRate:
    """Choices that left in each of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()  # (whole second, choices)

    def add(self, num_choices: int, now: Seconds) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            num_choices += self._seconds.pop()[1]
        self._seconds.append((second, num_choices))
        self._forget(now)

    def time_for(self, num_choices: int, now: Seconds) -> Seconds:
        """How long until that many more will have left, kept between the two bounds."""
        self._forget(now)
        if not self._seconds:
            return UNKNOWN_RETRY
        span = max(1.0, now - self._seconds[0][0])
        rate = sum(count for _, count in self._seconds) / span
        return Seconds(min(MAX_RETRY, max(MIN_RETRY, num_choices / rate)))

    def _forget(self, now: Seconds) -> None:
        while self._seconds and self._seconds[0][0] < now - RATE_WINDOW:
            self._seconds.popleft()
