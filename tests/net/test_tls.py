"""TLS beneath a broker's listeners and beneath its own connections, with network, disk and clock in
memory.
"""

from __future__ import annotations

import os
import ssl
from base64 import encodebytes
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.log.batches import batch
from tests.memory_broker import MemoryBroker
from tests.security import certificates
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import OPEN_LISTENER_SETTINGS
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.listener_security import LOOK_SECONDS
from twisted_broker.net.tls import FailedHandshakes, TlsConnector, TlsRefused
from twisted_broker.net.tls_context import _SETTINGS, TlsSettings
from twisted_broker.net.tls_protocol import HANDSHAKE_SECONDS
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.settings import ConfigError
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

LISTENERS = {
    "listeners": "OUT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9091,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "OUT:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
    "inter.broker.listener.name": "OUT",
}
SECRET = "never shown"  # noqa: S105  a test's


class TlsBroker(MemoryBroker):
    """A node whose clients and controller come over TLS; its certificates lie in memory."""

    def __init__(self, directory: Path | None = None, **settings: str) -> None:
        from twisted_broker.log.memory import MemoryFileSystem

        files = MemoryFileSystem()
        self.copy(directory or certificates.made(), files)
        values = {**LISTENERS, **certificates.settings(Path("/tls")), **settings}
        super().__init__(files, **values)

    def start(self) -> TlsBroker:
        super().start()
        return self

    @staticmethod
    def copy(directory: Path, files: Any, wall_ms: int = 1) -> None:
        files.make_directories("/tls")
        for path in directory.iterdir():
            write(files, f"/tls/{path.name}", path.read_bytes(), wall_ms)

    def connector(self, trusted: Path | None = None, **settings: str) -> TlsConnector:
        values = certificates.settings(trusted or certificates.made(), "client.pem")
        values = {name: value for name, value in values.items() if "keystore" not in name}
        config = BrokerConfig(values | settings).listener_config("CLIENT")
        from twisted_broker.log.filesystem import OsFileSystem

        made = TlsSettings(config, OsFileSystem(), SecurityProtocol.SSL, is_server=False)
        return TlsConnector(self.clock, config, SecurityProtocol.SSL, made)

    def call(self, connector: TlsConnector, host: str = "127.0.0.1", port: int = 9092) -> Any:
        return BrokerConnection(self.runtime, host, port, "test", connector=connector)

    def principals(self) -> set[str]:
        factories = [each for each in self.broker.sockets.factories if each.name == "OUT"]
        return {str(one.principal) for each in factories for one in each.connections} - {
            "User:CN=broker"
        }


def own(directory: Path) -> dict[str, str]:
    """A client's own certificate."""
    settings = certificates.settings(directory, "client.pem")
    return {name: value for name, value in settings.items() if "keystore" in name}


def write(files: Any, path: str, data: bytes, wall_ms: int = 1) -> None:
    if files.exists(path):
        files.remove(path)
    file = files.open(path, create=True)
    file.write_at(0, [data])
    file.close()
    files.set_modified_ms(path, wall_ms)


@pytest.fixture
def broker() -> Iterator[TlsBroker]:
    made = TlsBroker(**{"ssl.client.auth": "requested"}).start()
    yield made
    made.stop()


class Raw(Protocol):
    """A client of TCP that reads, or does not."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True


def raw(broker: TlsBroker, port: int = 9092) -> Raw:
    found: Any = broker.run(
        broker.network.connect("127.0.0.1", port, ClientFactory.forProtocol(Raw), 5)
    )
    return found


def lines(events: list[Any]) -> list[str]:
    return [text for text in map(formatEvent, events) if "TLS" in text or "certificate" in text]


def answers(broker: TlsBroker, connection: BrokerConnection) -> bool:
    return broker.run(connection.send(MetadataRequest(), 9)).brokers[0].port == 9092


def test_brokers_controllers_and_clients_meet_over_tls(broker: TlsBroker) -> None:
    """The broker registered over TLS, through its controller's listener, and serves."""
    connection = broker.call(broker.connector())
    assert answers(broker, connection)
    endpoint = broker.broker.parts.metadata.image.brokers[1].listeners["OUT"]
    assert endpoint.security_protocol == SecurityProtocol.SSL
    assert broker.principals() == {"User:ANONYMOUS"}
    connection.close()


