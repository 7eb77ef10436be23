"""A client of the simulated ZooKeeper, over the simulated network: the twin of `kazoo_client.py`.

Owns `SimZooKeeper`, an `IZooKeeper`, with the calls that only the simulated controller makes
(`exists`, `elect`, writes fenced by the controller's epoch).

1. A connection that is silent for two thirds of the session's timeout is given up. What was sent on
   it and not answered fails with `ConnectionLossError`: it may have been done, or be done later.
2. Calls made while there is no connection are sent on the next one, as kazoo does.
3. Watches are called once, also when the connection is lost: the next one does not have them.

Source: kazoo's `KazooClient`. Not here: the servers (`simulation/zookeeper/ensemble.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.protocol import ClientFactory
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.simulation.zookeeper.ensemble import ERRORS, MACHINE, PORT
from twisted_broker.zookeeper.port import ConnectionLossError, NodeStat, SessionEvent

_CONNECT_SECONDS, _AGAIN_SECONDS = 1.0, 0.1


class _Protocol(Int32StringReceiver):
    MAX_LENGTH = 1 << 24

    def __init__(self, owner: SimZooKeeper) -> None:
        self.owner = owner

    def connectionMade(self) -> None:
        self.owner.connected(self)

    def stringReceived(self, string: bytes) -> None:
        self.owner.received(self, json.loads(string))

    def connectionLost(self, reason: Any = None) -> None:
        self.owner.lost(self)

    def say(self, message: dict[str, Any]) -> None:
        self.sendString(json.dumps(message).encode())  # type: ignore[no-untyped-call]


class SimZooKeeper:
    """`name`: of its machine."""

    def __init__(self, runtime: Runtime, name: str, timeout_ms: int) -> None:
        self._runtime, self._name, self._timeout_seconds = runtime, name, timeout_ms / 1000
        self._listener: Callable[[SessionEvent], None] = lambda event: None
        self._number = 0
        self._protocol: _Protocol | None = None
        self._is_open = self._stopped = False
        self._heard_at = 0.0
        self._count = 0
        self._sent: dict[int, Deferred[Any]] = {}
        self._queue: list[tuple[dict[str, Any], Deferred[Any]]] = []
        self._watches: dict[int, Callable[[], None]] = {}
        self._closing: Deferred[None] | None = None

    @property
    def session_id(self) -> int:
        return self._number

    def start(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listener = listener
        self._runtime.clock.callLater(0, self._connect)
        self._runtime.clock.callLater(self._timeout_seconds / 3, self._ping)

    def stop(self) -> Deferred[None]:
        if self._stopped:
            return succeed(None)
        self._stopped = True
        protocol = self._protocol
        if protocol is None or not self._is_open:
            return succeed(None)
        protocol.say({"op": "close"})
        self._closing = Deferred()
        self._runtime.clock.callLater(_CONNECT_SECONDS, self._closed)
        return self._closing

    def _closed(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.callback(None)

    # the connection

    def _connect(self) -> None:
        if not self._stopped and self._protocol is None:
            ensureDeferred(self._try_to_connect())

    async def _try_to_connect(self) -> None:
        factory: Any = ClientFactory()
        factory.noisy = False
        factory.buildProtocol = lambda address: _Protocol(self)
        try:
            await self._runtime.network.connect(MACHINE, PORT, factory, _CONNECT_SECONDS)
        except Exception:
            self._runtime.clock.callLater(_AGAIN_SECONDS, self._connect)

    def connected(self, protocol: _Protocol) -> None:
        if self._stopped:
            protocol.transport.abortConnection()  # type: ignore[union-attr]
            return
        self._protocol, self._heard_at = protocol, self._runtime.clock.seconds()
        protocol.say(
            {
                "op": "session",
                "number": self._number,
                "owner": self._name,
                "timeout": self._timeout_seconds,
            }
        )

    def _ping(self) -> None:
        if self._stopped:
            return
        self._runtime.clock.callLater(self._timeout_seconds / 3, self._ping)
        protocol = self._protocol
        if protocol is None:
            return
        if self._runtime.clock.seconds() - self._heard_at > self._timeout_seconds * 2 / 3:
            protocol.transport.abortConnection()  # type: ignore[union-attr]
        elif self._is_open:
            self._send({"op": "ping"}, Deferred())

    def lost(self, protocol: _Protocol) -> None:
        if protocol is not self._protocol:
            return
        self._protocol = None
        was_open, self._is_open = self._is_open, False
        self._closed()
        if self._stopped:
            return
        self._runtime.clock.callLater(_AGAIN_SECONDS, self._connect)
        if was_open:
            self._listener(SessionEvent.SUSPENDED)
        self._drop()

    def _drop(self) -> None:
        sent, self._sent = self._sent, {}
        watches, self._watches = self._watches, {}
        for answer in sent.values():
            answer.errback(Failure(ConnectionLossError("the connection to ZooKeeper is lost")))
        for watch in watches.values():
            watch()

    def received(self, protocol: _Protocol, message: dict[str, Any]) -> None:
        if protocol is not self._protocol or self._stopped:
            return
        self._heard_at = self._runtime.clock.seconds()
        if "session" in message:
            self._number, self._is_open = message["session"], True
            self._listener(SessionEvent.CONNECTED)
            queue, self._queue = self._queue, []
            for call, answer in queue:
                self._send(call, answer)
        elif "expired" in message:
            self._expired(protocol)
        elif "watch" in message:
            watch = self._watches.pop(message["watch"], None)
            if watch is not None:
                watch()
        else:
            self._answered(message)

    def _expired(self, protocol: _Protocol) -> None:
        """What waits to be sent was meant for the session that ended."""
        self._number = 0
        queue, self._queue = self._queue, []
        self._listener(SessionEvent.EXPIRED)
        for _, answer in queue:
            answer.errback(Failure(ConnectionLossError("the session with ZooKeeper expired")))
        protocol.transport.abortConnection()  # type: ignore[union-attr]

    def _answered(self, message: dict[str, Any]) -> None:
        answer = self._sent.pop(message["id"], None)
        if answer is None:
            return
        if "error" in message:
            answer.errback(Failure(ERRORS[message["error"]](message["text"])))
        else:
            answer.callback(message["result"])

    def _send(self, call: dict[str, Any], answer: Deferred[Any]) -> None:
        if self._protocol is None or not self._is_open:
            self._queue.append((call, answer))
            return
        self._count += 1
        self._sent[self._count] = answer
        if call["op"] == "ping":
            answer.addErrback(lambda failure: None)
        self._protocol.say({"id": self._count, **call})

    def _call(self, op: str, path: str, **arguments: Any) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self._send({"op": op, "path": path, **arguments}, answer)
        return answer

    def _watched(self, changed: Callable[[], None] | None) -> dict[str, int]:
        if changed is None:
            return {}
        self._count += 1
        self._watches[self._count] = changed
        return {"watch": self._count}

    # calls

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]:
        return self._call("get", path).addCallback(
            lambda found: (found[0].encode(), NodeStat(*found[1:]))
        )

    def set(self, path: str, data: bytes, version: int, fence: int = -1) -> Deferred[int]:
        return self._call("set", path, data=data.decode(), version=version, fence=fence)

    def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        fence: int = -1,
    ) -> Deferred[tuple[str, NodeStat]]:
        return self._call(
            "create",
            path,
            data=data.decode(),
            ephemeral=ephemeral,
            sequence=sequence,
            fence=fence,
        ).addCallback(lambda found: (found[0], NodeStat(*found[1:])))

    def delete(self, path: str, fence: int = -1) -> Deferred[None]:
        """With what is below it."""
        return self._call("delete", path, fence=fence)

    def children(self, path: str, changed: Callable[[], None] | None = None) -> Deferred[list[str]]:
        return self._call("children", path, **self._watched(changed))

    def exists(self, path: str, changed: Callable[[], None]) -> Deferred[bool]:
        """`changed()` is called when it is made, written or deleted."""
        return self._call("exists", path, **self._watched(changed))

    def elect(self, path: str, data: bytes) -> Deferred[tuple[int, int]]:
        """The epoch of the controller, and the version of its node; NodeExistsError where there is
        a controller.
        """
        return self._call("elect", path, data=data.decode())
