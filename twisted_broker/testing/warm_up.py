"""One cluster, run and forgotten, on a clock and a network of its own: what it makes on its way
(the codecs of messages, caches) is there for the clusters that are forked afterwards.

Source: our own. Not here: who forks (`template.py`).
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.interfaces import Runtime
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.simulation.memory_network import MemoryNetwork
from twisted_broker.testing.cluster_calls import ClusterCalls

_LISTENERS = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
_BEGAN_MS = 1_700_000_000_000
_MOST_SECONDS = 60.0


def warm_up() -> None:
    """A topic, a record written and read, a group's offsets."""
    clock: Any = Clock()
    runtime = Runtime(
        clock=clock,
        wall_ms=lambda: _BEGAN_MS + int(clock.seconds() * 1000),
        network=MemoryNetwork(clock),
        files=MemoryFileSystem(),
        disk=lambda directory: InlineWorker(),
        random=Random(1),
    )
    values = {**SAMPLE_VALUES, "listeners": _LISTENERS, "log.dirs": "/warm"}
    broker = KafkaServer(BrokerConfig(values), runtime)
    found: list[Any] = []
    ensureDeferred(_used(broker, runtime)).addBoth(found.append)
    while not found and clock.seconds() < _MOST_SECONDS:
        calls = clock.getDelayedCalls()
        clock.advance(max(0.0, min(each.getTime() for each in calls) - clock.seconds()))
    if found and isinstance(found[0], Failure):
        found[0].raiseException()


async def _used(broker: KafkaServer, runtime: Runtime) -> None:
    await broker.start()
    calls = ClusterCalls([broker], runtime)
    await calls.produce("warm", [{"key": "YQ==", "value": "Yg=="}])
    await calls.records("warm", at_least=1)
    await calls.set_offsets("warm", [("warm", 0, 1)])
    await calls.group("warm")
    await broker.stop()