def test_rates_of_new_connections_hold_over_tls(broker: TlsBroker) -> None:
    """The port hears of its listener's pause; a held connection goes without a handshake."""
    rates = broker.broker.sockets.counts.rates
    (factory,) = [each for each in broker.broker.sockets.factories if each.name == "OUT"]
    over_tls = broker.broker.sockets.security.wrapped("OUT", factory)
    rates.set_limits(1, {"OUT": 1})
    waits = []
    for _ in range(12):
        over_tls.buildProtocol(None)
        waits.append(over_tls.accept_pause())
    assert waits[0] == 0 and waits[-1] > 0
    rates.set_limits(2**31 - 1, {})
    rates.set_ip_rate(None, 0.01)
    held = raw(broker)
    assert broker.broker.sockets.counts.held == 1
    held.transport.write(b"\x16\x03\x01")
    broker.pass_time(2)
    assert held.lost and not held.received and broker.broker.sockets.counts.held == 0


def test_a_certificate_names_the_client(broker: TlsBroker) -> None:
    connection = broker.call(broker.connector(**own(certificates.made())))
    assert answers(broker, connection)
    assert broker.principals() == {"User:CN=alice"}
    connection.close()


def refusal(broker: TlsBroker, connector: TlsConnector, host: str = "127.0.0.1") -> str:
    connection = broker.call(connector, host)
    with pytest.raises((TlsRefused, ConnectionLost, ConnectionDone)) as caught:
        answers(broker, connection)
    connection.close()
    broker.pass_time(0.1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rules_name_the_client_or_refuse_it() -> None:
    rules = {"ssl.principal.mapping.rules": "RULE:CN=(al.*|broker)/$1/U"}
    broker = TlsBroker(**rules, **{"ssl.client.auth": "required"}).start()
    connection = broker.call(broker.connector(**own(certificates.made())))
    assert answers(broker, connection)
    assert "User:ALICE" in broker.principals()
    connection.close()
    broker.stop()
    rules["ssl.principal.mapping.rules"] = "RULE:CN=broker/broker/"
    broker = TlsBroker(**rules, **{"ssl.client.auth": "required"}).start()
    with capturedLogs() as events:
        refusal(broker, broker.connector(**own(certificates.made())))
    (line,) = lines(events)
    assert "no rule of ssl.principal.mapping.rules matches the subject 'CN=alice'" in line
    broker.stop()


def test_a_client_without_a_certificate_is_refused_where_one_is_required() -> None:
    broker = TlsBroker(**{"ssl.client.auth": "required"}).start()
    with capturedLogs() as events:
        assert "certificate required" in refusal(broker, broker.connector())
        assert "refused us" in refusal(broker, broker.connector(**own(certificates.made("second"))))
    no_certificate, untrusted = lines(events)
    assert "it has no certificate, and ssl.client.auth=required wants one" in no_certificate
    assert "its authority is not in the trust store (CN=replog trial authority " in untrusted
    connection = broker.call(broker.connector(**own(certificates.made())))
    assert answers(broker, connection)
    connection.close()
    broker.stop()


def forged(text: str, old: bytes = b"", new: bytes = b"", is_trusted: bool = False) -> bytes:
    """A key and its certificate for `text` with these bytes exchanged before it is signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = (certificates.made() / "ca.key").read_bytes()
    signer: Any = load_pem_private_key(authority, None) if is_trusted else key
    trusted = x509.load_pem_x509_certificate((certificates.made() / "ca.pem").read_bytes())
    issuer = trusted.subject if is_trusted else _name(text)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(text))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=20_000))
        .sign(signer, SHA256())
    )
    body = made.tbs_certificate_bytes
    assert old in body
    body = body.replace(old, new)
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    signature = _der(3, b"\0" + signer.sign(body, ec.ECDSA(SHA256())))
    whole = encodebytes(_der(0x30, body + algorithm + signature))
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + b"-----BEGIN CERTIFICATE-----\n"
        + whole
        + b"-----END CERTIFICATE-----\n"
    )


def _name(text: str) -> x509.Name:
    parts = [text[at : at + 60] for at in range(0, len(text), 60)]
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each) for each in parts])


def _der(tag: int, contents: bytes) -> bytes:
    return bytes([tag, 0x84]) + len(contents).to_bytes(4, "big") + contents


def meet(broker: TlsBroker, directory: Path, pem: bytes) -> Raw:
    """A client of the standard library's TLS, which does not look at its own certificate."""
    file = directory / "own.pem"
    file.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls, client = context.wrap_bio(incoming, outgoing), raw(broker)
    for _ in range(4):
        with suppress(ssl.SSLError):
            tls.do_handshake()
        client.transport.write(outgoing.read())
        broker.pass_time(0.1)
        incoming.write(client.received)
        client.received = b""
    return client


VERSION = (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07")
MONTH = (b"\x17\x0d260101", b"\x17\x0d261901")
TEXT = (b"\x0c\x06ZZZZZZ", b"\x13\x06ZZ\xff\xfeZZ")


@pytest.mark.parametrize("exchanged", [VERSION, MONTH, TEXT], ids=["version", "month", "text"])
@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_certificate_that_cannot_be_read_is_refused_in_one_line(
    broker: TlsBroker, tmp_path: Path, exchanged: tuple[bytes, bytes], is_trusted: bool
) -> None:
    """OpenSSL parses it, cryptography raises."""
    with capturedLogs() as events:
        for _ in range(5):
            assert meet(broker, tmp_path, forged("ZZZZZZ", *exchanged, is_trusted=is_trusted)).lost
    (line,) = [str(formatEvent(each)) for each in events]
    assert "its certificate is refused: " in line and "it cannot be read" in line
    assert not broker.principals()


def test_what_a_stranger_wrote_into_a_certificate_is_one_short_line(
    broker: TlsBroker, tmp_path: Path
) -> None:
    with capturedLogs() as events:
        assert meet(broker, tmp_path, forged("x\naudit acl created\u2028\x1b[31m")).lost
        assert meet(broker, tmp_path, forged("y" * 3000)).lost
    found = lines(events)
    assert len(found) == 2
    assert all(each.isprintable() and len(each) < 400 for each in found)
    assert "CN=x\\naudit" in found[0]


def test_a_server_of_another_name_is_refused_unless_names_do_not_count() -> None:
    broker = TlsBroker(certificates.made("named", ("broker.example",)), **{
        "ssl.endpoint.identification.algorithm": ""
    }).start()  # fmt: skip
    trusted = certificates.made("named", ("broker.example",))
    words = refusal(broker, broker.connector(trusted))
    assert "its certificate is not for 127.0.0.1, but for broker.example" in words
    free = broker.connector(trusted, **{"ssl.endpoint.identification.algorithm": ""})
    connection = broker.call(free)
    assert answers(broker, connection)
    connection.close()
    broker.stop()


def test_a_server_that_is_not_trusted_or_expired_is_refused(broker: TlsBroker) -> None:
    with capturedLogs() as events:
        words = refusal(broker, broker.connector(certificates.made("second")))
    assert words.startswith("no TLS connection with 127.0.0.1:9092: its certificate is refused: it")
    assert "its authority is not in the trust store" in words or "signed by itself" in words
    (line,) = lines(events)
    assert "listener OUT: no TLS connection with 127.0.0.1: it refused us: " in line
    assert "unknown ca" in line
    old = TlsBroker(certificates.expired(), **{"inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "OUT:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }).start()  # fmt: skip
    words = refusal(old, old.connector(certificates.expired()))
    assert "it has expired: renew it (CN=" in words and "valid until 20" in words
    old.stop()


def test_who_does_not_speak_tls_is_one_line_and_others_are_served(broker: TlsBroker) -> None:
    connection = broker.call(broker.connector())
    assert answers(broker, connection)
    with capturedLogs() as events:
        for first in (b"\0\0\0\x10\0\x12\0\3" + bytes(12), b"GET / HTTP/1.1\r\n\r\n", b"\x80"):
            for _ in range(20):
                client = raw(broker)
                client.transport.write(first)
                broker.pass_time(0.1)
                assert client.lost
    (line,) = lines(events)
    (factory,) = [each for each in broker.broker.sockets.factories if each.name == "OUT"]
    assert factory.failed_handshakes == 60 and len(factory.connections) == 1
    assert line == (
        "listener OUT: no TLS connection with 127.0.0.1: it does not speak TLS: set its "
        "security.protocol to SSL or SASL_SSL"
    )
    assert answers(broker, connection)
    connection.close()


def test_one_addresss_failures_do_not_hide_anothers() -> None:
    """Nor do they for ever; what is kept is bounded."""
    clock = Clock()
    failed = FailedHandshakes("OUT", clock)
    with capturedLogs() as events:
        for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
            failed.add(host, "it has no certificate")
        for number in range(100):
            failed.add("10.0.0.1", f"name {number}")
        failed.add("10.0.0.3", "it has no certificate")
    found = lines(events)
    assert [" 10.0.0.2:" in found[1], " 10.0.0.3:" in found[-1]] == [True, True]
    assert len(found) == 2 + 7 + 1 + 1 and "many other reasons" in found[-2]
    for number in range(1000):
        failed.add(f"10.1.0.{number}", "it has no certificate")
    assert len(failed._silent) <= 65
    clock.advance(61)
    with capturedLogs() as events:
        failed.add("10.0.0.1", "it has no certificate")
        clock.advance(60)
        failed.add("10.0.0.4", "it has no certificate")
    assert lines(events)[0].endswith(
        "it has no certificate (2 such connections since the last line)"
    )
    assert " 10.0.0.4: it has no certificate" in lines(events)[1]
    clock.advance(121)
    with capturedLogs() as events:
        failed.add("10.0.0.1", "another certificate")
    assert lines(events)[0].endswith(" 10.0.0.1: another certificate")


def test_a_damaged_record_ends_its_connection_only(broker: TlsBroker) -> None:
    others, connection = (broker.call(broker.connector()) for _ in range(2))
    assert answers(broker, others) and answers(broker, connection)
    transport: Any = connection._protocol.transport.transport
    write = transport.write
    transport.write = lambda data: write(data[:-1] + bytes([data[-1] ^ 1]))
    with capturedLogs() as events, pytest.raises((ConnectionLost, ConnectionDone)):
        answers(broker, connection)
    (line,) = [text for text in lines(events) if "listener OUT" in text]
    assert "decryption failed or bad record mac" in line
    assert answers(broker, others)
    assert not any("failure" in str(each.get("log_level")) for each in events)
    for each in (others, connection):
        each.close()


@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_end_in_one_line_or_wait(broker: TlsBroker, seed: int) -> None:
    """Bytes at random, as they are and behind the head of a handshake."""
    random = Random(seed)
    with capturedLogs() as events:
        for head in (b"", b"\x16", b"\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03"):
            for _ in range(10):
                client = raw(broker)
                client.transport.write(head + random.randbytes(random.randrange(1, 200)))
        broker.pass_time(HANDSHAKE_SECONDS + 1)
    assert len(broker.broker.sockets.factories[1].connections) <= 1
    assert 1 <= len(lines(events)) < 12
    assert "Traceback" not in " ".join(str(formatEvent(each)) for each in events)


def test_a_plain_listener_refuses_a_client_of_tls_in_one_line(broker: TlsBroker) -> None:
    connection = broker.call(broker.connector(), port=9091)
    with capturedLogs() as events, pytest.raises(TlsRefused, match="does it speak TLS"):
        answers(broker, connection)
    (line,) = [text for text in map(formatEvent, events) if "closing the connection" in text]
    assert "speaks TLS to a listener without it" in line and "\n" not in line
    connection.close()


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x40\x00"])
def test_a_handshake_that_stalls_ends(broker: TlsBroker, first: bytes) -> None:
    client = raw(broker)
    if first:
        client.transport.write(first)
    with capturedLogs() as events:
        broker.pass_time(HANDSHAKE_SECONDS - 1)
        assert not client.lost
        broker.pass_time(1.1)
    assert client.lost
    (line,) = lines(events)
    assert "the handshake was not over within 30 s" in line


def test_a_server_that_stalls_ends_a_call(broker: TlsBroker) -> None:
    """TCP accepts, and nobody answers: the connection's timeout holds for all of it."""
    broker.run(broker.network.listen("127.0.0.1", 7000, ClientFactory.forProtocol(Raw)))
    connection = broker.call(broker.connector(), port=7000)
    started = broker.clock.seconds()
    with pytest.raises(TlsRefused, match="the handshake was not over within"):
        broker.run(connection.connect())
    assert broker.clock.seconds() - started == pytest.approx(10, abs=0.1)
    connection.connect().addErrback(lambda reason: None)
    broker.pass_time(1)
    connection.close()  # cancels the handshake
    broker.pass_time(0.1)
    assert not broker.broker.shared.fatal


def fill(broker: TlsBroker, connection: BrokerConnection, count: int, size: int) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    broker.run(connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5))
    for _ in range(count):
        data = PartitionProduceData(index=0, records=batch(size))
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        answer = broker.run(connection.send(request, 9))
        assert answer.responses[0].partition_responses[0].error_code == 0


def fetch_request(most: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=most)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=most,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )


