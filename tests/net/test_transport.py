"""What `net/transport.py`, `epoll_group.py` and `network.py` promise, over real sockets on loopback
and a reactor turned by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.selectreactor import SelectReactor
from twisted.python.failure import Failure

from tests.net.echo import framed
from twisted_broker.interfaces import Runtime
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile
from twisted_broker.net import epoll_group
from twisted_broker.net import network as network_module
from twisted_broker.net import transport as transport_module
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connection import KafkaConnection, PendingResponse
from twisted_broker.net.connection_limits import ConnectionCounts, ConnectionFactory
from twisted_broker.net.epoll_group import EpollGroup
from twisted_broker.net.frames import FrameReader
from twisted_broker.net.network import ReactorNetwork
from twisted_broker.net.tls_protocol import TlsProtocol
from twisted_broker.net.transport import ClientTransport, ServerTransport
from twisted_broker.reactor_watch import ReactorWatch

needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="no epoll here")


class Loopback:
    """A listener on a real port; `turn` runs the reactor until `until()` holds."""

    def __init__(self, dispatch: Any, watch: ReactorWatch | None = None) -> None:
        self.reactor = SelectReactor()
        network = ReactorNetwork(self.reactor, watch=watch)
        runtime = Runtime(
            clock=self.reactor,
            wall_ms=lambda: 0,
            network=network,
            files=OsFileSystem(),
            disk=None,
            random=Random(1),
        )
        self.factory = ConnectionFactory(
            runtime, dispatch, ConnectionCounts(10_000, 10_000), frame_limit=100 << 20, idle_ms=0
        )
        self.network = network
        self.port = self.result(network.listen("127.0.0.1", 0, self.factory))
        self.number = self.port.getHost().port
        self.sockets: list[socket.socket] = []

    def result(self, deferred: Any) -> Any:
        got: list[Any] = []
        deferred.addBoth(got.append)
        self.turn(lambda: bool(got))
        if isinstance(got[0], Failure):
            got[0].raiseException()
        return got[0]

    def turn(self, until: Any, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "nothing happened"
            self.reactor.runUntilCurrent()
            self.reactor.doIteration(0.001)

    def client(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.number))
        made.setblocking(False)
        self.reactor.doIteration(0)
        self.sockets.append(made)
        return made

    def receive(self, client: socket.socket, count: int) -> bytes:
        found = bytearray()

        def all_there() -> bool:
            with contextlib.suppress(BlockingIOError):
                found.extend(client.recv(min(1 << 20, count - len(found))))
            return len(found) >= count

        self.turn(all_there)
        return bytes(found)

    def closed(self, client: socket.socket) -> bool:
        """Whether the stream has ended; a reset is an error."""
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.factory.close_all()
        self.result(self.port.stopListening())
        self.turn(lambda: not self.factory.connections)


def echo(connection: Any, frame: bytes) -> bytes:
    return framed(bytes(frame))


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    made = Loopback(echo)
    yield made
    made.close()


def test_requests_are_answered_over_real_sockets(loopback: Loopback) -> None:
    """Small frames, several in one piece, and one of 3 MiB that is read straight into its
    buffer.
    """
    client = loopback.client()
    client.send(framed(b"one") + framed(b"two"))
    assert loopback.receive(client, 14) == framed(b"one") + framed(b"two")
    large = framed(bytes(n % 251 for n in range(3 << 20)))
    sent, found = 0, bytearray()

    def exchanged() -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            sent += client.send(large[sent : sent + 300_000]) if sent < len(large) else 0
        with contextlib.suppress(BlockingIOError):
            found.extend(client.recv(1 << 20))
        return len(found) >= len(large)

    loopback.turn(exchanged)
    assert bytes(found) == large


class Answers(Protocol):
    """Of a connection to the listener: frames, and how their bytes came."""

    def __init__(self) -> None:
        self.frames = FrameReader(100 << 20)
        self.got: list[bytes] = []
        self.by_copy = self.in_place = self.lost = 0

    def receive_space(self) -> memoryview | None:
        return self.frames.space()

    def received(self, count: int) -> None:
        self.in_place += count
        self.frames.filled(count)
        self.take()

    def dataReceived(self, data: bytes) -> None:
        self.by_copy += len(data)
        self.frames.feed(data)
        self.take()

    def take(self) -> None:
        while (frame := self.frames.next_frame()) is not None:
            self.got.append(bytes(frame))
            frame = None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost += 1


def connected(loopback: Loopback) -> Any:
    return loopback.result(
        loopback.network.connect("127.0.0.1", loopback.number, Factory.forProtocol(Answers), 10)
    )


def test_a_client_sends_pieces_in_order_and_reads_into_the_frame(loopback: Loopback) -> None:
    """Pieces that the socket does not take at once, small ones between them, and a plain write:
    all in order. A long answer comes into its own buffer but for its beginning.
    """
    client = connected(loopback)
    large = bytes(n % 251 for n in range(5 << 20))
    views = [memoryview(large)[at : at + 40_000] for at in range(0, len(large), 40_000)]
    client.transport.write_parts([len(large).to_bytes(4, "big"), *views])
    assert client.transport._unsent, "the socket took five megabytes"
    client.transport.write_parts([framed(b"second")])
    client.transport.write(framed(b"third"))
    client.transport.write_parts([framed(b"fourth")])
    loopback.turn(lambda: len(client.got) == 4)
    assert client.got == [large, b"second", b"third", b"fourth"]
    assert client.in_place > 4 << 20 and client.by_copy < 1 << 19
    assert not client.transport._unsent
    client.transport.write_parts([framed(b"fifth")])
    client.transport.loseConnection()
    loopback.turn(lambda: client.lost)
    assert client.lost == 1


class Pieces(Protocol):
    """Stands before the protocol that has the frames, as that of SASL does."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def dataReceived(self, data: bytes) -> None:
        self.sizes.append(len(data))


