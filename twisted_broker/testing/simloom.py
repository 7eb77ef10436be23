"""A cluster in a run of simloom, which simulates a program of asyncio.

Owns `kafka`: the brokers of `replog simulate`, in the virtual time of simloom's loop. Each has a
listener on simloom's network; what it draws comes from the tape's seed.

1. One timer of the loop stands for all of the brokers' timers: simloom chooses when a program's
   callbacks run, among the brokers' own the order is theirs.
2. It is imported before the client: aiokafka keeps the `time.time` that it finds then, and its
   extensions in C read the system's clock.
3. A connection is a client's on simloom's network, with its delays and losses, and one of a
   machine `client` inside; each is ended where the other is.

Ring 2. Source: simloom 0.5. Not here: the verbs (`awaited.py`), simloom's hosts, which are the
program's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from twisted_broker.simulation.clock import NodeClock, SimCall, SimClock
from twisted_broker.simulation.network import HostNetwork
from twisted_broker.testing.here import ClusterHere
from twisted_broker.testing.running_cluster import RunningCluster
from twisted_broker.testing.simulated.cluster import settings_of
from twisted_broker.testing.simulated.run import SETTINGS
from twisted_broker.testing.simulated.virtual_world import VirtualClock, VirtualWorld

_CLIENT, _PATIENCE_SECONDS = "client", 30.0
_SEEDS, _TICK_SECONDS = 1 << 30, 1e-6
_real_time = time.time


def _time() -> float:
    """By the clock of the run, where there is one."""
    return _real_time() if time.time is _time else time.time()


time.time = _time
os.environ.setdefault("AIOKAFKA_NO_EXTENSIONS", "1")


class _LoopClock(VirtualClock):
    """Driven by a loop's timer. Its context is no host's: a host that crashed runs nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop, self._loop_began = loop, loop.time()
        self._wall_began = int(time.time() * 1000)
        self._context = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._steps = False

    def refresh(self) -> float:
        self.now = max(self.now, self._loop.time() - self._loop_began)
        return self.now

    def outside_ms(self) -> int:
        return self._wall_began + int(self.now * 1000)

    def push(self, call: SimCall) -> None:
        SimClock.push(self, call)
        if not self._steps:
            self._wake_at(call.due)

    def _wake_at(self, due: float) -> None:
        when = self._loop_began + due
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._run_until, due, context=self._context)

    def _run_until(self, due: float) -> None:
        self._timer, self._steps = None, True
        try:
            # The loop's time may be less than `due` by a rounding.
            until = max(due, self.refresh())
            for _ in range(len(self.queue)):
                if not self.step(until):
                    break
        finally:
            self._steps = False
        if self.queue:
            self._wake_at(self.queue[0][0])

    def stop(self) -> None:
        super().stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _tick(loop: Any) -> None:
    """aiokafka waits for 1e-16 s, again and again, which moves no clock: a microsecond at least."""
    later = loop.call_later
    loop.call_later = lambda delay, *more, **context: later(
        max(delay, _TICK_SECONDS) if delay > 0 else delay, *more, **context
    )


class _World(VirtualWorld):
    def make_clock(self) -> VirtualClock:
        return _LoopClock(asyncio.get_running_loop())


class _Cluster(ClusterHere):
    """Its verbs are awaited by tasks of the loop."""

    def _called(self, name: str, /, **arguments: Any) -> asyncio.Future[Any]:
        return _future(self._running.call(name, arguments))


def _future(coroutine: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, Failure):
            future.set_exception(result.value or RuntimeError(str(result)))
        else:
            future.set_result(result)

    ensureDeferred(coroutine).addBoth(done)
    return future


class _Outer(asyncio.Protocol):
    """A client's connection on simloom's network. What comes before the other is there waits."""

    transport: Any

    def __init__(self, network: HostNetwork, host: str, port: int) -> None:
        self._network, self._where = network, (host, port)
        self._inner: _Inner | None = None
        self._held: list[bytes] = []
        self._is_over = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        factory = Factory.forProtocol(lambda: _Inner(self))
        factory.noisy = False
        connecting = self._network.connect(*self._where, factory, _PATIENCE_SECONDS)
        connecting.addCallbacks(self._connected, lambda _: transport.abort())

    def _connected(self, inner: _Inner) -> None:
        self._inner, there = inner, inner.transport
        if self._is_over:
            there.abortConnection()
            return
        for data in self._held:
            there.write(data)
        self._held.clear()

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._held.append(data)
        else:
            self._inner.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        if self._inner is not None:
            there = self._inner.transport
            there.loseConnection() if exc is None else there.abortConnection()


class _Inner(Protocol):
    """The same, to a broker."""

    transport: Any

    def __init__(self, outer: _Outer) -> None:
        self._outer = outer

    def dataReceived(self, data: bytes) -> None:
        if not self._outer.transport.is_closing():
            self._outer.transport.write(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self._outer.transport.close()


@asynccontextmanager
async def kafka(
    brokers: int = 3,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[str, int] | None = None,
) -> AsyncIterator[ClusterHere]:
    """The cluster, in `async with`; it has the names of `AsyncCluster`. Raises StartError."""
    from simloom import draw

    loop = asyncio.get_running_loop()
    _tick(loop)
    world = _World(draw("kafka.seed", _SEEDS))
    given = {**SETTINGS, **settings_of(settings or {})}
    running = RunningCluster(brokers, given, None, dict(topics or {}), world.made_for)
    await _future(running.start())
    client = NodeClock(world.clock, _CLIENT)
    world.network.names.add(_CLIENT)
    network = world.network.switch_on(client)
    servers = []
    for address in running.calls.bootstrap.split(","):
        host, _, port = address.partition(":")
        where = host, int(port)
        servers.append(await loop.create_server(partial(_Outer, network, *where), *where))
    try:
        yield _Cluster(running)
    finally:
        for server in servers:
            server.close()
        world.clock.stop()
