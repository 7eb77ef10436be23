"""The machines of simulated Java brokers, of which one is the controller; none holds a replica.

Owns `ControllerMachine`: its process is started, killed and paused; and `Requests`, the little that
a broker of ours sends to the controller, served.

Source: KRAFT 2.3. Not here: what the controller does (`simulation/zookeeper/controller.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

from twisted_broker.interfaces import Runtime
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.simulation.world import SimWorld
from twisted_broker.simulation.zookeeper.controller import Controller
from twisted_broker.simulation.zookeeper.session import SimZooKeeper
from twisted_broker.wire.header import decode_request_header, encode_response_header
from twisted_broker.wire.messages import api_versions
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.wire.messages.producer_ids import AllocateProducerIdsRequest
from twisted_broker.wire.schema import decode, encode
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol

PORT = 9092
_VERSIONS: dict[int, tuple[Any, int, int]] = {
    7: (messages.ControlledShutdownRequest, 3, 3),
    18: (api_versions.ApiVersionsRequest, 0, 4),
    56: (lifecycle.AlterPartitionRequest, 0, 3),
    67: (AllocateProducerIdsRequest, 0, 0),
}


class _Requests(Int32StringReceiver):
    """One connection of a broker: one request after another."""

    def __init__(self, serve: Callable[[Any, int], Awaitable[Any]]) -> None:
        self._serve = serve

    def stringReceived(self, string: bytes) -> None:
        ensureDeferred(self._answer(string))

    async def _answer(self, frame: bytes) -> None:
        header, position = decode_request_header(frame)
        found = _VERSIONS.get(header.api_key)
        if found is None or not found[1] <= header.api_version <= found[2]:
            self.transport.abortConnection()  # type: ignore[union-attr]
            return
        request = decode(found[0], frame, header.api_version, position)
        answer = (
            _api_versions()
            if header.api_key == api_versions.ApiVersionsRequest.api_key
            else await self._serve(request, header.api_version)
        )
        if self.transport is not None and answer is not None:
            head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
            frame = head + encode(answer, header.api_version)
            self.sendString(frame)  # type: ignore[no-untyped-call]


def _api_versions() -> api_versions.ApiVersionsResponse:
    return api_versions.ApiVersionsResponse(
        api_keys=[
            api_versions.ApiVersion(api_key=key, min_version=least, max_version=most)
            for key, (_, least, most) in _VERSIONS.items()
        ]
    )


class ControllerMachine:
    """`counted(kind)` is called with what its controller did."""

    def __init__(
        self,
        world: SimWorld,
        node_id: int,
        protocol: InterBrokerProtocol,
        session_timeout_ms: int,
        counted: Callable[[str], None],
    ) -> None:
        self.world, self.node_id, self.name = world, node_id, f"k{node_id}"
        self._protocol, self._timeout_ms, self._counted = protocol, session_timeout_ms, counted
        self.incarnation = 0
        self.controller: Controller | None = None
        self.clock = NodeClock(world.sim, self.name)

    def start(self) -> None:
        """A new process; not while one runs."""
        assert self.controller is None
        self.incarnation += 1
        clock = self.clock = NodeClock(self.world.sim, self.name)
        runtime = Runtime(
            clock,
            clock.wall_ms,
            self.world.network.switch_on(clock),
            SimDisk(),
            lambda directory: StallingWorker(clock),
            Random(f"{self.world.seed} {self.name} {self.incarnation}"),
        )
        controller = self.controller = Controller(
            runtime,
            self.node_id,
            (self.name, PORT),
            self._protocol,
            SimZooKeeper(runtime, self.name, self._timeout_ms),
            lambda what: self.world.note(self.name, what),
            self._counted,
            lambda text: self.world.bug(f"{self.name}: {text}"),
        )
        factory: Any = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: _Requests(controller.serve)
        runtime.network.listen(self.name, PORT, factory)
        controller.start()

    def kill(self) -> None:
        self.world.note(self.name, "killed")
        self.clock.switch_off()
        self.world.network.switch_off(self.name, False)
        self.controller = None
