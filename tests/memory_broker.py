"""A whole broker in memory: network, disk and clock are twins; time passes when the test says
so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.interfaces import Runtime
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.net.client import BrokerConnection
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.simulation.memory_network import MemoryNetwork

LISTENERS = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"


class MemoryBroker:
    """One node; `files` may be handed on to the next one; `world` is another node, whose clock
    and network it shares; `seed`: another one gives the process another incarnation id, as a
    restart does.
    """

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        cluster_id: str | None = None,
        world: MemoryBroker | None = None,
        disk: Callable[[str], Any] = lambda directory: InlineWorker(),
        seed: int = 7,
        **settings: str,
    ) -> None:
        self.clock: Clock = Clock() if world is None else world.clock
        self.network: MemoryNetwork = MemoryNetwork(self.clock) if world is None else world.network
        self.files = files if files is not None else MemoryFileSystem()
        self.runtime = Runtime(
            clock=self.clock,
            wall_ms=lambda: 1_700_000_000_000 + int(self.clock.seconds() * 1000),
            network=self.network,
            files=self.files,
            disk=disk,
            random=Random(seed),
        )
        values = dict(SAMPLE_VALUES) | {"listeners": LISTENERS, "log.dirs": "/data"}
        values |= {name.replace("_", "."): value for name, value in settings.items()}
        self.fatal: list[str] = []
        self.broker = KafkaServer(
            BrokerConfig(values), self.runtime, cluster_id, on_fatal=self.fatal.append
        )

    def start(self) -> MemoryBroker:
        self.run(self.broker.start())
        return self

    def stop(self) -> None:
        self.run(self.broker.stop())

    def run(self, work: Any, seconds: float = 60.0) -> Any:
        """The result of a coroutine or Deferred, time passing in steps of its timers."""
        found: list[Any] = []
        deferred: Deferred[Any] = work if isinstance(work, Deferred) else ensureDeferred(work)
        deferred.addBoth(found.append)
        end = self.clock.seconds() + seconds
        while not found:
            self.step()
            assert self.clock.seconds() < end, "nothing came"
        if isinstance(found[0], Failure):
            found[0].raiseException()
        return found[0]

    def step(self) -> None:
        """To the next timer, and all that is due then."""
        calls = self.clock.getDelayedCalls()
        assert calls, "nothing will ever happen"
        self.clock.advance(max(0.0, min(call.getTime() for call in calls) - self.clock.seconds()))

    def pass_time(self, seconds: float) -> None:
        end = self.clock.seconds() + seconds
        while any(call.getTime() <= end for call in self.clock.getDelayedCalls()):
            self.step()
        self.clock.advance(end - self.clock.seconds())

    def connection(self, port: int = 9092) -> BrokerConnection:
        return BrokerConnection(self.runtime, "127.0.0.1", port, "test")

    def ask(self, request: Any, version: int, port: int = 9092) -> Any:
        connection = self.connection(port)
        try:
            return self.run(connection.send(request, version))
        finally:
            connection.close()
