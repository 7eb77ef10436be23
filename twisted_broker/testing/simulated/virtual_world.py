"""Where the machines of a simulated cluster are: in virtual time, on one network in memory.

Owns `VirtualWorld`, `LiveWorld`'s counterpart. Everything in it is a function of the seed.

1. Time goes on when nothing is left to do, to the next timer.
2. Clients are machines of the same network; there is no TCP.
3. `advance` is a wait: clients are in the same time, and act meanwhile.

Ring 2. Source: `simulation/clock.py`, `simulation/network.py`. Not here: a program's machine
(`program.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.task import deferLater

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.simulation.clock import START_WALL_MS, NodeClock, SimCall, SimClock
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.testing.live_clock import LiveClock, log_failure, nothing
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.live_world import World
from twisted_broker.testing.machine import Machine

_DESCRIPTORS = 1 << 20


class VirtualClock(LiveClock):
    """`now`: virtual seconds since the run began."""

    def __init__(self) -> None:
        SimClock.__init__(self)
        self.ahead = self.calendar_ahead = 0.0
        self.fixed_ms = None
        self.failed, self.ran = log_failure, nothing

    def refresh(self) -> float:
        return self.now

    def push(self, call: SimCall) -> None:
        SimClock.push(self, call)

    def outside_ms(self) -> int:
        return START_WALL_MS + int(self.now * 1000)

    async def advance(self, seconds: float, between: Callable[[], None]) -> None:
        if self.fixed_ms is not None:
            self.fixed_ms += round(seconds * 1000)
        await deferLater(NodeClock(self, "advance"), seconds)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.queue.clear()


class _VirtualMachine(Machine):
    """One whose calendar and whose chances are the world's."""

    def __init__(self, name: str, network: LiveNetwork, seed: int) -> None:
        super().__init__(name, network, None, False, seed)
        self._random = Random(seed)

    def switch_on(self) -> Runtime:
        return replace(super().switch_on(), random=Random(self._random.random()))


class VirtualWorld:
    """Of one seed."""

    clients_are_inside = True
    descriptors = _DESCRIPTORS

    def __init__(self, seed: int) -> None:
        self.clock = self.make_clock()
        self.random = Random(f"world {seed}")
        self.network = LiveNetwork(self.clock, Random(f"network {seed}"), NetworkConditions())
        self.reactor: Any = NodeClock(self.clock, "world")
        self.outside = Runtime(
            clock=self.reactor,
            wall_ms=self.clock.calendar_ms,
            network=self.network.switch_on(self.reactor),
            files=SimDisk(),
            disk=lambda directory: StallingWorker(self.reactor),
            random=Random(f"outside {seed}"),
            key_files=OsFileSystem(),
        )

    def make_clock(self) -> VirtualClock:
        """Where another program steps it: its own."""
        return VirtualClock()

    def made_for(self, config: BrokerConfig) -> World:
        """Itself: `RunningCluster` asks for a world when it knows its brokers' settings."""
        return self

    def machine(self, name: str, data: bool) -> Machine:
        """A new one, with its disk in memory."""
        assert not data
        return _VirtualMachine(name, self.network, self.random.randrange(1 << 30))