def test_long_requests_and_answers_pass_whole(broker: TlsBroker) -> None:
    """Frames of many records, into the frame's own buffer, and slices of a file."""
    connection = broker.call(broker.connector())
    fill(broker, connection, 4, 900_000)
    answer = broker.run(connection.send(fetch_request(8 << 20), 11))
    assert bytes(answer.responses[0].partitions[0].records) != b""
    assert len(answer.responses[0].partitions[0].records) == 4 * len(batch(900_000))
    connection.close()


def test_a_slow_reader_of_much_costs_little_memory(broker: TlsBroker) -> None:
    """A client that asked for 8 MiB and reads nothing holds less than a MiB; then it gets all."""
    connection = broker.call(broker.connector())
    fill(broker, connection, 9, 900_000)
    waiting: Deferred[Any] = connection.send(fetch_request(8 << 20), 11)
    protocol: Any = connection._protocol
    protocol.transport.pauseProducing()
    broker.pass_time(1)
    transport = protocol.transport.transport
    held = sum(map(len, transport.waiting))
    assert 0 < held < 1 << 20
    assert transport.peer.producer_paused
    protocol.transport.resumeProducing()
    answer = broker.run(waiting)
    assert len(answer.responses[0].partitions[0].records) > 7_000_000
    connection.close()


