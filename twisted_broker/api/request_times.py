"""The parts of a request's time, for a sample of the requests of one API on one listener. Ring 0
(pure: docs/ARCHITECTURE.md 3).

Owns `RequestTimes`, `ApiTimes`, and the moments of a request that is timed (`Timing`).

1. The first `ALWAYS_TIMED` requests of an API and version are timed, then one in `ALWAYS_TIMED`:
   two readings of the clock for each would be seen in the rate of small ones.
2. The parts of one request are recorded together, when its answer is with the transport: quantiles
   of all parts are of the same requests. What is abandoned is not recorded.
3. Bounded: of each part the last `KEPT` values, four bytes each, and two sums.
4. A Fetch is recorded for its API and for who sent it: a follower or a consumer, as in Kafka.

Source: Kafka's `RequestMetrics` (its histograms; they keep 1028 values). Not here: which requests
are timed (`api/dispatch.py`), names and quantiles (`status/metrics.py`).
"""

from __future__ import annotations

from array import array

ALWAYS_TIMED = 64
KEPT = 512
PARTS = ("request_queue", "local", "remote", "response_queue", "response_send", "total")
"""`request_queue`: waiting for requests before it on its connection; `local`: until it is answered
or waits; `remote`: its wait; `response_queue`: waiting for answers before it; `response_send`:
until the transport has it.
"""


class RequestTimes:
    """`count` requests; `sums` of ms and the last values by part, as in `PARTS`. `throttled_ms`:
    for how long clients waited for their quotas, of all requests.
    """

    __slots__ = ("_next", "count", "kept", "sums", "throttled_ms")

    def __init__(self) -> None:
        self.count = self._next = self.throttled_ms = 0
        self.sums = [0.0] * len(PARTS)
        self.kept = [array("f") for _ in PARTS]

    def record(self, parts: tuple[float, ...]) -> None:
        """One request's parts in ms, as in `PARTS`."""
        self.count += 1
        place = self._next
        self._next = place + 1 if place + 1 < KEPT else 0
        for number, ms in enumerate(parts):
            self.sums[number] += ms
            kept = self.kept[number]
            if len(kept) < KEPT:
                kept.append(ms)
            else:
                kept[place] = ms


class ApiTimes:
    """Of one API on one listener: all, and for Fetch those of followers and of consumers."""

    __slots__ = ("all", "consumers", "followers")

    def __init__(self) -> None:
        self.all = RequestTimes()
        self.followers: RequestTimes | None = None
        self.consumers: RequestTimes | None = None


class Timing:
    """A request that is timed; seconds."""

    __slots__ = ("_is_follower", "_local", "_queued", "_times")

    def __init__(self, times: ApiTimes, is_follower: bool | None, queued: float, local: float):
        """`is_follower` None: not a Fetch."""
        self._times, self._is_follower = times, is_follower
        self._queued, self._local = queued, local

    def record(self, remote: float, waited: float, sent: float) -> None:
        """Its answer is with the transport: what it waited for others, and what sending took."""
        parts = (self._queued, self._local, remote, waited, sent)
        found = tuple(seconds * 1000 for seconds in (*parts, sum(parts)))
        times = self._times
        times.all.record(found)
        if self._is_follower:
            times.followers = times.followers or RequestTimes()
            times.followers.record(found)
        elif self._is_follower is False:
            times.consumers = times.consumers or RequestTimes()
            times.consumers.record(found)
