"""Clients that take what others need: they announce, they drip, and what they ask multiplies."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress

from tests.faults.scene import Scene, kind
from tests.hostile.requests import PATTERNS
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.transactions import ListTransactionsRequest
from twisted_broker.wire.schema import encode

ANNOUNCED, DRIPPED, BEGUN = 100 << 20, 2 << 20, 100_000
MANY = 40
LOOK_SECONDS = 0.05


def sent(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it was closed, as it may be
        peer.sendall(data)


def asks(pattern: str) -> bytes:
    """The request, whose answer nobody waits for."""
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    frame = encode_request_header(RequestHeader(request.api_key, 2, 1, "greedy")) + encode(
        request, 2
    )
    return len(frame).to_bytes(4, "big") + frame


@kind
def greedy_clients(scene: Scene) -> str:
    """Of a broker that leads; everybody else goes on."""
    victim = scene.leader()
    address = scene.cluster.nodes[victim].address
    with ExitStack() as stack:

        def connected() -> socket.socket:
            peer: socket.socket = stack.enter_context(socket.create_connection(address, 10))
            return peer

        for _ in range(MANY):
            sent(connected(), ANNOUNCED.to_bytes(4, "big") + bytes(4))
        dripping = [connected() for _ in range(MANY)]
        for each in dripping:
            sent(each, DRIPPED.to_bytes(4, "big") + bytes(BEGUN))
        multiplying = connected()
        for pattern in PATTERNS:
            sent(multiplying, asks(pattern))
        ends = time.monotonic() + scene.random.uniform(2, 6)
        while time.monotonic() < ends:
            for each in dripping:
                sent(each, b"\0")
            scene.hold(LOOK_SECONDS, LOOK_SECONDS)
    return victim