def test_bytes_may_come_one_by_one(broker: TlsBroker) -> None:
    """A handshake and a request in pieces of one byte."""
    connector = broker.connector()
    plain = broker.network.connect

    def split(host: str, port: int, factory: Any, timeout: float) -> Any:
        connecting = plain(host, port, factory, timeout)

        def slow(tls: Any) -> Any:
            write = tls.transport.write
            tls.transport.write = lambda data: [write(data[i : i + 1]) for i in range(len(data))]
            return tls

        return connecting.addCallback(slow)

    broker.network.connect = split
    connection = broker.call(connector)
    assert answers(broker, connection)
    connection.close()


def test_new_files_serve_new_connections(broker: TlsBroker) -> None:
    """The same names by another authority: who trusts only the old one is refused afterwards, and
    open connections stay.
    """
    before = broker.call(broker.connector())
    assert answers(broker, before)
    with capturedLogs() as events:
        broker.copy(certificates.made("second"), broker.files, 2)
        broker.pass_time(LOOK_SECONDS + 1)
    assert sum("listener OUT: new keys and certificates, valid until" in x for x in lines(events))
    assert answers(broker, before)
    refusal(broker, broker.connector())
    after = broker.call(broker.connector(certificates.made("second")))
    assert answers(broker, after)
    for each in (before, after):
        each.close()


