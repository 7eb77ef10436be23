"""Long requests in slices: between two of them everybody else is served.

Owns whose slice is next.

1. One slice of one request is worked on in a turn of the reactor, however many long requests there
   are; they take turns.
2. A slice is counted in elements, not in time: about `SLICE_ELEMENTS` of what costs some ten
   microseconds each. Small requests, which are nearly all, pay one subtraction for each of their
   elements and never wait.

Source: measured: nothing may hold the reactor over 50 ms. Not here: what a request does in a slice
(`api/*`, by `RequestContext.room` and `next_turn`).
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import IClock

SLICE_ELEMENTS = 400


class Slices:
    """The long requests of one broker."""

    __slots__ = ("_clock", "_waiting")

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._waiting: deque[Deferred[None]] = deque()

    def next_turn(self) -> Deferred[None]:
        """Fires in a later turn of the reactor, when it is the caller's."""
        waiter: Deferred[None] = Deferred()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._clock.callLater(0, self._go)
        return waiter

    def _go(self) -> None:
        waiter = self._waiting.popleft()
        if self._waiting:
            self._clock.callLater(0, self._go)
        if not waiter.called:  # else its client is gone
            waiter.callback(None)
