"""How fast something happens: Kafka's sampled rate, and its token bucket.

Owns `Rate` and `TokenBucket`, and the waits that follow from them.

1. A rate is the sum over the last `samples` windows and the one that is being filled, by the time
   since the oldest of them began. Windows that are missing count as empty ones, so that a first
   burst is not taken for a rate.
2. A sample is dropped `samples` windows after the last event in it. At most `samples` + 1 are
   kept, whatever happens.
3. A bucket holds at most what its rate gives in all windows; below zero it is exhausted.
4. Times are arguments, ms of one monotonic clock.

Source: Kafka's `Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils`, `ControllerMutationQuotaManager`
(4.3.1). Not here: whose rate it is, and what its bound is.
"""

from __future__ import annotations


class Rate:
    """Per second, over `samples` windows of `window_ms` each."""

    __slots__ = ("_current", "_ends", "_last", "_starts", "_values", "samples", "window_ms")

    def __init__(self, samples: int = 11, window_ms: int = 1000) -> None:
        self.samples = samples
        self.window_ms = window_ms
        # One row a sample, in three lists: two floats and an int in lists take a third of an
        # object, and a broker may have a sensor for each of its clients.
        self._starts: list[int] = []
        self._last: list[int] = []
        self._values: list[float] = []
        self._current = 0
        self._ends = 0

    def record(self, value: float, now_ms: int) -> None:
        """Counts `value` at `now_ms`; below zero it takes back what was recorded."""
        if now_ms >= self._ends:
            self._advance(now_ms)
        current = self._current
        self._values[current] += value
        self._last[current] = now_ms

    def _advance(self, now_ms: int) -> None:
        if self._starts:
            self._current = (self._current + 1) % (self.samples + 1)
        current = self._current
        if current >= len(self._starts):
            self._starts.append(now_ms)
            self._last.append(now_ms)
            self._values.append(0.0)
        else:
            self._reset(current, now_ms)
        self._ends = now_ms + self.window_ms

    def _reset(self, index: int, now_ms: int) -> None:
        self._starts[index] = self._last[index] = now_ms
        self._values[index] = 0.0
        if index == self._current:
            self._ends = now_ms + self.window_ms

    def _purge(self, now_ms: int) -> None:
        expired = now_ms - self.samples * self.window_ms
        last = self._last
        # The oldest event first: the usual measurement ends here.
        if last and min(last) > expired:
            return
        for index, at in enumerate(last):
            if at <= expired:
                self._reset(index, now_ms)

    def elapsed_ms(self, now_ms: int) -> int:
        """The time that a measurement at `now_ms` is divided by, at least 1."""
        self._purge(now_ms)
        if not self._starts:
            self._advance(now_ms)
        elapsed = now_ms - min(self._starts)
        missing = self.samples - 1 - elapsed // self.window_ms
        if missing > 0:
            elapsed += missing * self.window_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        """Per second."""
        elapsed = self.elapsed_ms(now_ms)
        return sum(self._values) / (elapsed / 1000)

    def throttle_ms(self, bound: float, now_ms: int, measured: float | None = None) -> int:
        """How long nothing may be recorded for the rate to be back at `bound` per second (above
        0), as Kafka reckons it; 0 when it is not above. `measured`: what `measure` just gave.
        """
        rate = self.measure(now_ms) if measured is None else measured
        if not rate > bound:  # nor for a bound that is no number
            return 0
        return rounded((rate - bound) / bound * self.elapsed_ms(now_ms))


class TokenBucket:
    """Tokens that come back at a rate per second, up to what it gives in all windows.

    `rate` may change at any time.
    """

    __slots__ = ("_last_ms", "_tokens", "rate", "seconds")

    def __init__(self, rate: float, samples: int = 11, window_ms: int = 1000) -> None:
        self.rate = rate
        self.seconds = samples * (window_ms / 1000)
        self._tokens = 0.0
        self._last_ms: int | None = None

    def measure(self, now_ms: int) -> float:
        """The tokens that are there; below zero: the quota is used up."""
        burst = self.seconds * self.rate
        last = self._last_ms
        # A new bucket is full.
        self._tokens = (
            burst
            if last is None
            else min(burst, self._tokens + self.rate * ((now_ms - last) / 1000))
        )
        self._last_ms = now_ms
        return self._tokens

    def record(self, value: float, now_ms: int) -> None:
        """Takes `value` tokens, whether they are there or not."""
        tokens = self.measure(now_ms)
        self._tokens = min(self.seconds * self.rate, tokens - value)

    def throttle_ms(self, now_ms: int) -> int:
        """How long until there are zero tokens again; 0 when there are."""
        tokens = self.measure(now_ms)
        if not tokens < 0:
            return 0
        return rounded(-tokens / self.rate * 1000)


def rounded(value: float) -> int:
    """Half up, as Java's `Math.round`, and within an int of 32 bits, as `throttle_time_ms` is."""
    return 2_147_483_647 if value >= 2_147_483_647 else int(value + 0.5)