def test_files_that_cannot_be_used_change_nothing(broker: TlsBroker) -> None:
    other = certificates.made("other name")
    key = (certificates.made("second") / "client.pem").read_bytes()  # of CN=alice
    for number, (data, words) in enumerate(
        (
            (b"nothing", "has no private key in PEM"),
            (key, "it takes the subject of before, CN=broker, not CN=alice; allow"),
            ((other / "ca.key").read_bytes(), "has no certificate in PEM"),
        )
    ):
        with capturedLogs() as events:
            write(broker.files, "/tls/broker.pem", data, 10 + number)
            broker.pass_time(2 * LOOK_SECONDS)
        found = [line for line in lines(events) if line.startswith("listener OUT")]
        assert all("stay as they were" in line and words in line for line in found), found
        assert len(found) == 2  # as a server, and as a client; once each
        connection = broker.call(broker.connector())
        assert answers(broker, connection)
        connection.close()
    broker.copy(certificates.made(), broker.files, 20)
    broker.pass_time(LOOK_SECONDS)


def test_every_setting_that_may_change_is_looked_at() -> None:
    assert set(_SETTINGS) >= OPEN_LISTENER_SETTINGS


def alter(broker: TlsBroker, name: str, value: str | None, resource: str = "1") -> tuple[int, str]:
    edit = IncrementalAlterConfigsRequestAlterableConfig(
        name=name, config_operation=0 if value is not None else 1, value=value
    )
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=4, resource_name=resource, configs=[edit]
            )
        ]
    )
    answer = broker.ask(request, 1, 9091).responses[0]
    return answer.error_code, answer.error_message or ""


