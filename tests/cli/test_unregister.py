"""`replog unregister`: what it refuses, what it sends, and its exit statuses.

The broker is a socket that answers from a table.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from twisted_broker.cli.main import main
from twisted_broker.wire.header import request_header_version, response_header_version
from twisted_broker.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from twisted_broker.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from twisted_broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twisted_broker.wire.messages.sasl import SaslHandshakeResponse
from twisted_broker.wire.schema import Response, decode, encode

RUNNING = DescribeClusterResponse(
    cluster_id="c", brokers=[DescribeClusterBroker(broker_id=1, host="h", port=1)]
)


def held_by(*brokers: int) -> MetadataResponse:
    """Topic `t` with as many partitions, each with one replica."""
    partitions = [
        MetadataResponsePartition(partition_index=number, leader_id=each, replica_nodes=[each])
        for number, each in enumerate(brokers)
    ]
    return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)])


class Peer:
    """Answers each API with the response of `answers`; `unregistered` are the ids that came."""

    def __init__(self) -> None:
        self.answers: dict[int, Response] = {
            60: RUNNING,
            3: held_by(1),
            64: UnregisterBrokerResponse(error_message=None),
            18: ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=key, min_version=0, max_version=version)
                    for key, version in ((3, 12), (18, 4), (60, 2), (64, 0))
                ]
            ),
        }
        self.unregistered: list[int] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        # What it says last may not be read: its end is a reset then.
        with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                frame = stream.read(struct.unpack(">i", size)[0])
                key, version, correlation, length = struct.unpack_from(">hhih", frame)
                start = 10 + length + (request_header_version(key, version) == 2)
                if key == 64:
                    request = decode(UnregisterBrokerRequest, frame, version, start)
                    self.unregistered.append(request.broker_id)
                tags = b"\0" * response_header_version(key, version)
                body = struct.pack(">i", correlation) + tags + encode(self.answers[key], version)
                connection.sendall(struct.pack(">i", len(body)) + body)

    def close(self) -> None:
        self._listening.close()
        self._thread.join(10)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def unregister(address: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["unregister", "--bootstrap-server", address, *more])


def test_a_broker_that_is_gone_is_unregistered(peer: Peer) -> None:
    done = unregister(peer.address, "--id", "4")
    assert (done.exit_code, done.stdout) == (0, "broker 4 is unregistered\n")
    assert peer.unregistered == [4]


def test_a_broker_that_runs_is_refused(peer: Peer) -> None:
    """It would register again at once; `--force` does not help."""
    done = unregister(peer.address, "--id", "1", "--force")
    assert (done.exit_code, peer.unregistered) == (1, [])
    assert done.stderr == "broker 1 is running, and would register again: stop it first\n"


def test_a_broker_with_replicas_needs_force(peer: Peer) -> None:
    peer.answers[3] = held_by(1, *[4] * 6)
    done = unregister(peer.address, "--id", "4")
    assert (done.exit_code, peer.unregistered) == (1, [])
    assert "broker 4 has 6 replicas (t-1, t-2, t-3, t-4, t-5, ..): reassign them" in done.stderr


def test_force_unregisters_it_with_its_replicas(peer: Peer) -> None:
    peer.answers[3] = held_by(4)
    assert unregister(peer.address, "--id", "4", "--force").exit_code == 0
    assert peer.unregistered == [4]


def test_what_the_cluster_says_is_shown(peer: Peer) -> None:
    """BROKER_ID_NOT_REGISTERED, with its own words."""
    peer.answers[64] = UnregisterBrokerResponse(error_code=102, error_message="no broker 4")
    done = unregister(peer.address, "--id", "4")
    assert done.exit_code == 1
    assert done.stderr == "the cluster refuses: BROKER_ID_NOT_REGISTERED: no broker 4\n"


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = unregister(f"127.0.0.1:{port}", "--id", "4")
    assert done.exit_code == 1
    assert f"no broker of bootstrap.servers=127.0.0.1:{port} answered" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=SSSL\n", "security.protocol='SSSL' is refused: it takes one of"),
        ("a=b\nsasl.mechanism\n", "line 2: 'sasl.mechanism' has no value; write NAME=VALUE"),
        ("ssl.truststore.locaton=/x\n", "did you mean ssl.truststore.location?"),
        (
            "security.protocol=SSL\nssl.truststore.location=/none\n",
            "--command-config: setting ssl.truststore.location='/none' is refused: it cannot be",
        ),
    ],
)
def test_properties_that_cannot_work(tmp_path: Path, text: str, words: str) -> None:
    """Exit status 2, one line behind click's own, and nobody is called."""
    file = tmp_path / "admin.properties"
    file.write_text(text)
    done = unregister("127.0.0.1:1", "--id", "4", "--command-config", str(file))
    assert done.exit_code == 2 and words in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: --command-config")


def test_properties_that_are_not_there(tmp_path: Path) -> None:
    done = unregister("127.0.0.1:1", "--id", "4", "--command-config", str(tmp_path / "none"))
    assert done.exit_code == 2 and "No such file or directory" in done.stderr


def test_what_is_not_read_of_the_properties_is_named(peer: Peer, tmp_path: Path) -> None:
    """Once: a file of a producer does as well, and a setting of it has no effect in secret."""
    file = tmp_path / "admin.properties"
    file.write_text("security.protocol=PLAINTEXT\nacks=all\nclient.id=x\n")
    done = unregister(peer.address, "--id", "4", "--command-config", str(file))
    assert done.exit_code == 0
    assert done.stderr == (
        f"--command-config {file}: only TLS and SASL are read, not acks, client.id\n"
    )


def test_a_plain_peer_behind_tls_settings(peer: Peer, tmp_path: Path) -> None:
    """One line that names option and property, exit status 1."""
    file = tmp_path / "admin.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    with file.open("a") as more:
        more.write("sasl.username=alice\nsasl.password=wrong-secret\n")
    peer.answers[17] = SaslHandshakeResponse(error_code=34)
    done = unregister(peer.address, "--id", "4", "--command-config", str(file))
    assert (done.exit_code, peer.unregistered) == (1, [])
    assert done.stderr.startswith(f"--command-config: {peer.address}: authentication failed: ")
    assert "look at security.protocol=SASL_PLAINTEXT" in done.stderr
    assert done.stderr.count("\n") == 1 and "secret" not in done.stderr


def test_an_address_without_a_port() -> None:
    done = unregister("localhost", "--id", "4")
    assert done.exit_code == 2 and "HOST:PORT, not 'localhost'" in done.stderr
