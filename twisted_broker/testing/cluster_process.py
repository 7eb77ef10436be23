"""A cluster of a test, in its process.

Owns `run`, which a fork of the template ends in, and the socket to the test.

1. The first message says what is wanted; the answer comes when all brokers serve clients, or says
   why they cannot.
2. The process ends as soon as the socket is closed. With files in a directory it is stopped in
   order before that, by the message `stop`.
3. What brokers log goes to the file that the test opened: it is there even when this process died.

Messages are JSON, each after its length: `{"id": 1, "call": NAME, ..}`, answered by `{"id": 1,
"result": ..}` or `{"id": 1, "error": TEXT, "kind": NAME}`.

A snapshot is a copy of the process; a restore ends it and wakes the copy, which answers in its
place (`sleepers.py`).

Ring 2. Source: our own. Not here: the brokers (`running_cluster.py`), what the calls do
(`cluster_calls.py`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import deferLater
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from twisted_broker import garbage_collection
from twisted_broker.settings import ConfigError
from twisted_broker.start_checks import StartError
from twisted_broker.tap import raise_file_limit
from twisted_broker.testing.cluster_calls import CallFailed
from twisted_broker.testing.handed_out import nothing_handed_out
from twisted_broker.testing.running_cluster import RunningCluster
from twisted_broker.testing.sleepers import Sleepers, Woken, end, poll_anew

MOST_BYTES = 1 << 30


def load() -> None:
    """Imports what a cluster needs, and what a reactor does, but makes none."""
    from twisted.internet import default  # noqa: F401

    from twisted_broker.cluster import (  # noqa: F401
        alter_partition_manager,
        broker_lifecycle_manager,
        controller,
        forwarding_manager,
        metadata_log,
        observer,
    )
    from twisted_broker.coordinator import coordinator_publisher  # noqa: F401
    from twisted_broker.coordinator.transaction import transaction_publisher  # noqa: F401
    from twisted_broker.log import disk_worker, filesystem, memory  # noqa: F401
    from twisted_broker.net import network  # noqa: F401
    from twisted_broker.replication import replica_manager  # noqa: F401


def run(control: int, log: int) -> NoReturn:
    """`control`: the descriptor of the socket to the test, `log`: of the file for lines."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    raise_file_limit()
    garbage_collection.settle()
    from twisted.internet import reactor
    from twisted.logger import globalLogBeginner, textFileLogObserver

    globalLogBeginner.beginLoggingTo(
        [textFileLogObserver(sys.stdout)], redirectStandardIO=False, discardBuffer=True
    )
    world: Any = reactor
    factory = Factory.forProtocol(ControlProtocol)
    world.adoptStreamConnection(control, socket.AF_UNIX, factory)
    os.close(control)
    world.run(installSignalHandlers=False)
    os._exit(0)


class ControlProtocol(Int32StringReceiver):
    """The cluster's end of the socket."""

    MAX_LENGTH = MOST_BYTES

    def connectionMade(self) -> None:
        from twisted.internet import reactor

        self._reactor = reactor
        self._cluster: RunningCluster | None = None
        self._sleepers = Sleepers()

    def stringReceived(self, string: bytes) -> None:
        message = json.loads(string)
        ensureDeferred(self._answer(message))

    async def _answer(self, message: dict[str, Any]) -> None:
        number, call = message.pop("id"), message.pop("call")
        result: Any
        try:
            if call == "snapshot":
                result, woken = await self._snapshot()
                if woken is not None:
                    number = woken.call
                    result = await self._wake_up(woken)
            elif call == "restore":
                self._restore(number, **message)
            else:
                result = await self._called(call, message)
        except Exception as error:
            kind = type(error).__name__
            if not isinstance(error, CallFailed | ConfigError | StartError | TimeoutError):
                Failure().printTraceback(file=sys.stdout)
            self._send({"id": number, "error": str(error) or kind, "kind": kind})
        else:
            self._send({"id": number, "result": result})

    async def _called(self, call: str, arguments: dict[str, Any]) -> Any:
        if call == "start":
            self._cluster = RunningCluster(**arguments)
            await self._cluster.start()
            return {
                "bootstrap": self._cluster.calls.bootstrap,
                "brokers": self._cluster.ids,
                "pid": os.getpid(),
            }
        assert self._cluster is not None, "start comes first"
        if call == "drop_snapshot":
            return self._sleepers.drop(**arguments)
        if call == "stop":
            await self._cluster.stop()
            return None
        return await self._cluster.call(call, arguments)

    # snapshots

    async def _snapshot(self) -> tuple[int, Woken | None]:
        """The number of the new one; not None: this is it, and it was woken."""
        assert self._cluster is not None, "start comes first"
        self._cluster.check_can_sleep()
        self._sleepers.check()
        world: Any = self._reactor
        await deferLater(world, 0)  # not while its sockets are polled
        self._slept_at = time.monotonic()
        return self._sleepers.take(self._cluster.client_descriptors())

    async def _wake_up(self, woken: Woken) -> dict[str, Any]:
        assert self._cluster is not None
        self._cluster.slept(time.monotonic() - self._slept_at, woken.sockets)
        poll_anew(self._reactor)
        await self._cluster.wake_up(woken.words)
        return {"pid": os.getpid()}

    def _restore(self, call: int, number: int, for_another: bool = False) -> None:
        """`for_another`: nobody knows what was meanwhile, nor the other snapshots."""
        assert self._cluster is not None, "start comes first"
        words = nothing_handed_out() if for_another else self._cluster.handed_out()
        self._sleepers.wake(number, call, words, self._cluster.sockets, for_another)
        self._cluster.reset_clients()
        end()

    def _send(self, message: dict[str, Any]) -> None:
        self.sendString(json.dumps(message).encode())  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        # The test is over, or its process is gone: nobody is left to stop anything for.
        os._exit(0)
