"""A simulated network between machines on a `SimClock`: under a seed it delays, stalls, drops and
refuses connections.

Owns `SimNetwork` (all connections), `NetworkConditions` (delays and their chances) and
`HostNetwork` (the `INetwork` of one machine).

1. A blocked direction holds back what is sent over it, and connecting over it times out. `heal`
   either delivers what was held back or finds the connection dead, as the seed says.
2. When a process dies, its peers see a reset behind what it sent. A machine that loses power is
   silent until it is back.
3. An aborted connection may lose what was under way or deliver it late: a request may be processed
   after its sender gave up.
4. Connections overtake one another; the bytes of one connection do not
   (`simulation/transport.py`).

The twin of `net/network.py`. Not here: loss of single packets (TCP repeats them: a delay).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from errno import EADDRINUSE
from random import Random
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError, ConnectionLost

from twisted_broker.interfaces import IFile
from twisted_broker.net.network import copy_slice
from twisted_broker.simulation.clock import NodeClock, SimClock
from twisted_broker.simulation.connecting import Connecting, Port
from twisted_broker.simulation.transport import Pipe, SimTransport

_FIRST_FREE_PORT = 20_000


@dataclass
class NetworkConditions:
    """How connections are when nothing is blocked. Delays in seconds, chances from 0 to 1."""

    delay_min: float = 0.0002
    delay_max: float = 0.002
    slow_chance: float = 0.0
    """of a connection to be slow for all its life"""
    slow_delay_max: float = 0.0
    slow_ports: tuple[int, ...] = ()
    """which connections may be slow; none named: all"""
    slow_callers: str = ""
    """how the names of machines begin whose connections may be slow"""
    dead_after_heal: float = 0.3
    """the chance that a connection which was held back is found dead"""


class HostNetwork:
    """The network port of one machine while it runs."""

    def __init__(self, network: SimNetwork, clock: NodeClock) -> None:
        self.network, self.clock = network, clock

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        number = port or self.network.free_port()
        if (self.clock.name, number) in self.network.ports:
            return fail(CannotListenError(host, number, OSError(EADDRINUSE, "in use")))
        made = Port(self.network, self.clock, IPv4Address("TCP", self.clock.name, number), factory)
        self.network.ports[self.clock.name, number] = made
        return succeed(made)

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        return Connecting(self.network, self.clock, host, port, factory, timeout).answer

    def send_slice(self, transport: Any, file: IFile, position: int, length: int) -> int:
        return copy_slice(transport, file, position, length)


class SimNetwork:
    """All cables. A machine's address is its clock's name."""

    def __init__(
        self, sim: SimClock, random: Random, conditions: NetworkConditions | None = None
    ) -> None:
        self.sim, self.random = sim, random
        self.conditions = conditions if conditions is not None else NetworkConditions()
        self.ports: dict[tuple[str, int], Port] = {}
        self.machines: dict[str, NodeClock] = {}
        self.without_power: set[str] = set()
        self.blocked: set[tuple[str, str]] = set()
        self.connections: list[SimTransport] = []
        """the near side of each connection that stands; the far one is its peer"""
        self._next_port = _FIRST_FREE_PORT

    def delay(self, extra: float = 0.0) -> float:
        conditions = self.conditions
        return (
            conditions.delay_min
            + self.random.random() * (conditions.delay_max - conditions.delay_min)
            + extra
        )

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # machines

    def switch_on(self, clock: NodeClock) -> HostNetwork:
        """A machine is on the network (again); connections to what it was before are found dead."""
        self.machines[clock.name] = clock
        self.without_power.discard(clock.name)
        for transport in self._sides_towards(clock.name, lambda far: far.dead):
            transport.clock.callLater(
                self.random.random(), transport.peer.pipe.send, transport.lost, ConnectionLost()
            )
        return HostNetwork(self, clock)

    def switch_off(self, name: str, silent: bool) -> None:
        """A process ended, and its peers hear it; `silent`: its machine is without power, and
        they do not.
        """
        self.machines.pop(name, None)
        self.ports = {address: port for address, port in self.ports.items() if address[0] != name}
        if silent:
            self.without_power.add(name)
            return
        for transport in self._sides_towards(name, lambda far: True):
            transport.peer.pipe.send(transport.lost, ConnectionLost())

    def _sides_towards(self, name: str, which: Callable[[NodeClock], bool]) -> list[SimTransport]:
        """The sides of connections whose other end is (or was) on machine `name`."""
        sides = [side for near in self.connections for side in (near, near.peer)]
        return [
            side
            for side in sides
            if side.peer.clock.name == name
            and which(side.peer.clock)
            and side.connected
            and not side.clock.dead
        ]

    # connections

    def join(
        self, near_clock: NodeClock, far_clock: NodeClock, here: IPv4Address, there: IPv4Address
    ) -> tuple[SimTransport, SimTransport]:
        conditions = self.conditions
        slow = self.random.random() < conditions.slow_chance and near_clock.name.startswith(
            conditions.slow_callers
        )
        slow = slow and (not conditions.slow_ports or there.port in conditions.slow_ports)
        extra = self.random.random() * conditions.slow_delay_max if slow else 0.0
        near, far = (
            SimTransport(self, near_clock, here, there),
            SimTransport(self, far_clock, there, here),
        )
        near.peer, far.peer = far, near
        near.pipe = self.make_pipe((near_clock.name, far_clock.name), far_clock, extra)
        far.pipe = self.make_pipe((far_clock.name, near_clock.name), near_clock, extra)
        self.connections.append(near)
        return near, far

    def make_pipe(self, way: tuple[str, str], goal: NodeClock, extra: float) -> Pipe:
        return Pipe(self, way, goal, extra)

    def reset(self, side: SimTransport) -> None:
        """One side gave up: what it sent may be lost, or come late; then the other side hears
        it.
        """
        # TCP promises nothing for what was under way: both outcomes must be survived.
        if self.random.random() < 0.5:
            side.pipe.clear()
        side.pipe.send(side.peer.lost, ConnectionLost())

    def forget(self, side: SimTransport) -> None:
        near = side if side in self.connections else side.peer
        if near in self.connections and not (side.peer.connected and not side.peer.clock.dead):
            self.connections.remove(near)

    def break_connection(self, near: SimTransport) -> None:
        """A connection dies: one side finds it dead now, the other one behind what was under way
        to it, if that comes at all.
        """
        side = near if self.random.random() < 0.5 else near.peer
        if not side.clock.dead:
            side.clock.callLater(self.delay(), side.lost, ConnectionLost())
        side.peer.pipe.cut()
        self.reset(side)

    def give_up(self, near: SimTransport, seconds: float) -> None:
        """The caller finds its connection dead; what it sent arrives `seconds` later all the
        same.
        """
        self.hold(near)(seconds)

    def hold(self, near: SimTransport) -> Callable[[float], None]:
        """The same; how many seconds later says who calls what this returns, some time."""
        held, near.pipe.travelling = near.pipe.travelling, deque()
        near.pipe.cut()
        near.clock.callLater(self.delay(), near.lost, ConnectionLost())

        def release(seconds: float) -> None:
            goal = near.pipe.goal
            if goal.dead:
                return
            for call, argument in held:
                goal.callLater(seconds, call, argument)
                # Calls due together may be shuffled; the bytes of a connection may not.
                seconds += 1e-6
            goal.callLater(seconds, near.peer.lost, ConnectionLost())

        return release

    def leave_half_open(self, near: SimTransport) -> None:
        """One side is gone; nothing that it or the network sends says so to the other one, until
        that writes and is answered with a reset.
        """
        side = near if self.random.random() < 0.5 else near.peer
        if side.clock.dead or not side.connected:
            return
        side.pipe.cut()
        side.peer.pipe.cut()
        side.peer.pipe.resets = True
        side.clock.callLater(0, side.lost, ConnectionLost())

    def round_trip(self, names: frozenset[str]) -> float:
        """Seconds that the slowest connection between machines of `names` adds to a round trip."""
        return max(
            (
                near.pipe.extra + near.peer.pipe.extra
                for near in self.connections
                if near.clock.name in names and near.peer.clock.name in names
            ),
            default=0.0,
        )

    # ways

    def block(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target`; the other direction is another matter."""
        self.blocked.add((source, target))

    def hurry(self) -> None:
        """No connection is slow any more."""
        self.conditions.slow_chance = 0.0
        for near in self.connections:
            near.pipe.extra = near.peer.pipe.extra = 0.0

    def heal(self) -> None:
        """All ways are open again."""
        blocked, self.blocked = self.blocked, set()
        for near in list(self.connections):
            held = [
                side for side in (near, near.peer) if side.pipe.way in blocked and side.pipe.stalled
            ]
            if held and self.random.random() < self.conditions.dead_after_heal:
                self.break_connection(near)
                continue
            for side in held:
                side.pipe.resume()
