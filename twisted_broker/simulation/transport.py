"""One connection of the simulated network: two sides, and a pipe in each direction.

Owns `Pipe` and `SimTransport`, Twisted's transport of one side.

1. What is written arrives in the order of writing, each piece after a drawn delay; pieces on a
   blocked way wait for it to open.
2. Everything that a side hears, it hears in a call of its own machine's clock.
3. A side that does not read fills its peer's window, which pauses its producer.

Not here: when ways are blocked and connections die (`simulation/network.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost

from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.memory_network import MemoryTransport

_WINDOW_BYTES = 65536


class _Network(Protocol):
    """What a connection needs of the network (`SimNetwork`)."""

    blocked: set[tuple[str, str]]

    def delay(self, extra: float = 0.0) -> float: ...
    def reset(self, side: SimTransport) -> None: ...
    def forget(self, side: SimTransport) -> None: ...


class Pipe:
    """One direction of a connection: what travels, in order."""

    __slots__ = ("extra", "goal", "is_cut", "network", "resets", "stalled", "travelling", "way")

    def __init__(
        self, network: _Network, way: tuple[str, str], goal: NodeClock, extra: float
    ) -> None:
        self.network, self.way, self.goal, self.extra = network, way, goal, extra
        self.travelling: deque[tuple[Callable[..., None], Any]] = deque()
        self.stalled = 0
        self.is_cut = False
        """something was lost on it: nothing that is written later arrives, a stream has no holes"""
        self.resets = False
        """nobody is at the goal: who sends there hears of it, a round trip later"""

    def send(self, call: Callable[..., None], argument: Any) -> None:
        if self.is_cut:
            return
        self.travelling.append((call, argument))
        self.goal.callLater(self.network.delay(self.extra), self.arrive)

    def arrive(self) -> None:
        if not self.travelling:
            return
        if self.way in self.network.blocked:
            self.stalled += 1
            return
        call, argument = self.travelling.popleft()
        call(argument)

    def resume(self) -> None:
        stalled, self.stalled = self.stalled, 0
        for _ in range(stalled):
            self.goal.callLater(self.network.delay(self.extra), self.arrive)

    def cut(self) -> None:
        """What travels is lost, and all that is sent from now on."""
        self.clear()
        self.is_cut = True

    def clear(self) -> None:
        """What travels is lost."""
        self.travelling.clear()
        self.stalled = 0


class SimTransport(MemoryTransport):
    """One side of a connection."""

    network: _Network  # type: ignore[assignment]
    peer: SimTransport

    def __init__(
        self, network: _Network, clock: NodeClock, here: IPv4Address, there: IPv4Address
    ) -> None:
        super().__init__(network, here, there)  # type: ignore[arg-type]
        self.clock = clock
        self.pipe: Pipe

    def write(self, data: bytes) -> None:
        if not self.connected or self.disconnecting or not data or self.clock.dead:
            return
        self.in_window += len(data)
        if self.pipe.resets:
            self.clock.callLater(self.network.delay() * 2, self.lost, ConnectionLost())
            return
        self.pipe.send(self.peer.arrive, bytes(data))
        if (
            self.in_window > _WINDOW_BYTES
            and self.producer is not None
            and not self.producer_paused
        ):
            self.producer_paused = True
            self.producer.pauseProducing()

    def read_by_peer(self, count: int) -> None:
        self.in_window -= count
        if self.producer_paused and not self.in_window and self.producer is not None:
            self.producer_paused = False
            self.clock.callLater(0, self._resume)

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self.disconnecting = True
            self.clock.callLater(0, self.lost, ConnectionDone())
            self.pipe.send(self.peer.lost, ConnectionDone())

    def abortConnection(self) -> None:
        if self.connected:
            self.disconnecting = True
            self.clock.callLater(0, self.lost, ConnectionAborted())
            self.network.reset(self)

    def lost(self, reason: Exception) -> None:
        if self.protocol is None:
            self.connected = False  # nobody had it yet
        super().lost(reason)
        self.network.forget(self)
