"""A cluster's process, asked by a reactor: several calls at a time.

Owns `Calls`. A restore ends what is in flight: who waits for it is told.

Source: our own. Not here: what goes over the socket (`cluster_process.py`).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from twisted_broker.testing.cluster_process import MOST_BYTES
from twisted_broker.testing.template_client import ClusterError, Connection


class Calls(Int32StringReceiver):
    """`connection`: to a cluster that was started; nobody else uses it from now on. `on_end`: its
    process is gone.
    """

    MAX_LENGTH = MOST_BYTES

    def __init__(self, reactor: Any, connection: Connection, on_end: Callable[[], None]) -> None:
        self._connection, self._on_end = connection, on_end
        self._waiting: dict[int, Deferred[Any]] = {}
        factory = Factory()
        factory.buildProtocol = lambda address: self  # type: ignore[assignment,method-assign,unused-ignore]
        reactor.adoptStreamConnection(connection.socket.fileno(), socket.AF_UNIX, factory)

    def call(self, name: str, arguments: dict[str, Any]) -> Deferred[Any]:
        """Fails with ClusterError, ClusterTimeout."""
        answer: Deferred[Any] = Deferred()
        request = self._connection.request(name, arguments)
        number = self._connection.number
        if name == "restore":
            answer.addCallback(self._restored, number)
        self._waiting[number] = answer
        assert self.transport is not None
        self.transport.write(request)
        return answer

    def _restored(self, result: Any, number: int) -> Any:
        for each in [each for each in self._waiting if each < number]:
            error = ClusterError("the cluster was restored meanwhile")
            self._waiting.pop(each).errback(error)
        return result

    def stringReceived(self, string: bytes) -> None:
        found = json.loads(string)
        # A cluster that was restored may answer what was asked at its snapshot.
        waiting = self._waiting.pop(found["id"], None)
        if waiting is None:
            return
        try:
            result = self._connection.result(found)
        except ClusterError:
            waiting.errback(Failure())
        else:
            waiting.callback(result)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.errback(self._connection.died())
        self._on_end()