def test_a_listeners_settings_change_while_it_runs(broker: TlsBroker) -> None:
    """`listener.name.out.ssl.keystore.location`, as `kafka-configs` sets it; never for all."""
    second = certificates.made("second")
    for path in second.iterdir():
        write(broker.files, f"/tls/second-{path.name}", path.read_bytes())
    code, message = alter(broker, "ssl.keystore.location", "/tls/second-broker.pem")
    assert code == 42 and "listener.name.NAME.ssl.keystore.location" in message
    code, message = alter(broker, "listener.name.out.ssl.keystore.location", "/x", resource="")
    assert code == 42
    code, message = alter(broker, "listener.name.out.ssl.client.auth", "perhaps")
    assert code == 42 and "required, requested, none" in message
    code, message = alter(broker, "listener.name.out.ssl.principal.mapping.rules", "DEFAULT")
    assert code == 42 and "listener OUT is open" in message
    name = "listener.name.out.ssl.keystore.location"
    code, message = alter(broker, name, "/tls/none.pem")
    assert code == 42 and "cannot be read" in message
    code, message = alter(broker, name, "/tls/second-client.pem")
    assert code == 42 and "CN=broker, not CN=alice" in message
    assert alter(broker, name, "/tls/second-broker.pem") == (0, "")
    connection = broker.call(broker.connector(second))
    assert answers(broker, connection)
    connection.close()
    assert alter(broker, name, None) == (0, "")
    connection = broker.call(broker.connector())
    assert answers(broker, connection)
    connection.close()


@pytest.mark.parametrize(
    "name", ["listener.name.OTHER.ssl.key.password", "listener.name.other.ssl.key.pasword", "my.x"]
)
def test_a_value_that_may_be_a_password_is_not_logged(broker: TlsBroker, name: str) -> None:
    """Nobody knows what a name without a row holds."""
    with capturedLogs() as events:
        assert alter(broker, name, SECRET) == (0, "")
    text = " ".join(str(formatEvent(each)) for each in events)
    assert SECRET not in text and f"{name}=[hidden]" in text


