"""How much work each replica of a pool has before it: what it said last, and what was sent since.

Work is in seconds: prompt tokens that wait over the rate at which prompts are computed, and answers
over the rate at which they are generated, both as measured. Rates are means over the pool, whose
replicas are taken to be of one kind: those of one replica rise with its load, and would hide it.
One that is slower all the same keeps what it has for longer, and gets less.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus

# Until something was measured; only their proportion matters then, the same for all replicas.
UNKNOWN_PREFILL = 1000.0  # tokens a second
UNKNOWN_DECODE = 50.0
UNKNOWN_ANSWER = 64.0  # tokens
FADE = 0.95  # weight of what was measured before
# A request that is sent while step s is the last one known is not in the report of step s + 1 if
# that was being computed; that of s + 2 has it.
STEPS_UNTIL_KNOWN = 2


@dataclass(slots=True)
class _Sent:
    """A request on its way, as long as its replica's status may not have it."""

    tokens: int
    choices: int
    at_step: int


@dataclass(slots=True)
class _Load:
    """One replica."""

    status: ReplicaStatus | None = None
    told: float = 0.0  # when
    decode_rate: float = 0.0  # tokens a second; 0: not measured
    last_sent: int = 0  # number of the last request that it got, of all that the pool was sent
    open: dict[str, int] = field(default_factory=dict)  # request -> its choices
    unknown: dict[str, _Sent] = field(default_factory=dict)  # those that the status may lack


class LoadBook:
    """Counts, for the replicas of one pool."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}
        self._num_sent = 0
        self._answer = UNKNOWN_ANSWER  # mean tokens of an answer, lately

    def told(self, replica: str, status: ReplicaStatus, now: Seconds) -> None:
        """A replica has told its state."""
        load = self._loads.setdefault(replica, _Load())
        before, since_s = load.status, now - load.told
        if before is not None and before.num_running and since_s > 0.0:
            rate = (status.generated_tokens - before.generated_tokens) / since_s
            if rate > 0.0:
                known = load.decode_rate
                load.decode_rate = FADE * known + (1.0 - FADE) * rate if known else rate
        load.status, load.told = status, now
        known_by = status.num_steps - STEPS_UNTIL_KNOWN
        load.unknown = {k: v for k, v in load.unknown.items() if v.at_step > known_by}

    def sent(self, replica: str, request_id: str, tokens: int, choices: int) -> None:
        """A request goes to the replica."""
        load = self._loads.setdefault(replica, _Load())
        at_step = load.status.num_steps if load.status is not None else 0
        self._num_sent += 1
        load.last_sent = self._num_sent
        load.open[request_id] = choices
        load.unknown[request_id] = _Sent(tokens, choices, at_step)

    def started(self, replica: str, request_id: str) -> None:
        """The replica computes it: from the next status on it counts there."""
        load = self._loads.get(replica)
        if load is not None:
            load.unknown.pop(request_id, None)

    def ended(self, replica: str, request_id: str, answer_tokens: int = 0) -> None:
        """The request has ended there, however it did; harmless when it is not known.

        answer_tokens  of all its choices; 0: it says nothing about how long answers are
        """
        load = self._loads.get(replica)
        choices = load.open.pop(request_id, None) if load is not None else None
        if load is None or choices is None:
            return
        load.unknown.pop(request_id, None)
        if answer_tokens:
            self._answer += (1.0 - FADE) * (answer_tokens / choices - self._answer)

    def lost(self, replica: str) -> None:
        """Its process has gone, with all that it had."""
        load = self._loads.get(replica)
        if load is not None:
            self._loads[replica] = _Load(last_sent=load.last_sent, decode_rate=load.decode_rate)

    def in_flight(self, replica: str) -> int:
        """Requests sent to it that have not ended."""
        load = self._loads.get(replica)
        return len(load.open) if load is not None else 0

    def last_sent(self, replica: str) -> int:
        """Number of the last request that it got, of all that the pool was sent; 0: none."""
        load = self._loads.get(replica)
        return load.last_sent if load is not None else 0

    def work(self, replica: str) -> Seconds:
        """How long it would take to end what it has."""
        load = self._loads.get(replica)
        if load is None:
            return Seconds(0.0)
        tokens = sum(sent.tokens for sent in load.unknown.values())
        choices = sum(sent.choices for sent in load.unknown.values())
        if load.status is not None:
            tokens += load.status.waiting_tokens
            choices += load.status.num_running + load.status.num_waiting
        return Seconds(tokens / self.prefill_rate + choices * self.answer_s)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second; > 0."""
        statuses = (load.status for load in self._loads.values())
        return _mean((each.prefill_rate for each in statuses if each), UNKNOWN_PREFILL)

    @property
    def answer_s(self) -> Seconds:
        """What one more answer adds to a replica's work."""
        rates = (load.decode_rate for load in self._loads.values())
        return Seconds(self._answer / _mean(rates, UNKNOWN_DECODE))


def _mean(rates: Iterable[float], otherwise: float) -> float:
    """Of those that were measured."""
    known = [rate for rate in rates if rate > 0.0]
    return sum(known) / len(known) if known else otherwise
