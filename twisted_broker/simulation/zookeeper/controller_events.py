"""The events of a simulated controller, one after another.

Owns `ControllerEvents`: the queue, and what becomes of an event that fails.

1. An event that finds that the controller moved ends its term (`moved()`); one that lost its
   connection to ZooKeeper is done again: what was done of it is seen then.

Source: Kafka 3.9's `ControllerEventManager`. Not here: the events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.simulation.zookeeper.controller_context import Moved
from twisted_broker.zookeeper.port import ConnectionLossError

_AGAIN_SECONDS = 0.2


class ControllerEvents:
    """`bug(text)` is called with an error of an event's own."""

    def __init__(
        self, runtime: Runtime, moved: Callable[[], None], bug: Callable[[str], None]
    ) -> None:
        self._runtime, self._moved, self._bug = runtime, moved, bug
        self._events: deque[tuple[Any, Callable[[], Awaitable[None]]]] = deque()
        self._busy = False

    def put(self, what: Any, event: Callable[[], Awaitable[None]]) -> None:
        """Events of the same name that wait are one."""
        if what is not None and any(each[0] == what for each in self._events):
            return
        self._events.append((what, event))
        if not self._busy:
            self._busy = True
            ensureDeferred(self._work()).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._busy = False
        self._bug(failure.getTraceback())

    async def _work(self) -> None:
        while self._events:
            what, event = self._events.popleft()
            try:
                await event()
            except Moved:
                self._moved()
            except ConnectionLossError:
                # What was done of it is seen when it is done again.
                self._events.appendleft((what, event))
                await self.pause()
        self._busy = False

    def pause(self) -> Deferred[None]:
        """Before something is tried again."""
        clock: Any = self._runtime.clock
        return deferLater(clock, _AGAIN_SECONDS, lambda: None)
