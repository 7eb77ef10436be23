"""Waits in a test's cluster that end with what they wait for: they look when something was done.

Owns `Wakes`.

1. What brokers know changes only in a turn of a machine (a timer, what came over a link, a job of a
   disk), when a client's bytes come, or by a verb of the test. Each of these wakes all who wait, at
   the end of the reactor's turn. Without one nobody looks; `period`: but every so many seconds,
   where brokers hear of each other past what is known here.
2. What is done while somebody looks is not lost: they look again.
3. A look that is dear is followed by a pause, so that brokers are not kept from what is waited for.

Source: our own. Not here: what they look at (`condition_values.py`, `running_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from twisted_broker.interfaces import IClock

_DEAR_SECONDS, _PAUSE_SECONDS = 0.0005, 0.005


class Wakes:
    """`reactor`: whose turns are meant; `clock`: by which time-outs run."""

    def __init__(self, reactor: Any, clock: IClock) -> None:
        self._reactor, self._clock = reactor, clock
        self._waiting: list[Deferred[None]] = []
        self.period = float("inf")
        self._done, self._is_told = 0, False
        self.looks = 0
        """how often somebody looked"""

    def wake(self) -> None:
        """Something was done."""
        self._done += 1
        if self._waiting and not self._is_told:
            self._is_told = True
            self._reactor.callLater(0, self._tell)

    def _tell(self) -> None:
        self._is_told = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    async def until(self, look: Callable[[], Awaitable[bool]], within: float) -> bool:
        """Ends when a look finds it; False: after `within` seconds none has."""
        deadline = self._clock.seconds() + within
        while True:
            done, began = self._done, self._clock.seconds()
            self.looks += 1
            if await look():
                return True
            now = self._clock.seconds()
            if now >= deadline:
                return False
            if now - began > _DEAR_SECONDS:
                await deferLater(self._clock, _PAUSE_SECONDS)  # type: ignore[arg-type]
            if done == self._done:
                await self._woken(deadline)

    async def _woken(self, deadline: float) -> None:
        woken: Deferred[None] = Deferred()
        self._waiting.append(woken)
        left = max(0.0, deadline - self._clock.seconds())
        late = self._clock.callLater(min(left, self.period), self._late, woken)
        await woken
        if late.active():
            late.cancel()

    def _late(self, woken: Deferred[None]) -> None:
        if woken in self._waiting:
            self._waiting.remove(woken)
            woken.callback(None)