class Wrapper(Pieces):
    """As that of TLS."""

    is_wrapper = TlsProtocol.is_wrapper

    def receive_space(self) -> None:
        """None ever."""


@pytest.mark.parametrize("stands_before", [Pieces, Wrapper])
def test_what_stands_before_a_clients_frames_gets_large_pieces(
    loopback: Loopback, stands_before: type[Pieces]
) -> None:
    client: Any = loopback.result(
        loopback.network.connect(
            "127.0.0.1", loopback.number, Factory.forProtocol(stands_before), 10
        )
    )
    client.transport.write(framed(bytes(2 << 20)))
    loopback.turn(lambda: sum(client.sizes) == 4 + (2 << 20))
    assert max(client.sizes) > 65536


def test_a_client_whose_peer_goes_away_keeps_nothing(loopback: Loopback) -> None:
    client = connected(loopback)
    loopback.turn(lambda: bool(loopback.factory.connections))
    client.transport.write_parts([bytes(8 << 20)])
    for each in loopback.factory.connections:
        each.close()
    loopback.turn(lambda: client.lost)
    client.transport.write_parts([b"late"])
    assert client.lost == 1 and not client.transport._unsent


@pytest.mark.parametrize("what", ["idle", "unread", "on its way", "unsent"])
def test_the_peer_of_a_client_that_closes_sees_the_end_of_the_stream(
    loopback: Loopback, what: str
) -> None:
    """Never a reset: neither with an answer that has come and was not read, nor with a request
    that the socket did not take.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    loopback.sockets.append(listening)
    runtime = loopback.factory.runtime
    host, port = listening.getsockname()
    connection: Any = BrokerConnection(runtime, host, port, "test")
    loopback.result(connection.connect())
    peer, _ = listening.accept()
    loopback.sockets.append(peer)
    errors: list[Failure] = []
    if what != "idle":
        size = 30 << 20 if what == "unsent" else 10
        answer = connection._send_parts(1, [bytes(size)], None)
        answer.addErrback(errors.append)
    if what == "unread":
        peer.send(framed((1).to_bytes(4, "big") + b"late"))
        select.select([connection._protocol.transport], [], [], 10)
    connection.close()
    if what == "on its way":
        peer.send(framed((1).to_bytes(4, "big") + b"late"))
    peer.setblocking(False)

    def ended() -> bool:
        with contextlib.suppress(BlockingIOError):
            return peer.recv(1 << 20) == b""
        return False

    loopback.turn(ended, 10)
    assert len(errors) == (what != "idle")
    assert not [each for each in loopback.reactor.getReaders() if isinstance(each, ClientTransport)]


def test_a_client_that_never_reads_costs_a_bounded_amount(loopback: Loopback) -> None:
    """Once the socket is full nothing more is read; when the client reads at last it gets
    everything in order.
    """
    client, neighbour = loopback.client(), loopback.client()
    payload = framed(bytes(50_000))
    sent = 0
    for _ in range(2000):
        with contextlib.suppress(BlockingIOError):
            sent += client.send(payload[sent % len(payload) :])
        loopback.reactor.doIteration(0)
    connection = next(each for each in loopback.factory.connections if each.output.full)
    assert connection.frames.pending < 1 << 20
    assert len(connection.transport.dataBuffer) + connection.transport._tempDataLen < 1 << 20
    neighbour.send(framed(b"next"))
    assert loopback.receive(neighbour, 8) == framed(b"next")
    whole = sent // len(payload) * len(payload)
    assert loopback.receive(client, whole) == payload * (whole // len(payload))


def test_a_hang_up_is_noticed_while_reading_and_writing(loopback: Loopback) -> None:
    """A reset of the peer ends the connection once, whatever was queued."""
    quiet, full = loopback.client(), loopback.client()
    for _ in range(200):
        try:
            full.send(framed(bytes(50_000)))
        except BlockingIOError:
            break
        loopback.reactor.doIteration(0)
    loopback.turn(lambda: len(loopback.factory.connections) == 2)
    for each in (quiet, full):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()
    loopback.turn(lambda: not loopback.factory.connections)


class Waits(PendingResponse):
    """A request that waits until the test says otherwise."""

    __slots__ = ("connection", "reads")

    def __init__(self, connection: Any, reads: bool) -> None:
        PendingResponse.__init__(self, None, False)
        self.connection, self.reads = connection, reads

    @property
    def only_reads(self) -> bool:
        return self.reads


@needs_epoll
@pytest.mark.parametrize("how", ["close", "half close", "reset"])
def test_a_client_that_hangs_up_behind_a_parked_fetch_is_gone_at_once(how: str) -> None:
    """One request waits, another one is held behind it, so that nothing is read: the hang-up is
    seen all the same.
    """
    broker = Loopback(lambda connection, frame: Waits(connection, True))
    client = broker.client()
    client.sendall(framed(b"fetch") + framed(b"and one more"))
    broker.turn(lambda: any(each._held is not None for each in broker.factory.connections))
    if how == "half close":
        client.shutdown(socket.SHUT_WR)
    else:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", how == "reset", 0))
        client.close()
    broker.turn(lambda: not broker.factory.connections, 10)
    broker.close()


@needs_epoll
def test_what_was_sent_before_a_hang_up_is_still_done() -> None:
    """A produce in progress and those behind it go into the logs; then the connection ends.

    The hang-up is told once: no turn is spun.
    """
    started: list[Waits] = []

    def dispatch(connection: Any, frame: bytes) -> Any:
        started.append(Waits(connection, False))
        return started[-1]

    broker = Loopback(dispatch)
    client = broker.client()
    client.sendall(b"".join(framed(b"produce %d" % n) for n in range(3)))
    broker.turn(lambda: bool(started) and started[0].connection._held is not None)
    client.close()
    connection = started[0].connection
    broker.turn(lambda: connection.hung_up)
    group = broker.network._group
    assert group is not None and group._epoll.poll(0) == []
    for n in range(3):
        started[n].answer, started[n].done = None, True
        connection.response_ready()
    broker.turn(lambda: not broker.factory.connections, 10)
    assert len(started) == 3 and not group._masks
    broker.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_port_that_can_accept_nobody_pauses_and_goes_on(
    loopback: Loopback, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes waits in the backlog; nothing is tried until a second has passed, so that the
    reactor does not spin; then all are served.
    """
    accepted: list[int] = []

    class Short:
        """The listening socket of a process that has no descriptor left."""

        def accept(self) -> Any:
            accepted.append(1)
            raise OSError(error, "too many")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real, loopback.port.socket = loopback.port.socket, Short()
    clients = [loopback.client() for _ in range(3)]
    for each in clients:
        each.send(framed(b"x"))
    loopback.turn(lambda: bool(accepted))
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        loopback.reactor.runUntilCurrent()
        loopback.reactor.doIteration(0.01)
    assert len(accepted) == 1
    loopback.port.socket = real
    for each in clients:
        assert loopback.receive(each, 5) == framed(b"x")


