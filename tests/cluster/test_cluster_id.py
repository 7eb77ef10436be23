"""The question which cluster a controller belongs to, to one that only just started."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from twisted_broker.cluster.cluster_id import fetch_cluster_id
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.header import decode_request_header, encode_response_header
from twisted_broker.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from twisted_broker.wire.messages.cluster import DescribeClusterResponse
from twisted_broker.wire.schema import encode

API_VERSIONS, DESCRIBE_CLUSTER = 18, 60


class Controller:
    """A network whose connections end in a controller; `features_epoch`: what it knows."""

    def __init__(self) -> None:
        self.features_epoch = -1
        self.asked: list[int] = []

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        protocol = factory.buildProtocol(None)
        controller = self

        class Transport(StringTransport):
            def write(self, data: bytes) -> None:
                controller.answer(protocol, data)

            def writeSequence(self, data: Any) -> None:
                self.write(b"".join(data))

        protocol.makeConnection(Transport())
        return succeed(protocol)

    def answer(self, protocol: Any, data: bytes) -> None:
        header, _ = decode_request_header(data[4:])
        self.asked.append(header.api_key)
        response: Any = DescribeClusterResponse(cluster_id="ours", error_message=None)
        if header.api_key == API_VERSIONS:
            response = ApiVersionsResponse(
                api_keys=[ApiVersion(api_key=DESCRIBE_CLUSTER, min_version=0, max_version=1)],
                finalized_features_epoch=self.features_epoch,
            )
        frame = encode_response_header(
            header.correlation_id, header.api_key, header.api_version
        ) + encode(response, header.api_version)
        protocol.dataReceived(len(frame).to_bytes(4, "big") + frame)


def test_a_controller_that_has_loaded_nothing_yet_is_not_asked() -> None:
    """Apache Kafka's refuses the question then, with an error and a trace in its log each time."""
    clock, controller = Clock(), Controller()
    runtime: Any = Runtime(
        clock=clock, wall_ms=lambda: 0, network=controller, files=None, disk=None, random=Random(1)
    )
    found: list[str] = []
    ensureDeferred(fetch_cluster_id(runtime, [("127.0.0.1", 9093)], lambda: False)).addCallback(
        found.append
    )
    clock.pump([0.1] * 20)
    assert not found and DESCRIBE_CLUSTER not in controller.asked
    controller.features_epoch = 4
    clock.pump([0.1] * 3)
    assert found == ["ours"] and controller.asked[-1] == DESCRIBE_CLUSTER