def test_a_password_is_never_shown(broker: TlsBroker) -> None:
    from twisted_broker.wire.messages.configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    name = "listener.name.other.ssl.keystore.password"
    with capturedLogs() as events:
        assert alter(broker, name, SECRET) == (0, "")
    assert SECRET not in " ".join(str(formatEvent(each)) for each in events)
    assert any("[hidden]" in str(formatEvent(each)) for each in events)
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name="1")],
        include_synonyms=True,
    )
    found = broker.ask(request, 4, 9091).results[0].configs
    (entry,) = [each for each in found if each.name == name]
    assert entry.is_sensitive and entry.value is None and not entry.read_only
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl.keystore.location": ""}, "ssl.keystore.location=''.* listener OUT speaks TLS"),
        ({"ssl.keystore.location": "/no"}, "ssl.keystore.location='/no'.* cannot be read"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.location.* ssl.keystore.password right"),
        ({"ssl.keystore.type": "XML"}, "ssl.keystore.type='XML'.* JKS, PKCS12, PEM"),
        ({"ssl.keystore.password": SECRET}, r"ssl.keystore.password='\[hidden\]'.* no value"),
        ({"ssl.keystore.key": SECRET}, "ssl.keystore.location.* remove one"),
        (
            {"ssl.keystore.location": "", "ssl.keystore.key": SECRET},
            "ssl.keystore.certificate.chain='' .* come together",
        ),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols='TLSv1.1'.*TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "TLS_NULL_WITH_NULL"}, "ssl.cipher.suites='TLS_NULL_WITH_NULL'"),
        ({"ssl.principal.mapping.rules": "RULE:a"}, "ssl.principal.mapping.rules='RULE:a'"),
        (
            {"ssl.client.auth": "required", "ssl.truststore.location": ""},
            "ssl.truststore.location=''.* listener OUT has ssl.client.auth=required",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        TlsBroker(**settings)
    assert "\n" not in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize("is_server", [True, False])
def test_no_suite_with_cbc_is_offered(is_server: bool) -> None:
    """Of TLS 1.2 those with AEAD and forward secrecy; others only where the setting names them."""
    from twisted_broker.log.filesystem import OsFileSystem

    def offered(**settings: str) -> list[str]:
        values = certificates.settings(certificates.made()) | settings
        config = BrokerConfig(values).listener_config("OUT")
        made = TlsSettings(config, OsFileSystem(), SecurityProtocol.SSL, is_server=is_server)
        names = SSL.Connection(made.context).get_cipher_list()
        return [name for name in names if not name.startswith("TLS_")]

    assert {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"} <= {*offered()}
    assert not [name for name in offered() if "GCM" not in name and "CHACHA20" not in name]
    assert not [name for name in offered() if not name.startswith(("ECDHE-", "DHE-"))]
    named = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"
    assert offered(**{"ssl.cipher.suites": named}) == ["ECDHE-ECDSA-AES256-SHA384"]


def test_a_store_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """To open a FIFO waits for whoever writes it; a directory has no bytes."""
    from twisted_broker.log.filesystem import OsFileSystem

    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        values = certificates.settings(certificates.made()) | {"ssl.keystore.location": str(path)}
        config = BrokerConfig(values).listener_config("OUT")
        with pytest.raises(ConfigError, match=f"ssl.keystore.location='{path}'.* no regular file"):
            TlsSettings(config, OsFileSystem(), SecurityProtocol.SSL, is_server=True)


def test_inline_pem_and_versions_and_suites() -> None:
    """Key, chain and trust in the settings themselves; TLS 1.2 with one suite of Java's name."""
    directory = certificates.made()
    pem = (directory / "broker.pem").read_text()
    values = {
        "ssl.keystore.location": "",
        "ssl.truststore.location": "",
        "ssl.keystore.key": pem,
        "ssl.keystore.certificate.chain": pem,
        "ssl.truststore.certificates": (directory / "ca.pem").read_text(),
        "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    }
    broker = TlsBroker(**values).start()
    connection = broker.call(broker.connector())
    assert answers(broker, connection)
    tls: Any = connection._protocol.transport
    assert tls.connection.get_cipher_name() == "ECDHE-ECDSA-AES256-GCM-SHA384"
    assert tls.connection.get_protocol_version_name() == "TLSv1.2"
    connection.close()
    newest = broker.connector(**{"ssl.enabled.protocols": "TLSv1.3"})
    assert "protocol version" in refusal(broker, newest)
    broker.stop()