def test_a_port_that_pauses_can_be_closed(loopback: Loopback) -> None:
    """No timer of it stays behind."""
    port = loopback.result(loopback.network.listen("127.0.0.1", 0, loopback.factory))
    port._pause_accepting()
    assert loopback.reactor.getDelayedCalls()
    loopback.result(port.stopListening())
    assert not loopback.reactor.getDelayedCalls()


def test_a_port_accepts_none_while_its_factory_wants_a_pause(loopback: Loopback) -> None:
    """The others wait in the backlog, and are served afterwards."""
    pauses = [0.2, 0.0, 0.0]
    loopback.factory.accept_pause = lambda: pauses.pop(0)
    loopback.result(loopback.port.stopListening())
    loopback.port = loopback.result(loopback.network.listen("127.0.0.1", 0, loopback.factory))
    loopback.number = loopback.port.getHost().port
    began = time.monotonic()
    clients = [loopback.client() for _ in range(3)]
    for each in clients:
        each.send(framed(b"x"))
    assert loopback.receive(clients[0], 5) == framed(b"x")
    assert len(loopback.factory.connections) == 1 and len(pauses) == 2
    assert loopback.receive(clients[2], 5) == framed(b"x")
    assert time.monotonic() - began >= 0.2


def test_declared_lengths_cost_nothing(loopback: Loopback) -> None:
    """100 MiB announced and four bytes sent, on many connections: resident memory does not move
    (RELIABILITY 5.3).
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clients = [loopback.client() for _ in range(200)]
    for client in clients:
        client.send((100 << 20).to_bytes(4, "big") + b"\0\0\0\0")
    loopback.turn(lambda: sum(each.frames._filled for each in loopback.factory.connections) == 800)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_negative_length_closes_the_connection(loopback: Loopback) -> None:
    """And nobody else's."""
    client, neighbour = loopback.client(), loopback.client()
    client.send(b"\xff\xff\xff\xff")
    loopback.turn(lambda: loopback.closed(client))
    neighbour.send(framed(b"x"))
    assert loopback.receive(neighbour, 5) == framed(b"x")


