"""Where the machines of a test's cluster are: on real time, with clients that come by TCP.

Owns `World`, what `RunningCluster` needs of its surroundings, and `LiveWorld`, that of the caller's
reactor.

Ring 2. Source: our own. Not here: a cluster in it (`running_cluster.py`).
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.reactor_watch import ReactorWatch
from twisted_broker.tap import MonotonicClock, file_limit, production_runtime
from twisted_broker.testing.live_clock import LiveClock
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.machine import Machine


class World(Protocol):
    """`outside`: of what belongs to no machine; `descriptors`: how many files may be open."""

    reactor: Any
    outside: Runtime
    descriptors: int
    clients_are_inside: bool
    """Clients are machines of this network: brokers listen for them on it."""

    @property
    def clock(self) -> LiveClock: ...

    @property
    def network(self) -> LiveNetwork: ...

    def machine(self, name: str, data: bool) -> Machine: ...


class LiveWorld:
    """Of the installed reactor. `seed`: of the chances of what is struck."""

    clients_are_inside = False

    def __init__(self, config: BrokerConfig, seed: int | None = None) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.outside: Runtime = production_runtime(reactor, config, ReactorWatch(0), in_memory=True)
        self.outside.clock = MonotonicClock(reactor)
        self.descriptors = file_limit(reactor)
        self.clock = LiveClock(reactor)
        self._random = random.Random(seed)
        self.network = LiveNetwork(self.clock, self._random)

    def machine(self, name: str, data: bool) -> Machine:
        """A new one; `data`: its files are the system's."""
        return Machine(name, self.network, self.reactor, data, self._random.randrange(1 << 30))
