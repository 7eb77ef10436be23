"""Controllers of ours and of Apache Kafka 4.3 in one quorum: each place is taken by one or the
other, on the same directory, while brokers serve clients.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). Some minutes in all.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import View
from tests.compat.kafka_processes import CLUSTER_ID, JavaNode, Member, java, require, tool
from tests.compat.raw import Connection, sized
from tests.compat.test_kafka_cleaner import free_port
from twisted_broker.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from twisted_broker.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
)
from twisted_broker.wire.primitives import new_uuid, uuid_text
from twisted_broker.wire.schema import decode, encode

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
REPLOG = Path(sys.executable).parent / "replog"
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
OURS, JAVA = "ours", "Java"
FEATURES = ("group.version=0", "share.version=0", "streams.version=0")
LONGEST_GAP = 5.0


class Place:
    """A controller's id, port and directory, taken by a process of one kind or the other."""

    def __init__(self, quorum: MixedQuorum, number: int, port: int) -> None:
        self.quorum, self.number, self.port = quorum, number, port
        self.directory = quorum.directory / f"controller-{number}"
        self.data = str(self.directory / "data")
        self.kind = JAVA
        self.member: Member | None = None
        self.directory_id = uuid_text(new_uuid(Random(number).randbytes))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "process.roles": "controller",
            "node.id": str(self.number),
            "listeners": f"CONTROLLER://{self.address}",
            "controller.listener.names": "CONTROLLER",
            **self.quorum.shared,
        }

    def node(self, kind: str) -> Member:
        self.kind = kind
        if kind == JAVA:
            protocols = {"listener.security.protocol.map": "CONTROLLER:PLAINTEXT"}
            made: Member = JavaNode(self.directory, self.settings | protocols)
        else:
            made = BrokerProcess(self.directory / "ours", self.settings, data=self.data)
        self.member = made
        return made

    def format(self, kind: str, *how: str) -> None:
        node = self.node(kind)
        chosen = [word for each in FEATURES for word in ("--feature", each)]
        if isinstance(node, JavaNode):
            words = ["format", "-t", CLUSTER_ID, "-c", str(node.properties), *chosen, *how]
            command = java("kafka.tools.StorageTool", *words)
        else:
            sets = [w for name, each in self.settings.items() for w in ("--set", f"{name}={each}")]
            ours = [word for word in chosen if "group" in word]
            levels = ["--feature", *ours[-1:]]
            words = ["format", "-t", CLUSTER_ID, "--data", self.data, *sets, *levels, *how]
            command = [str(REPLOG), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def spawn(self, kind: str = "") -> None:
        if kind not in ("", self.kind) or self.member is None:
            self.node(kind)
        assert self.member is not None
        self.member.spawn(wait=False)
        self.quorum.begun_ms = time.time_ns() // 1_000_000

    def kill(self) -> None:
        assert self.member is not None
        self.member.kill()

    def stop(self) -> None:
        assert self.member is not None
        self.member.stop()

    def log_tail(self) -> str:
        return "" if self.member is None else self.member.log_tail()


class MixedQuorum:
    """Controllers 1 to 3, and two brokers of ours."""

    def __init__(self, directory: Path, is_static: bool = False, **settings: str) -> None:
        self.directory, self.is_static = directory, is_static
        ports = {number: free_port() for number in (1, 2, 3)}
        addresses = [f"127.0.0.1:{port}" for port in ports.values()]
        self.shared = {name.replace("_", "."): value for name, value in settings.items()}
        if is_static:
            named = (f"{number}@{at}" for number, at in zip(ports, addresses, strict=True))
            self.shared["controller.quorum.voters"] = ",".join(named)
        else:
            self.shared["controller.quorum.bootstrap.servers"] = ",".join(addresses)
        self.places = {number: Place(self, number, port) for number, port in ports.items()}
        self.begun_ms = 0
        self.brokers: dict[int, BrokerProcess] = {}
        for number in (11, 12):
            broker = {
                "process.roles": "broker",
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": ",".join(addresses),
                "broker.heartbeat.interval.ms": "500",
                "replica.lag.time.max.ms": "4000",
                "offsets.topic.replication.factor": "1",
            }
            self.brokers[number] = BrokerProcess(directory / f"broker-{number}", broker)

    @property
    def founders(self) -> str:
        return ",".join(
            f"{each.number}@{each.address}:{each.directory_id}" for each in self.places.values()
        )

    def start(self, *kinds: str) -> MixedQuorum:
        for place, kind in zip(self.places.values(), kinds, strict=True):
            how = () if self.is_static else ("--initial-controllers", self.founders)
            place.format(kind, *how)
        for place in self.places.values():
            place.spawn()
        for broker in self.brokers.values():
            broker.spawn(wait=False)
        for broker in self.brokers.values():
            broker.await_ready()
        self.view = View(",".join(each.bootstrap for each in self.brokers.values()))
        self.view.create("load", 3, 2, min_insync_replicas="1")
        return self

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        for place in self.places.values():
            if place.member is not None:
                place.member.kill()

    def log_tail(self) -> str:
        tails = [(str(each.number) + each.kind, each.log_tail()) for each in self.places.values()]
        tails += [(str(number), each.log_tail()) for number, each in self.brokers.items()]
        return "\n".join(f"--- {name}\n{tail}" for name, tail in tails)

    # what the quorum is

    def described(self) -> DescribeQuorumResponsePartitionData:
        """What a leader says of the quorum, as soon as there is one."""
        found: list[DescribeQuorumResponsePartitionData] = []

        def is_told() -> bool:
            try:
                found.append(self._describe())
            except (AssertionError, OSError):
                return False
            return True

        self.view.until(is_told, "a leader is known")
        return found[-1]

    def _describe(self) -> DescribeQuorumResponsePartitionData:
        """DescribeQuorum, through a broker. AssertionError while there is no leader."""
        broker = next(each for each in self.brokers.values() if each.process is not None)
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        header = encode_request_header(RequestHeader(request.api_key, 2, 1, "test"))
        with Connection(broker.address) as connection:
            connection.socket.sendall(sized(header + encode(request, 2)))
            frame = connection.exactly(int.from_bytes(connection.exactly(4), "big"))
        _, start = decode_response_header(frame, request.api_key, 2)
        answer = decode(DescribeQuorumResponse, frame, 2, start)
        assert not answer.error_code, answer
        found: DescribeQuorumResponsePartitionData = answer.topics[0].partitions[0]
        assert not found.error_code, found
        return found

    @property
    def leader(self) -> Place:
        return self.places[self.described().leader_id]

    @property
    def voters(self) -> dict[int, str]:
        return {
            each.replica_id: uuid_text(bytes(each.replica_directory_id))
            for each in self.described().current_voters
        }

    def are_level(self) -> bool:
        """Whether each voter has the log up to its end, or nearly, and fetched since the last one
        began.
        """
        found = self.described()
        ends = [each.log_end_offset for each in found.current_voters]
        fetched = [each.last_fetch_timestamp for each in found.current_voters]
        return max(ends) - min(ends) <= 3 and min(fetched) > self.begun_ms

    def create(self, name: str) -> float:
        """Seconds until it was there."""
        began = time.monotonic()

        def made() -> bool:
            asked = self.view.admin.create_topics([NewTopic(name, 1, 1)], request_timeout=20)
            try:
                asked[name].result(30)
            except Exception as error:
                if "TOPIC_ALREADY_EXISTS" not in str(error):
                    raise
            return True

        self.view.until(made, name)
        return time.monotonic() - began

    def settle(self) -> None:
        self.view.until(self.are_level, "all voters are level")


@pytest.fixture
def new_quorum(tmp_path: Path) -> Iterator[MixedQuorum]:
    require("kafka-tools", "kafka-raft")
    found = MixedQuorum(tmp_path, metadata_log_max_record_bytes_between_snapshots="8000")
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_leaders_of_a_mixed_quorum_are_killed(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 8.5, 8.6: the next one goes on; nothing that was acknowledged is lost, repeated, or in
    another order; each sort of controller has led.
    """
    quorum = new_quorum.start(*kinds)
    assert quorum.create("t0") < LONGEST_GAP
    quorum.settle()
    led, gaps = set[str](), list[float]()
    with quorum.view.producing("load") as writer:
        for number in range(1, 7):
            leader = quorum.leader
            led.add(leader.kind)
            leader.kill()
            gaps.append(quorum.create(f"t{number}"))
            leader.spawn()
            quorum.settle()
            quorum.view.until(writer.progress(), "records go on")
    print(kinds, led, [round(each, 2) for each in gaps])
    quorum.view.check_once(writer)
    assert {f"t{number}" for number in range(7)} <= set(quorum.view.admin.list_topics().topics)
    assert max(gaps) < LONGEST_GAP + 3


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_a_follower_that_is_stopped_or_killed_changes_no_epoch(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 3.20, 8.6: SIGSTOP for 1 and 5 s, kill -9; then its log is the leader's, byte for byte."""
    quorum = new_quorum.start(*kinds)
    quorum.settle()
    other = next(each for each in quorum.places.values() if kinds.count(each.kind) == 1)
    if quorum.leader is other:
        other.kill()
        quorum.create("another leads")
        other.spawn()
        quorum.settle()
    epoch, number = quorum.described().leader_epoch, 0
    for seconds in (1, 5, 0, 0, 0):
        assert other.member is not None and other.member.process is not None
        if seconds:
            other.member.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                number += 1
                quorum.create(f"t{number}")
            quorum.begun_ms = time.time_ns() // 1_000_000
            other.member.process.send_signal(signal.SIGCONT)
        else:
            other.kill()
            number += 1
            quorum.create(f"t{number}")
            other.spawn()
        quorum.settle()
    assert quorum.described().leader_epoch == epoch
    leader = quorum.leader
    other.stop()
    theirs, its = log_of(leader.data), log_of(other.data)
    at = theirs.find(its[:100])
    assert at >= 0 and len(its) > 1000
    assert theirs[at : at + len(its)] == its


def log_of(data: str) -> bytes:
    """All segments of the metadata log, without room that is reserved."""
    found = sorted(Path(data).glob("__cluster_metadata-0/*.log"))
    return b"".join(each.read_bytes() for each in found).rstrip(b"\0")


def test_each_place_is_taken_over_and_given_back(new_quorum: MixedQuorum) -> None:
    """QU 8.2, 8.3: from three controllers of Java's to three of ours and back, on the directories
    that are there, the leader last; brokers serve all the while.
    """
    quorum = new_quorum.start(JAVA, JAVA, JAVA)
    names, gaps = [], []
    with quorum.view.producing("load") as writer:
        for kind in (OURS, JAVA):
            while True:
                quorum.settle()
                leader = quorum.leader
                others = [each for each in quorum.places.values() if each.kind != kind]
                if not others:
                    break
                place = next((each for each in others if each is not leader), leader)
                place.stop()
                place.spawn(kind)
                names.append(f"t-{kind}-{place.number}")
                gaps.append(quorum.create(names[-1]))
                quorum.view.until(writer.progress(), "records go on")
    print([round(each, 2) for each in gaps])
    quorum.view.check_once(writer)
    assert set(names) <= set(quorum.view.admin.list_topics().topics)
    assert max(gaps) < LONGEST_GAP + 3


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_a_voter_with_a_new_disk_joins_by_a_snapshot(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 8.9, 8.10, 4.14: of a leader of the other sort; its old key goes, the new one comes."""
    quorum = new_quorum
    quorum.shared["controller.quorum.auto.join.enable"] = "true"
    quorum.start(*kinds)
    away = next(each for each in quorum.places.values() if kinds.count(each.kind) == 1)
    quorum.settle()
    old = quorum.voters[away.number]
    away.kill()
    names = [f"t{number}" for number in range(60)]
    for name in names:
        quorum.create(name)
    quorum.view.until(lambda: snapshots(quorum.leader.data), "a snapshot is written")
    shutil.rmtree(away.directory)
    away.format(away.kind, "--no-initial-controllers")
    away.spawn()
    quorum.view.until(
        lambda: quorum.voters.get(away.number, old) != old and len(quorum.voters) == 3,
        "it votes with its new disk",
    )
    quorum.settle()
    assert snapshots(away.data)
    for place in quorum.places.values():
        if place is not away:
            place.kill()
            quorum.create(f"without-{place.number}")
            place.spawn()
            quorum.settle()
    assert set(names) <= set(quorum.view.admin.list_topics().topics)


def snapshots(data: str) -> list[Path]:
    """Without the bootstrap checkpoint."""
    found = Path(data).glob("__cluster_metadata-0/*.checkpoint")
    return [each for each in found if not each.name.startswith("0" * 20)]


def test_kafkas_tool_changes_the_voters_of_ours(new_quorum: MixedQuorum, tmp_path: Path) -> None:
    """QU 8.14: describe, add-controller and remove-controller of `kafka-metadata-quorum`."""
    quorum = new_quorum
    for place in quorum.places.values():
        first = ("--standalone",) if place.number == 1 else ("--no-initial-controllers",)
        place.format(OURS, *first)
        place.spawn()
    for broker in quorum.brokers.values():
        broker.spawn(wait=False)
    for broker in quorum.brokers.values():
        broker.await_ready()
    quorum.view = View(",".join(each.bootstrap for each in quorum.brokers.values()))
    server = ("--bootstrap-server", quorum.view.bootstrap)
    for number in (2, 3):
        place = quorum.places[number]
        properties = tmp_path / f"{number}.properties"
        lines = place.settings | {"log.dirs": place.data}
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        tool(QUORUM_TOOL, *server, "--command-config", str(properties), "add-controller")
    assert sorted(quorum.voters) == [1, 2, 3]
    status = tool(QUORUM_TOOL, *server, "describe", "--status")
    assert "LeaderId:" in status and all(each in status for each in quorum.voters.values())
    replication = tool(QUORUM_TOOL, *server, "describe", "--replication")
    assert replication.count("Follower") == 2 and replication.count("Observer") == 2
    removed = ("--controller-id", "1", "--controller-directory-id", quorum.voters[1])
    tool(QUORUM_TOOL, *server, "remove-controller", *removed)
    quorum.view.until(lambda: sorted(quorum.voters) == [2, 3], "1 is a voter no more")
    quorum.places[1].stop()
    assert quorum.create("after") < LONGEST_GAP


def test_a_static_quorum_of_both_becomes_one_of_records(tmp_path: Path) -> None:
    """QU 8.1, 8.10: `kafka-features upgrade --feature kraft.version=1`."""
    require("kafka-tools", "kafka-raft")
    quorum = MixedQuorum(tmp_path, is_static=True)
    try:
        quorum.start(JAVA, OURS, OURS)
        quorum.settle()
        command = ("upgrade", "--feature", "kraft.version=1")
        features = "org.apache.kafka.tools.FeatureCommand"

        def is_upgraded() -> bool:
            server = ("--bootstrap-server", quorum.view.bootstrap)
            done = subprocess.run(java(features, *server, *command), capture_output=True, text=True)
            return done.returncode == 0

        quorum.view.until(is_upgraded, "kraft.version is 1")
        assert len(set(quorum.voters.values())) == 3
        for _ in range(2):
            leader = quorum.leader
            leader.kill()
            assert quorum.create(f"without-{leader.number}") < LONGEST_GAP + 3
            leader.spawn()
            quorum.settle()
    finally:
        quorum.end()


def test_a_java_broker_follows_controllers_of_ours(new_quorum: MixedQuorum) -> None:
    """QU 4.18, 8.13: it knows bootstrap addresses only, and finds the leader in the voters."""
    quorum = new_quorum.start(OURS, OURS, OURS)
    address = f"127.0.0.1:{free_port()}"
    broker = JavaNode(
        quorum.directory / "broker-13",
        {
            "process.roles": "broker",
            "node.id": "13",
            "listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": quorum.shared[
                "controller.quorum.bootstrap.servers"
            ],
        },
    )
    broker.format_a_broker()
    broker.spawn()
    try:
        quorum.view.until(
            lambda: 13 in quorum.view.admin.list_topics(timeout=5).brokers, "it is unfenced"
        )
        quorum.settle()
        for number in range(2):
            name = f"on-13-{number}"
            made = NewTopic(name, num_partitions=1, replica_assignment=[[13]])
            quorum.view.admin.create_topics([made])[name].result(30)
            with View(address).producing(name) as writer:
                View(address).until(writer.progress(), "records are written to it")
            View(address).check_once(writer)
            leader = quorum.leader
            leader.kill()
            leader.spawn()
            quorum.settle()
    finally:
        broker.kill()