@pytest.mark.parametrize("sent", [b"", b"behind it", bytes(200_000)])
def test_who_is_closed_sees_the_end_of_the_stream(loopback: Loopback, sent: bytes) -> None:
    """Never a reset, though it sends on before it looks: the answer to a login that failed came
    before. Its place is free when it has gone.
    """
    client = loopback.client()
    client.send(framed(b"a"))
    assert loopback.receive(client, 5) == framed(b"a")
    (connection,) = loopback.factory.connections
    connection.transport.write(b"last")
    client.send(sent)
    connection.close()
    for _ in range(20):
        loopback.reactor.doIteration(0.001)
        loopback.reactor.runUntilCurrent()
    with contextlib.suppress(BlockingIOError):
        client.send(sent)
    loopback.reactor.doIteration(0.001)
    assert client.recv(4) == b"last"
    loopback.turn(lambda: loopback.closed(client))
    client.close()
    loopback.turn(lambda: not loopback.factory.connections, 1)


def test_who_is_refused_sees_the_end_of_the_stream(loopback: Loopback) -> None:
    """Though its first request waits in the socket before it is accepted."""
    loopback.factory.counts.maximum = 0
    client = socket.create_connection(("127.0.0.1", loopback.number))
    loopback.sockets.append(client)
    client.setblocking(False)
    client.send(framed(b"a request"))
    loopback.turn(lambda: loopback.closed(client))


