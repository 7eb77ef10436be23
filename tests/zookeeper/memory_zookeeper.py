"""A client of ZooKeeper in memory, an `IZooKeeper`.

Owns `MemoryZooKeeper`.

1. Answers come in a later turn of the clock, in order. A client that was disconnected fails its
   calls; with `lose_answers` they are done, and their answers are lost.

Source: `zookeeper/port.py`. Not here: the servers (`simulation/memory_zookeeper.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed

from twisted_broker.interfaces import IClock
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.zookeeper.port import ConnectionLossError, NodeStat, SessionEvent

T = TypeVar("T")


class MemoryZooKeeper:
    """A client. `connect`, `disconnect`, `expire` are what the network and the servers do."""

    def __init__(self, ensemble: MemoryEnsemble, clock: IClock) -> None:
        self.ensemble, self._clock = ensemble, clock
        self.session_id = 0
        self.connected = False
        self.lose_answers = False
        self._listener: Callable[[SessionEvent], None] = lambda event: None

    def start(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listener = listener
        self._clock.callLater(0, self.connect)

    def stop(self) -> Deferred[None]:
        self.ensemble.end_session(self.session_id)
        self.connected, self.session_id = False, 0
        return succeed(None)

    def connect(self) -> None:
        """In the session of before, if that lives."""
        if not self.session_id:
            self.ensemble.sessions += 1
            self.session_id = self.ensemble.sessions
        self.connected = True
        self._listener(SessionEvent.CONNECTED)

    def disconnect(self) -> None:
        """The session may go on."""
        self.connected = False
        self._listener(SessionEvent.SUSPENDED)

    def expire(self) -> None:
        """The session ends; `connect` opens another one."""
        self.connected = False
        self.ensemble.end_session(self.session_id)
        self.session_id = 0
        self._listener(SessionEvent.EXPIRED)

    def _call(self, work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        lost = not self.connected
        outcome: Any = None
        if not lost:
            try:
                outcome = work()
            except Exception as error:
                outcome = error
            lost = self.lose_answers
        if lost:
            outcome = ConnectionLossError("the connection to ZooKeeper is lost")
        fire = done.errback if isinstance(outcome, Exception) else done.callback
        self._clock.callLater(0, fire, outcome)
        return done

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]:
        return self._call(lambda: (self.ensemble.node(path).data, self.ensemble.node(path).stat))

    def set(self, path: str, data: bytes, version: int) -> Deferred[int]:
        return self._call(lambda: self.ensemble.set(path, data, version))

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Deferred[tuple[str, NodeStat]]:
        owner = self.session_id if ephemeral else 0
        return self._call(lambda: self.ensemble.create(path, data, owner, sequence))

    def delete(self, path: str) -> Deferred[None]:
        return self._call(lambda: self.ensemble.delete(path))

    def children(self, path: str, changed: Callable[[], None] | None = None) -> Deferred[list[str]]:
        def listed() -> list[str]:
            found = self.ensemble.children(path)
            if changed is not None:
                self.ensemble.watches.setdefault(path, []).append(changed)
            return found

        return self._call(listed)
