"""Seconds of a step, learned from the steps that were measured.

decode part    base + rows * a + pairs * b      from steps without prompts
prefill part   tokens * c + pairs * d           from what steps with prompts take longer
"""

from headway.core.base.units import Seconds
from headway.core.cost.least_squares import LeastSquares
from headway.core.cost.work import StepWork

DECAY = 0.95  # an observation counts half after 14 more
KILO = 1e-3  # pairs are counted in thousands, so that all unknowns are of one size
# Before anything else is known, a token of a prompt costs as much as this many pairs: a small
# model's share, so that long contexts are cut too small rather than too large at first.
PAIRS_A_TOKEN = 1500
FEW = 8  # measured steps after which one that takes much longer is taken for a disturbance
OUTLIER = 3.0  # times the prediction


class FittedCost:
    """Learns from `observe`; knows nothing of the model or the machine beforehand."""

    def __init__(self) -> None:
        self._decode = LeastSquares((0.0, 0.0, 0.0), (1e-3, 1e-3, 1e-3), DECAY)
        # The second unknown is how far pairs cost more than the assumption says.
        self._prefill = LeastSquares((0.0, 0.0), (1e-3, 1e-1), DECAY)
        self._num_decode = self._num_prefill = 0
        self._decode_weights = (0.0, 0.0, 0.0)
        self._prefill_weights = (0.0, 0.0)

    @property
    def knows_prefill(self) -> bool:
        """False until a step with a prompt was measured."""
        return self._num_prefill > 0

    def observe(self, work: StepWork, took: Seconds) -> None:
        """A step with that work took so long."""
        if not work.prefill_tokens:
            took = self._without_outlier(self.seconds(work), took, self._num_decode)
            self._decode.add(_decode_features(work), took)
            base, rows, pairs = self._decode.solve()
            self._decode_weights = (base, rows, pairs)
            self._num_decode += 1
            return
        took = self._without_outlier(self.seconds(work), took, self._num_prefill)
        rest = max(0.0, took - self.decode_seconds(work))
        self._prefill.add(_prefill_features(work), rest)
        tokens, pairs = self._prefill.solve()
        self._prefill_weights = (tokens, pairs)
        self._num_prefill += 1

    def seconds(self, work: StepWork) -> Seconds:
        """Predicted duration of a step."""
        tokens, pairs = _prefill_features(work)
        prefill = self._prefill_weights[0] * tokens + self._prefill_weights[1] * pairs
        return Seconds(self.decode_seconds(work) + prefill)

    def decode_seconds(self, work: StepWork) -> float:
        """The decode part alone; without rows, what a step costs that does nothing else."""
        features = _decode_features(work)
        return sum(w * x for w, x in zip(self._decode_weights, features, strict=True))

    @staticmethod
    def _without_outlier(predicted: float, took: float, num_known: int) -> Seconds:
        if num_known < FEW or predicted <= 0.0:
            return Seconds(took)
        return Seconds(min(took, OUTLIER * predicted))


def _decode_features(work: StepWork) -> tuple[float, float, float]:
    # A step without decodes reads the weights once as well, so its base is the same.
    return 1.0, float(work.decode_rows), KILO * work.decode_pairs


def _prefill_features(work: StepWork) -> tuple[float, float]:
    equivalent = work.prefill_tokens + work.prefill_pairs / PAIRS_A_TOKEN
    return equivalent, KILO * work.prefill_pairs
