"""A limit by the minute, counted in whole numbers, so that every store counts the same.

A bucket holds what a tenant has used lately; it drains evenly, the limit in a minute, and takes
something as long as that fits below the limit. What is given back is taken out as if it had
never been put in: of an amount that was put in at a time, so much can be given back as the bucket
has held ever since, because the rest has drained in place of something else. For that it
remembers its lowest levels.

Units: one that is counted (a request or a token) is UNIT units, and a limit of one a minute
drains one unit a millisecond. Every product stays below 2**53, up to which also the numbers of
Redis's scripts are exact.
"""

MINUTE_MS = 60_000
UNIT = MINUTE_MS  # units of one request or one token
MAX_LIMIT = 10**10  # a minute
MAX_LOWS = 8
HELD_MINUTES = 2  # most that a bucket holds: the limit, and a debt as high again


class Bucket:
    """What was used of one limit: `used` units at `at_ms`, of a `limit` a minute."""

    __slots__ = ("at_ms", "limit", "lows", "used")

    def __init__(self) -> None:
        self.used = 0
        self.at_ms = 0
        self.limit = 1
        # (since, level): the bucket has held at least `level` from `since` on, up to the
        # next entry's `since`; both rise. Before the first entry: nothing is known to be left.
        self.lows: list[tuple[int, int]] = []

    def drain(self, now_ms: int) -> None:
        """Let go of what has drained until now; a clock that went back drains nothing."""
        if now_ms > self.at_ms:
            passed = min(now_ms - self.at_ms, HELD_MINUTES * MINUTE_MS)
            self.used = max(0, self.used - passed * self.limit)
            self.at_ms = now_ms
            self._was_at(self.used)

    def set_limit(self, limit: int) -> None:
        """The limit (0: nothing fits) from now on; what is held stays, within its bound.

        To be called right after `drain`.
        """
        self.limit = limit
        self.used = min(self.used, HELD_MINUTES * UNIT * limit)
        self._was_at(self.used)

    def wait_ms(self, count: int) -> int | None:
        """Time until so many fit, 0: now; None: never, there are more than the limit.

        As of the last `drain`, as all below.
        """
        if count > self.limit:
            return None
        over = self.used + (count - self.limit) * UNIT
        return max(0, -(-over // max(1, self.limit)))

    def take(self, count: int) -> int:
        """Put in so many that fit; when that was, for `give_back`."""
        self.used += count * UNIT
        if self.lows and self.lows[-1][0] == self.at_ms:
            self.lows[-1] = (self.at_ms, self.used)
        else:
            self.lows.append((self.at_ms, self.used))
            if len(self.lows) > MAX_LOWS:
                self._forget_one()
        return self.at_ms

    def give_back(self, count: int, taken_ms: int) -> None:
        """Undo so many of what was taken then."""
        index = len(self.lows) - 1
        while index >= 0 and self.lows[index][0] > taken_ms:
            index -= 1
        if index < 0:
            return
        back = min(count * UNIT, self.lows[index][1])
        self.used -= back
        later = [(since, level - back) for since, level in self.lows[index:]]
        del self.lows[index:]
        since, level = later[0]
        while self.lows and self.lows[-1][1] >= level:
            since = self.lows.pop()[0]
        self.lows += [(since, level), *later[1:]]

    def owe(self, count: int) -> None:
        """Put in so many that nobody asked for; what is held has a bound."""
        most = HELD_MINUTES * UNIT * self.limit
        self.used = min(self.used + count * UNIT, max(self.used, most))

    def left(self) -> int:
        """How many fit now."""
        return max(0, self.limit * UNIT - self.used) // UNIT

    def reset_ms(self) -> int:
        """Time until it is empty."""
        return -(-self.used // max(1, self.limit))

    def _was_at(self, level: int) -> None:
        since = None
        while self.lows and self.lows[-1][1] > level:
            since = self.lows.pop()[0]
        if since is not None:
            self.lows.append((since, level))

    def _forget_one(self) -> None:
        """Drop the entry that tells least beside the one before it: less is given back then."""
        gaps = [
            (self.lows[index][1] - self.lows[index - 1][1], index)
            for index in range(1, len(self.lows))
        ]
        del self.lows[min(gaps)[1]]