def test_who_does_not_go_is_waited_for_within_bounds(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In number, in bytes, and in time: what is there when the port closes, or one more ends."""
    monkeypatch.setattr(transport_module, "_LINGERING", 3)
    clients = [loopback.client() for _ in range(5)]
    loopback.turn(lambda: len(loopback.factory.connections) == 5)
    for connection in [*loopback.factory.connections]:
        connection.close()
    assert len(loopback.factory.connections) == 3
    for client in clients:
        loopback.turn(lambda client=client: loopback.closed(client))
    left = len(loopback.factory.connections)

    def floods() -> bool:
        with contextlib.suppress(OSError):
            clients[-1].send(bytes(60_000))
        return len(loopback.factory.connections) < left

    loopback.turn(floods)
    monkeypatch.setattr(transport_module, "_LINGER_SECONDS", 0.0)
    last = loopback.client()
    loopback.turn(lambda: len(loopback.factory.connections) == left)
    next(reversed(loopback.factory.connections)).close()
    loopback.turn(lambda: len(loopback.factory.connections) == left - 1, 1)
    loopback.turn(lambda: loopback.closed(last))


def test_nothing_is_waited_for_when_the_network_closes() -> None:
    """A stop is no slower for clients that stay."""
    broker = Loopback(echo)
    broker.client()
    broker.turn(lambda: bool(broker.factory.connections))
    broker.factory.close_all()
    broker.result(broker.port.stopListening())
    closing = broker.network.close()
    began = time.monotonic()
    broker.result(Deferred.fromCoroutine(closing))
    assert time.monotonic() - began < 1 and not broker.factory.connections


def test_a_port_in_use_is_an_error(loopback: Loopback) -> None:
    """`CannotListenError` names it."""
    with pytest.raises(CannotListenError, match=str(loopback.number)):
        loopback.result(loopback.network.listen("127.0.0.1", loopback.number, loopback.factory))


@pytest.fixture
def sliced(tmp_path: Path) -> Iterator[tuple[Loopback, SegmentFile, bytes]]:
    content = bytes(n * 31 % 251 for n in range(100_000)) * 60
    (tmp_path / "log").write_bytes(content)
    segment = SegmentFile(OpenFiles(OsFileSystem()), str(tmp_path / "log"))

    def dispatch(connection: Any, frame: bytes) -> Any:
        part = FileSlice(segment, 5, len(content) - 5)
        return [(len(part) + 2).to_bytes(4, "big") + b"hh", part]

    made = Loopback(dispatch)
    yield made, segment, content
    made.close()


def test_a_long_slice_is_sent_from_its_file(sliced: tuple[Loopback, SegmentFile, bytes]) -> None:
    """6 MB by sendfile, byte for byte, behind its header; twice on one connection; then the file
    is free.
    """
    loopback, segment, content = sliced
    client = loopback.client()
    client.send(framed(b"a") + framed(b"b"))
    expected = (len(content) - 3).to_bytes(4, "big") + b"hh" + content[5:]
    assert loopback.receive(client, 2 * len(expected)) == expected * 2
    assert segment.references == 0


@pytest.mark.parametrize("missing", [None, errno.EINVAL, errno.ENOTSUP])
def test_a_long_slice_without_sendfile(
    missing: int | None,
    sliced: tuple[Loopback, SegmentFile, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system has none, or the file system does not take it: read and written, in order."""

    def refuses(*arguments: Any) -> int:
        assert missing is not None
        raise OSError(missing, "no sendfile here")

    monkeypatch.setattr(network_module, "_HAS_SENDFILE", missing is not None)
    monkeypatch.setattr(os, "sendfile", refuses)
    loopback, segment, content = sliced
    client = loopback.client()
    client.send(framed(b"a") + framed(b"b"))
    expected = (len(content) - 3).to_bytes(4, "big") + b"hh" + content[5:]
    assert loopback.receive(client, 2 * len(expected)) == expected * 2
    assert segment.references == 0


def test_a_connection_lost_in_sendfile_is_no_error_of_the_file(
    sliced: tuple[Loopback, SegmentFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS calls it ENOTCONN: the connection ends when the reactor finds it dead, as after
    EPIPE.
    """

    def lost(*arguments: Any) -> int:
        raise OSError(errno.ENOTCONN, "Socket is not connected")

    broken: list[BaseException] = []
    monkeypatch.setattr(KafkaConnection, "broken", lambda self, reason: broken.append(reason))
    monkeypatch.setattr(os, "sendfile", lost)
    loopback, segment, _ = sliced
    client = loopback.client()
    client.send(framed(b"a"))
    loopback.turn(lambda: segment.references == 1)
    client.close()
    loopback.turn(lambda: not loopback.factory.connections)
    assert segment.references == 0 and not broken


def test_a_file_truncated_while_it_is_sent_closes_the_connection(
    sliced: tuple[Loopback, SegmentFile, bytes],
) -> None:
    """The rest of a slice whose file was truncated is never made up."""
    loopback, segment, _ = sliced
    client = loopback.client()
    client.send(framed(b"a"))
    loopback.turn(lambda: segment.references == 1)
    segment.truncate(1000)
    seen = bytearray()

    def ended() -> bool:
        try:
            data = client.recv(1 << 20)
        except BlockingIOError:
            return False
        seen.extend(data)
        return not data

    loopback.turn(ended)
    assert len(seen) < 6_000_000 and segment.references == 0


@needs_epoll
def test_one_failing_connection_leaves_the_others() -> None:
    """An exception out of a protocol closes its connection and no other one."""

    def answers(connection: Any, frame: bytes) -> bytes:
        if frame == b"bad":
            raise RuntimeError("a bug")
        return framed(bytes(frame))

    loopback = Loopback(answers)
    first, second = loopback.client(), loopback.client()
    loopback.turn(lambda: len(loopback.factory.connections) == 2)
    first.send(framed(b"bad"))
    second.send(framed(b"x"))
    loopback.turn(lambda: len(loopback.factory.connections) == 1)
    assert loopback.closed(first) and loopback.receive(second, 5) == framed(b"x")
    loopback.close()


@needs_epoll
def test_the_watch_is_given_the_longest_event() -> None:
    """Of many events of one turn it names the one that took the time."""
    pieces: list[tuple[float, Any]] = []

    class Watch(ReactorWatch):
        def piece(self, seconds: float) -> None:
            pieces.append((seconds, self.what))

    watch = Watch(50)

    def answers(connection: Any, frame: bytes) -> bytes:
        watch.what = bytes(frame)
        if frame == b"slow":
            time.sleep(watch.notable * 1.5)
        return framed(bytes(frame))

    loopback = Loopback(answers, watch)
    watched = [loopback.client() for _ in range(5)]
    loopback.turn(lambda: len(loopback.factory.connections) == 5)
    for number, client in enumerate(watched):
        client.send(framed(b"slow" if number == 2 else b"fast"))
    for client in watched:
        assert loopback.receive(client, 8)[4:] in (b"slow", b"fast")
    slow = [seconds for seconds, what in pieces if what == b"slow"]
    assert len(slow) == 1 and slow[0] >= watch.notable * 1.5
    loopback.close()


@needs_epoll
def test_more_ready_connections_than_a_poll_gives_are_all_served(loopback: Loopback) -> None:
    """The system gives those first that it did not give last: nobody starves."""
    clients = [loopback.client() for _ in range(150)]
    loopback.turn(lambda: len(loopback.factory.connections) == 150)
    for client in clients:
        client.send(framed(b"x") * 3)
    for client in clients:
        assert loopback.receive(client, 15) == framed(b"x") * 3


@needs_epoll
def test_connections_that_cost_much_do_not_fill_a_turn(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes of TLS take a millisecond each: a turn has 16 of them and what two ms hold, and
    all are served in the end.
    """
    clients = [loopback.client() for _ in range(100)]
    loopback.turn(lambda: len(loopback.factory.connections) == 100)
    clock = [0.0]

    def seconds() -> float:
        clock[0] += 1e-6
        return clock[0]

    monkeypatch.setattr(epoll_group, "perf_counter", seconds)
    read = ServerTransport.doRead

    def costly(transport: ServerTransport) -> Any:
        clock[0] += 0.001
        return read(transport)

    turns: list[float] = []
    turn = EpollGroup.doRead

    def timed(group: EpollGroup) -> None:
        began = clock[0]
        turn(group)
        turns.append(clock[0] - began)

    monkeypatch.setattr(ServerTransport, "doRead", costly)
    monkeypatch.setattr(EpollGroup, "doRead", timed)
    for client in clients:
        client.send(framed(b"x"))
    for client in clients:
        assert loopback.receive(client, 5) == framed(b"x")
    assert 0 < max(turns) <= 0.0181
