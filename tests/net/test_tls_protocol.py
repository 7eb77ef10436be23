"""What `net/tls_protocol.py` costs: calls of OpenSSL for what comes and goes."""

from __future__ import annotations

import ssl
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from OpenSSL import SSL
from twisted.internet.task import Clock

from tests.security import certificates
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.net.tls_context import TlsSettings
from twisted_broker.net.tls_protocol import TlsProtocol
from twisted_broker.security.security_protocol import SecurityProtocol


class Inner:
    """The protocol above, and `Peer`."""

    def __init__(self) -> None:
        self.received = b""

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def established(self, tls: TlsProtocol) -> str | None:
        return None

    def ready(self, tls: TlsProtocol) -> None:
        pass

    def failed(self, tls: TlsProtocol, words: str) -> None:
        raise AssertionError(words)


class Transport:
    """Keeps what is written, one piece for each call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pauseProducing(self) -> None:
        pass

    def resumeProducing(self) -> None:
        pass


class Counted:
    """OpenSSL's connection, its calls counted."""

    def __init__(self, connection: SSL.Connection) -> None:
        self.calls: Counter[str] = Counter()
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)

        def counted(*arguments: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments)

        return counted


class Pair:
    """A server's side as it is, and Python's TLS as its client, after the handshake."""

    def __init__(self) -> None:
        directory = certificates.made()
        config = BrokerConfig(certificates.settings(directory)).listener_config("OUT")
        settings = TlsSettings(config, OsFileSystem(), SecurityProtocol.SSL, is_server=True)
        connection = SSL.Connection(settings.context, None)
        connection.set_accept_state()
        self.inner, self.transport, self.clock = Inner(), Transport(), Clock()
        self.openssl: Any = Counted(connection)
        self.server = TlsProtocol(self.inner, self.openssl, self.inner, self.clock, True)
        self.server.makeConnection(self.transport)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        self.client = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            if self._out.pending:
                self.server.dataReceived(self._out.read())
            self._in.write(b"".join(self.sent()))
        self.openssl.calls.clear()

    def sent(self) -> list[bytes]:
        written, self.transport.written = self.transport.written, []
        return written

    def read(self) -> bytes:
        """All that the client has now."""
        self._in.write(b"".join(self.sent()))
        found = b""
        try:
            while True:
                found += self.client.read(1 << 16)
        except ssl.SSLWantReadError:
            return found

    def encrypted(self, data: bytes) -> bytes:
        self.client.write(data)
        return self._out.read()


def test_a_write_is_encrypted_in_one_call_and_sent_in_one() -> None:
    """However many records it is: their number costs calls in C only."""
    pair = Pair()
    data = Random(1).randbytes(200_000)
    pair.server.write(data)
    assert pair.openssl.calls == {"send": 1, "bio_read": 1}
    assert len(pair.transport.written) == 1
    assert pair.read() == data


def test_a_write_of_nothing_changes_nothing() -> None:
    """OpenSSL takes it for an error."""
    pair = Pair()
    pair.server.write_more(b"one")
    pair.server.write_more(b"")
    pair.server.write(b"")
    assert pair.read() == b"one"


def test_a_long_write_leaves_in_pieces() -> None:
    """Of 256 KiB, so that OpenSSL never holds more; what follows at once leaves with the last."""
    pair = Pair()
    data = Random(2).randbytes(1_000_000)
    pair.server.write_more(data)
    assert pair.openssl.calls["send"] == 4 and len(pair.transport.written) == 3
    pair.server.write(b"the end")
    assert max(map(len, pair.transport.written)) < 270_000
    assert pair.read() == data + b"the end"


def test_a_request_of_one_record_is_read_in_one_call() -> None:
    """Nothing is behind it: the read that would say so is left out, also after long ones."""
    pair = Pair()
    for size in (100, 16_000, 100, 70_000, 300, 1):
        data = bytes([size % 251]) * size
        pair.server.dataReceived(pair.encrypted(data))
        assert pair.inner.received == data
        pair.inner.received = b""
    # The five of one record, and of the other one its five records and the end. The first one
    # comes behind the handshake, of which there might be more.
    assert pair.openssl.calls["recv"] == 5 + 6


def test_records_arrive_whole_however_they_are_split() -> None:
    """Also where the protocol pauses between pieces, and headers come in parts."""
    chance = Random(3)
    for _ in range(30):
        pair = Pair()
        sent = b""
        stream = b""
        for _ in range(chance.randrange(1, 12)):
            data = chance.randbytes(chance.choice((1, 80, 3000, 16_384, 40_000)))
            sent += data
            stream += pair.encrypted(data)
        while stream:
            size = chance.choice((1, 3, 5, 60, 4000, 16_406, 65_536))
            piece, stream = stream[:size], stream[size:]
            if not chance.randrange(4):
                pair.server.pauseProducing()
            pair.server.dataReceived(piece)
            if not chance.randrange(2):
                pair.server.resumeProducing()
            if not chance.randrange(2):
                pair.clock.advance(0)
        pair.server.resumeProducing()
        pair.clock.advance(0)
        assert pair.inner.received == sent
