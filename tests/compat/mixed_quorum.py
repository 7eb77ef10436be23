"""A quorum of controllers of ours and of Apache Kafka 4.3: each place is taken by one or the other,
on the same directory; and two brokers of ours.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from confluent_kafka.admin import NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import View
from tests.compat.kafka_processes import CLUSTER_ID, JavaNode, Member, java
from tests.compat.raw import Connection, sized
from tests.compat.test_kafka_cleaner import free_port
from tests.faults.relay import BEHIND, Relays
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
from twisted_broker.wire.schema import Request, Response, decode, encode

REPLOG = Path(sys.executable).parent / "replog"
OURS, JAVA = "ours", "Java"
T = TypeVar("T", bound=Response)
FEATURES = ("group.version=0", "share.version=0", "streams.version=0")
LONGEST_GAP = 5.0
FOUNDERS = (1, 2, 3)


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
        listeners = {"listeners": f"CONTROLLER://{self.address}"}
        if self.quorum.relays is not None:
            listeners["listeners"] = f"CONTROLLER://{BEHIND}:{self.port}"
            listeners["advertised.listeners"] = f"CONTROLLER://{self.address}"
        return {
            "process.roles": "controller",
            "node.id": str(self.number),
            "controller.listener.names": "CONTROLLER",
            **listeners,
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
            words = ["format", "-t", CLUSTER_ID, "--data", self.data, *sets, *chosen, *how]
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
    """Controllers 1 to 3, and two brokers of ours. `spare`: places of others that may join;
    `relays`: all that controllers say to each other goes through them.
    """

    def __init__(
        self,
        directory: Path,
        is_static: bool = False,
        spare: Sequence[int] = (),
        relays: Relays | None = None,
        **settings: str,
    ) -> None:
        self.directory, self.is_static, self.relays = directory, is_static, relays
        ports = {
            number: free_port() if relays is None else relays.front(str(number))
            for number in (*FOUNDERS, *spare)
        }
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
            f"{number}@{each.address}:{each.directory_id}"
            for number, each in self.places.items()
            if number in FOUNDERS
        )

    def start(self, *kinds: str) -> MixedQuorum:
        for number, kind in zip(FOUNDERS, kinds, strict=True):
            how = () if self.is_static else ("--initial-controllers", self.founders)
            self.places[number].format(kind, *how)
        for number in FOUNDERS:
            self.places[number].spawn()
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
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        broker = next(each for each in self.brokers.values() if each.process is not None)
        answer = ask(broker.address, request, 2, DescribeQuorumResponse)
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

    def lead(self, place: Place) -> None:
        """Kills the leader until it is that one."""
        for number in range(20):
            self.settle()
            leader = self.leader
            if leader is place:
                return
            leader.kill()
            self.create(f"led-{place.number}-{number}")
            leader.spawn()
        raise AssertionError(f"{place.number} is never elected\n{self.log_tail()}")

    def settle(self) -> None:
        self.view.until(self.are_level, "all voters are level")


def ask(address: tuple[str, int], request: Request, version: int, response: type[T]) -> T:
    """One request on a connection of its own."""
    header = encode_request_header(RequestHeader(request.api_key, version, 1, "test"))
    with Connection(address) as connection:
        connection.socket.sendall(sized(header + encode(request, version)))
        frame = connection.exactly(int.from_bytes(connection.exactly(4), "big"))
    _, start = decode_response_header(frame, request.api_key, version)
    return decode(response, frame, version, start)


def log_of(data: str) -> bytes:
    """All segments of the metadata log, without room that is reserved."""
    found = sorted(Path(data).glob("__cluster_metadata-0/*.log"))
    return b"".join(each.read_bytes() for each in found).rstrip(b"\0")


def snapshots(data: str) -> list[Path]:
    """Without the bootstrap checkpoint."""
    found = Path(data).glob("__cluster_metadata-0/*.checkpoint")
    return [each for each in found if not each.name.startswith("0" * 20)]
