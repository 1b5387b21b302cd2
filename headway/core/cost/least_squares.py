"""Least squares over a stream of observations that slowly lose their weight.

The normal equations are kept and decay with every observation (recursive least squares with
exponential forgetting, e.g. Haykin, Adaptive Filter Theory, chapter 10), pulled towards a
prior, so that what was never seen to vary keeps its prior value.
"""

from collections.abc import Sequence

PIVOT = 1e-30  # below it a system has no single solution; the prior's pull prevents that


class LeastSquares:
    """Non-negative weights w with y close to w . x, over few unknowns."""

    def __init__(self, prior: Sequence[float], pull: Sequence[float], decay: float) -> None:
        """`pull` is how many observations with x = 1 each prior value is worth."""
        size = len(prior)
        self._prior = list(prior)
        self._pull = list(pull)
        self._decay = decay
        self._xx = [[0.0] * size for _ in range(size)]
        self._xy = [0.0] * size

    def add(self, x: Sequence[float], y: float) -> None:
        """Take one observation; O(n^2)."""
        for i, row in enumerate(self._xx):
            for j in range(len(row)):
                row[j] = row[j] * self._decay + x[i] * x[j]
            self._xy[i] = self._xy[i] * self._decay + x[i] * y

    def solve(self) -> list[float]:
        """The weights now; what would be negative is held at zero. O(n^4), n is 2 or 3."""
        free = list(range(len(self._prior)))
        while free:
            found = self._solve_for(free)
            worst = min(range(len(free)), key=found.__getitem__)
            if found[worst] >= 0.0:
                weights = [0.0] * len(self._prior)
                for index, value in zip(free, found, strict=True):
                    weights[index] = value
                return weights
            del free[worst]
        return [0.0] * len(self._prior)

    def _solve_for(self, free: Sequence[int]) -> list[float]:
        """Gauss-Jordan elimination of the equations of the unknowns `free`."""
        rows = [
            [self._xx[i][j] + (self._pull[i] if i == j else 0.0) for j in free]
            + [self._xy[i] + self._pull[i] * self._prior[i]]
            for i in free
        ]
        for k in range(len(rows)):
            best = max(range(k, len(rows)), key=lambda r: abs(rows[r][k]))
            rows[k], rows[best] = rows[best], rows[k]
            pivot = rows[k][k]
            assert abs(pivot) > PIVOT, "the prior has no pull on an unknown that nobody observed"
            rows[k] = [value / pivot for value in rows[k]]
            for r in range(len(rows)):
                if r != k and (factor := rows[r][k]):
                    rows[r] = [a - factor * b for a, b in zip(rows[r], rows[k], strict=True)]
        return [row[-1] for row in rows]
