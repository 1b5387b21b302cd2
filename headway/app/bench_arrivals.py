"""When the requests of a benchmark are sent."""

import math
from itertools import accumulate
from random import Random


def arrival_offsets(count: int, rate: float, burstiness: float, rng: Random) -> list[float]:
    """Seconds from the start at which each of `count` requests is due, ascending.

    rate         requests a second; infinity makes all of them due at once
    burstiness   shape of the gamma distribution that the gaps follow: 1 is a Poisson
                 process, less comes in bursts, more is closer to a steady beat

    The gaps are stretched so that the last request is due at exactly count / rate: random
    gaps alone miss the rate asked for by a percent or two in a short run.
    """
    if math.isinf(rate):
        return [0.0] * count
    scale = 1.0 / (rate * burstiness)
    offsets = list(accumulate(rng.gammavariate(burstiness, scale) for _ in range(count)))
    if not offsets or offsets[-1] == 0.0:
        return offsets
    stretch = count / rate / offsets[-1]
    return [offset * stretch for offset in offsets]
