"""`replog unregister`: takes a broker that is gone for good out of a cluster's metadata.

Owns the requests of it, over one blocking connection.

1. A broker that runs is refused: it would register again at once. One that still has replicas is
   refused without `--force`.
2. The exit status is 0 when the broker is unregistered, 1 when the cluster refuses or cannot be
   reached; one line says why.

Source: Kafka's `kafka-cluster unregister` (KIP-500), which checks nothing. Not here: moving
replicas (clients' tools do it), the decision (`cluster/broker_registry.py`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from typing import TypeVar

import click

from twisted_broker.wire.errors import BrokerError, WireError, error_of
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataResponse
from twisted_broker.wire.schema import Request, Response, decode, encode

# Above the 30 s that a broker waits for its controller.
_TIMEOUT_SECONDS = 40.0
_LARGEST_ANSWER = 128 << 20
_NAMED = 5
R = TypeVar("R", bound=Response)


@click.command()
@click.option(
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT",
    required=True,
    help="One of the brokers that are left.",
)
@click.option("--id", "broker_id", type=click.IntRange(min=0), required=True, help="Its node.id.")
@click.option(
    "--force", is_flag=True, help="Also where it has replicas, which are lost if no other has them."
)
def unregister(bootstrap_server: str, broker_id: int, force: bool) -> None:
    """Unregister a broker that is gone for good, as Kafka's kafka-cluster does.

    Move its replicas to other brokers and stop it before. A broker that only restarts needs no
    such thing; one that is started again after this registers anew.
    """
    host, _, port = bootstrap_server.rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError(f"--bootstrap-server takes HOST:PORT, not {bootstrap_server!r}")
    try:
        with _connected(host.strip("[]"), int(port)) as connection:
            refusal = _refusal(connection, broker_id, force) or _unregister(connection, broker_id)
    except TimeoutError:
        refusal = f"{bootstrap_server} does not answer within {_TIMEOUT_SECONDS:.0f} s"
    except (OSError, WireError) as error:
        refusal = f"{bootstrap_server} cannot be used: {error}"
    if refusal:
        click.echo(refusal, err=True)
        sys.exit(1)
    click.echo(f"broker {broker_id} is unregistered")


def _refusal(connection: socket.socket, broker_id: int, force: bool) -> str:
    """Why the broker must not be unregistered; "" when it may."""
    described = _call(connection, DescribeClusterRequest(), 0, DescribeClusterResponse)
    if described.error_code:
        return _words(described.error_code, described.error_message)
    if any(each.broker_id == broker_id for each in described.brokers):
        return f"broker {broker_id} is running, and would register again: stop it first"
    if force:
        return ""
    metadata = _call(connection, MetadataRequest(topics=None), 9, MetadataResponse)
    held = [
        f"{topic.name}-{partition.partition_index}"
        for topic in metadata.topics
        for partition in topic.partitions
        if broker_id in partition.replica_nodes
    ]
    if not held:
        return ""
    named = ", ".join(held[:_NAMED]) + (", .." if len(held) > _NAMED else "")
    return (
        f"broker {broker_id} has {len(held)} replicas ({named}): reassign them to other brokers "
        "first, or give --force"
    )


def _unregister(connection: socket.socket, broker_id: int) -> str:
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = _call(connection, request, 0, UnregisterBrokerResponse)
    return _words(answer.error_code, answer.error_message) if answer.error_code else ""


def _words(code: int, message: str | None) -> str:
    return f"the cluster refuses: {BrokerError(error_of(code), message)}"


@contextlib.contextmanager
def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        yield connection


def _call(connection: socket.socket, request: Request, version: int, kind: type[R]) -> R:
    """One request and its answer. Raises OSError, WireError."""
    header = RequestHeader(request.api_key, version, 1, "replog-unregister")
    frame = encode_request_header(header) + encode(request, version)
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 4 <= size <= _LARGEST_ANSWER:
        raise ConnectionError(f"an answer of {size} bytes: this is no Kafka broker")
    answer = _exactly(connection, size)
    _, start = decode_response_header(answer, request.api_key, version)
    return decode(kind, answer, version, start)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 20))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return bytes(data)
