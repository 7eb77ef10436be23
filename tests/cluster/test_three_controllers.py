"""Three controllers of ours and a broker in one thread: any controller may die, and the metadata
goes on.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.metadata_check import MetadataDamage, read_synced_end, write_durable_end
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.cluster.quorum_state import read_quorum_state, write_quorum_state
from twisted_broker.log.checkpoints import HIGH_WATERMARK, metadata_rows, write_offsets
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.security.principal import ANONYMOUS, encode_principal
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.broker_lifecycle import (
    ControllerRegistrationRequest,
    EnvelopeRequest,
)
from twisted_broker.wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.schema import encode

CLUSTER_ID = "M" * 22
VOTERS = ",".join(f"{node}@127.0.0.1:{9190 + node}" for node in (1, 2, 3))


class Quorum:
    """The nodes of one world, by id; 4 is the broker."""

    first: tuple[int, ...] = (1, 2, 3)

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.nodes: dict[int, MemoryBroker] = {}
        self.files = {node: MemoryFileSystem() for node in (1, 2, 3, 4)}
        self.seed = 10
        self.start(*self.first)
        self.until(lambda: self.leader is not None)
        self.broker = self.start(4)

    @property
    def world(self) -> MemoryBroker | None:
        return next(iter(self.nodes.values()), None)

    def start(self, *numbers: int) -> MemoryBroker:
        for number in numbers:
            self.seed += 1
            is_controller = number < 4
            port = 9190 + number
            name = "CONTROLLER" if is_controller else "PLAINTEXT"
            node = MemoryBroker(
                self.files[number],
                CLUSTER_ID,
                self.world,
                seed=self.seed,
                node_id=str(number),
                process_roles="controller" if is_controller else "broker",
                listeners=f"{name}://127.0.0.1:{port}",
                **self.found_by(number),
                **self.settings,
            )
            self.nodes[number] = node
            node.start()
        return node

    def found_by(self, number: int) -> dict[str, str]:
        """The settings by which that node finds the controllers."""
        return {"controller_quorum_voters": VOTERS}

    def crash(self, number: int) -> None:
        """Nothing is said to anybody; its port is closed."""
        node = self.nodes[number]
        controller = self.controller(number)
        assert controller is not None
        controller.log.is_closed = True
        controller.raft_manager.close()
        node.stop()
        del self.nodes[number]

    def pass_time(self, seconds: float) -> None:
        world = self.world
        assert world is not None
        world.pass_time(seconds)

    def stop(self) -> None:
        for node in [*self.nodes.values()][::-1]:
            node.stop()

    def controller(self, number: int) -> Controller | None:
        return self.nodes[number].broker.parts.controller

    @property
    def leader(self) -> int | None:
        for number in self.nodes:
            controller = self.controller(number)
            if number < 4 and controller is not None and controller.is_active:
                return number
        return None

    def until(self, condition: Any, seconds: float = 20.0) -> float:
        """How long that took."""
        world = self.world
        assert world is not None
        begin = world.clock.seconds()
        while not condition():
            world.step()
            assert world.clock.seconds() - begin < seconds, "it never came"
        return world.clock.seconds() - begin

    def create(self, name: str) -> None:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=20_000,
        )
        (topic,) = self.broker.ask(request, 7, port=9194).topics
        assert topic.error_code == ErrorCode.NONE, error_of(topic.error_code)

    def topics(self, number: int) -> set[str]:
        controller = self.controller(number)
        assert controller is not None
        return set(controller.image.topics_by_name)


@pytest.fixture
def quorum() -> Any:
    found = Quorum()
    yield found
    found.stop()


def test_three_controllers_elect_one_and_follow_it(quorum: Quorum) -> None:
    """QU 10 step 6: one is active, all have the same image."""
    quorum.create("a")
    leader = quorum.leader
    quorum.until(lambda: all(quorum.topics(node) == {"a"} for node in (1, 2, 3)))
    assert [node for node in (1, 2, 3) if quorum.controller(node).is_active] == [leader]
    images = [quorum.controller(node).image for node in (1, 2, 3)]
    assert len({image.topics_by_name["a"].id for image in images}) == 1


def test_each_controller_registers_itself(quorum: Quorum) -> None:
    """QU 2.22: a standby with the active one, until the image has its process; another process of
    its id registers anew. A feature needs all of the static list (2.23).
    """

    def registered() -> dict[int, bytes]:
        leader = quorum.leader
        if leader is None:
            return {}
        found = quorum.controller(leader).image.controllers
        return {node: each.incarnation_id for node, each in found.items()}

    quorum.until(lambda: registered().keys() == {1, 2, 3})
    before, old = registered(), quorum.leader
    assert old is not None
    quorum.pass_time(11)
    assert registered() == before, "once is enough"
    found = quorum.controller(old).image.controllers[3]
    assert found.listeners["CONTROLLER"].port == 9193
    assert found.features == SUPPORTED_FEATURES
    quorum.crash(old)
    quorum.until(lambda: quorum.leader is not None)
    quorum.start(old)
    quorum.until(lambda: registered().get(old) not in (None, before[old]))
    assert {node: registered()[node] for node in before if node != old} == {
        node: each for node, each in before.items() if node != old
    }


def test_each_controller_describes_all(quorum: Quorum) -> None:
    """KIP-919: who asks one controller finds the leader, also where that is another."""

    def described(node: int) -> list[tuple[int, int]]:
        asked = DescribeClusterRequest(endpoint_type=2)
        answer = quorum.nodes[node].ask(asked, 1, port=9190 + node)
        assert answer.controller_id == quorum.leader
        return [(each.broker_id, each.port) for each in answer.brokers]

    all_of_them = [(1, 9191), (2, 9192), (3, 9193)]
    quorum.until(lambda: described(1) == all_of_them)
    assert described(2) == described(3) == all_of_them


def test_below_metadata_version_15_none_registers(quorum: Quorum) -> None:
    """QU 2.21: such a record would be unknown to brokers of that version."""
    leader = quorum.leader
    assert leader is not None
    active = quorum.controller(leader)
    assert active is not None
    active.decided = replace(active.decided, features={"metadata.version": 14})
    active._view = None
    request = ControllerRegistrationRequest(controller_id=9, incarnation_id=bytes(16))
    answer = quorum.nodes[leader].ask(request, 0, port=9190 + leader)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    standby = next(node for node in (1, 2, 3) if node != leader)
    answer = quorum.nodes[standby].ask(request, 0, port=9190 + standby)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def test_the_leader_dies_and_topics_are_created_by_another(quorum: Quorum) -> None:
    """QU 5.15: the broker finds it by itself; what was acknowledged is there."""
    quorum.create("before")
    old = quorum.leader
    assert old is not None
    quorum.crash(old)
    assert quorum.until(lambda: quorum.leader is not None) < 5.0
    quorum.create("after")
    quorum.start(old)
    quorum.until(lambda: all(quorum.topics(node) == {"before", "after"} for node in (1, 2, 3)))
    assert quorum.leader != old


def test_a_leader_that_stops_hands_over(quorum: Quorum) -> None:
    """QU 5.21: without waiting for a fetch timeout."""
    quorum.create("before")
    old = quorum.leader
    assert old is not None
    stopping = quorum.nodes.pop(old)
    world = quorum.world
    assert world is not None
    begin = world.clock.seconds()
    stopping.stop()
    quorum.until(lambda: quorum.leader is not None)
    assert world.clock.seconds() - begin < 1.5
    quorum.create("after")


def test_without_a_majority_nothing_is_decided(quorum: Quorum) -> None:
    """And the last one resigns; with a second one it goes on."""
    quorum.create("before")
    left = quorum.leader
    others = [node for node in (1, 2, 3) if node != left]
    for node in others:
        quorum.crash(node)
    quorum.until(lambda: quorum.leader is None)
    quorum.start(others[0])
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")


def test_a_controller_that_was_away_for_long_gets_a_snapshot() -> None:
    """QU 3.14: what it missed is no longer in the leader's log."""
    quorum = Quorum(
        metadata_log_max_record_bytes_between_snapshots="2000", metadata_max_retention_bytes="1000"
    )
    away = next(node for node in (1, 2, 3) if node != quorum.leader)
    quorum.crash(away)
    names = {f"t{number}" for number in range(30)}
    for name in sorted(names):
        quorum.create(name)
        quorum.pass_time(0.5)
    leader = quorum.leader
    assert leader is not None
    known = quorum.controller(leader)
    assert known is not None and known.log.log.log_start_offset > 0
    quorum.start(away)
    quorum.until(lambda: quorum.topics(away) == names)
    back = quorum.controller(away)
    assert back is not None and back.log.snapshots and back.log.log.log_start_offset > 0
    quorum.crash(leader)
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")
    quorum.start(leader)
    quorum.until(lambda: quorum.topics(away) == quorum.topics(leader) == {*names, "after"})
    quorum.stop()


def test_a_controller_that_was_away_for_a_snapshot_goes_on_in_the_log() -> None:
    """QU 3.16: the log before a snapshot stays, up to `metadata.max.retention.bytes`."""
    quorum = Quorum(metadata_log_max_record_bytes_between_snapshots="2000")
    away = next(node for node in (1, 2, 3) if node != quorum.leader)
    quorum.create("first")
    quorum.until(lambda: quorum.topics(away) == {"first"})
    quorum.crash(away)
    names = {f"t{number}" for number in range(30)}
    for name in sorted(names):
        quorum.create(name)
        quorum.pass_time(0.5)
    leader = quorum.controller(quorum.leader or 0)
    assert leader is not None and len(leader.log.snapshots) > 1
    assert leader.log.log.log_start_offset == 0
    quorum.start(away)
    quorum.until(lambda: quorum.topics(away) == {"first", *names})
    back = quorum.controller(away)
    assert back is not None and back.log.log.log_start_offset == 0
    old = leader.node_id
    quorum.crash(old)
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("last")
    quorum.start(old)
    quorum.until(lambda: quorum.topics(old) == {"first", "last", *names})
    quorum.stop()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_restart_keeps_the_log_before_its_snapshots(is_damaged: bool) -> None:
    """QU 3.16: from the oldest on, where all of that can be read; else from the newest on."""
    quorum = Quorum(
        metadata_log_max_record_bytes_between_snapshots="2000", metadata_max_retention_bytes="25000"
    )
    for number in range(40):
        quorum.create(f"t{number}")
        quorum.pass_time(0.5)
    (again, *_) = (node for node in (1, 2, 3) if node != quorum.leader)
    before = quorum.controller(again)
    assert before is not None
    start, oldest = before.log.log.log_start_offset, before.log.snapshots[0]
    assert start == oldest.end_offset and len(before.log.snapshots) > 2
    quorum.crash(again)
    if is_damaged:
        (segment, *_) = before.log.log.segments.between(start, start + 1)
        path = segment.log.path
        file = quorum.files[again].open(path)
        file.write_at(file.size() - 1, (b"?",))
        file.close()
    quorum.start(again)
    quorum.until(lambda: quorum.topics(again) == {f"t{number}" for number in range(40)})
    back = quorum.controller(again)
    assert back is not None
    newest = before.log.snapshots[-1].end_offset
    assert back.log.log.log_start_offset == (newest if is_damaged else start)
    quorum.crash(quorum.leader or 0)
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")
    quorum.stop()


def test_the_quorum_says_who_votes(quorum: Quorum) -> None:
    """QU 2.20: DescribeQuorum of the leader, through the broker."""
    topic = DescribeQuorumRequestTopicData(
        topic_name="__cluster_metadata",
        partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
    )
    quorum.until(lambda: quorum.leader is not None)
    answer = quorum.broker.ask(DescribeQuorumRequest(topics=[topic]), 2, port=9194)
    (partition,) = answer.topics[0].partitions
    assert partition.leader_id == quorum.leader
    assert sorted(each.replica_id for each in partition.current_voters) == [1, 2, 3]
    assert [each.replica_id for each in partition.observers] == [4]


def test_a_client_hears_nothing_of_a_change_of_controllers(quorum: Quorum) -> None:
    """Its broker tries again: an Envelope to one that does not lead is refused as a whole, as Kafka
    does it (`RequestChannel`).
    """
    quorum.create("before")
    old = quorum.leader
    assert old is not None
    standby = next(node for node in (1, 2, 3) if node != old)
    inside = CreateTopicsRequest(topics=[CreatableTopic(name="a", num_partitions=1)])
    header = encode_request_header(RequestHeader(inside.api_key, 7, 99, "client"))
    asked = EnvelopeRequest(
        request_data=header + encode(inside, 7),
        request_principal=encode_principal(ANONYMOUS),
        client_host_address=bytes(4),
    )
    answer = quorum.nodes[standby].ask(asked, 0, port=9190 + standby)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    quorum.crash(old)
    quorum.create("amid")


def test_a_voter_whose_broker_had_more_does_not_lead(quorum: Quorum) -> None:
    """QU 5.1: who leads has all that was ever committed; where that is less than what this node had
    applied, both were lost from a majority. It may follow.
    """
    quorum.create("before")
    old = quorum.leader
    assert old is not None
    others = [node for node in (1, 2, 3) if node != old]
    for node in others:
        quorum.crash(node)
        write_offsets(quorum.files[node], "/data", HIGH_WATERMARK, metadata_rows(10_000))
        quorum.start(node)
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in others))
    quorum.crash(old)
    quorum.pass_time(10)
    (failed,) = [line for node in others for line in quorum.nodes[node].fatal]
    assert "applied it up to 10000" in failed
    assert quorum.leader is None


def short_of_descriptors(log: MetadataLog, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Its segment is full, and no other can be opened, until the list is empty."""
    real, is_short = Log.append_as_follower, [True]

    def append(self: Log, *of: Any) -> Any:
        if self is log.log and is_short:
            raise OutOfDescriptors(log.directory, OSError(errno.EMFILE, "too many"))
        return real(self, *of)

    monkeypatch.setattr(Log, "append_as_follower", append)
    return is_short


def test_a_leader_short_of_descriptors_for_its_own_batch_fails(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers that know of a batch that is not there would ask for it without a pause; another
    one leads instead.
    """
    quorum.create("before")
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in (1, 2, 3)))
    old = quorum.leader
    assert old is not None
    others = [node for node in (1, 2, 3) if node != old]
    short = {}
    for node in others:
        controller = quorum.controller(node)
        assert controller is not None
        short[node] = controller.log
    real = Log.append_as_follower
    failed: list[Log] = []

    def append(self: Log, *of: Any) -> Any:
        if not failed and any(self is each.log for each in short.values()):
            failed.append(self)
            raise OutOfDescriptors("metadata", OSError(errno.EMFILE, "too many"))
        return real(self, *of)

    monkeypatch.setattr(Log, "append_as_follower", append)
    quorum.crash(old)
    quorum.until(lambda: bool(failed))
    (node,) = [node for node, log in short.items() if log.log is failed[0]]
    assert short[node].failed is not None
    quorum.start(old)
    quorum.until(lambda: quorum.leader not in (None, node))


def test_a_follower_short_of_descriptors_waits(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledges nothing meanwhile, and goes on once a file can be opened."""
    quorum.create("before")
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in (1, 2, 3)))
    leader = quorum.leader
    short, other = (node for node in (1, 2, 3) if node != leader)
    controller = quorum.controller(short)
    assert controller is not None and leader is not None
    log, is_short = controller.log, short_of_descriptors(controller.log, monkeypatch)
    end = log.end_offset
    quorum.create("meanwhile")
    quorum.pass_time(12)
    assert log.failed is None and log.end_offset == log.log.high_watermark == end
    active = quorum.controller(leader)
    assert active is not None and active.is_active
    voters, _ = active.log.raft.quorum.state.described(0)
    assert {each.key.id: each.end_offset for each in voters}[short] == end
    assert "meanwhile" not in quorum.topics(short)
    is_short.clear()
    quorum.until(lambda: "meanwhile" in quorum.topics(short))
    quorum.crash(other)
    quorum.create("by-these-two")


def test_who_is_short_of_descriptors_votes_for_nobody(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vote would be durable before the log that it fetched first; the third waits for it."""
    quorum.create("before")
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in (1, 2, 3)))
    old = quorum.leader
    assert old is not None
    short, _ = (node for node in (1, 2, 3) if node != old)
    controller = quorum.controller(short)
    assert controller is not None
    is_short = short_of_descriptors(controller.log, monkeypatch)
    quorum.create("meanwhile")
    quorum.crash(old)
    quorum.pass_time(6)
    assert quorum.leader is None
    is_short.clear()
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")
    quorum.until(lambda: quorum.topics(short) == {"before", "meanwhile", "after"})


@pytest.mark.parametrize("how", ["cut", "flipped", "another epoch"])
def test_what_was_acknowledged_and_is_not_known_as_committed_is_missed(how: str) -> None:
    """QU 1.17: a voter's own word for its log, in that epoch of the quorum. In another one its
    leader may have had it truncated.
    """
    quorum = Quorum()
    quorum.create("before")
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in (1, 2, 3)))
    again = next(node for node in (1, 2, 3) if node != quorum.leader)
    controller = quorum.controller(again)
    assert controller is not None
    directory, end = controller.log.directory, controller.log.end_offset
    quorum.crash(again)
    files = quorum.files[again]
    known = read_quorum_state(files, directory)
    assert known is not None and read_synced_end(files, directory, known.epoch) == end
    write_durable_end(files, directory, 1)  # as if it had not heard of the last commit yet
    if how == "another epoch":
        write_quorum_state(files, directory, known._replace(epoch=known.epoch + 1), (1, 2, 3))
    (segment,) = controller.log.log.segments.between(0, end)
    file = files.open(segment.log.path)
    size = segment.size
    if how == "flipped":
        file.write_at(size - 1, (bytes([file.read_at(size - 1, 1)[0] ^ 1]),))
    else:
        file.truncate(size - 1)
    file.close()
    if how == "another epoch":
        quorum.start(again)
        quorum.until(lambda: quorum.topics(again) == {"before"})
        quorum.stop()
    else:
        with pytest.raises(MetadataDamage, match="durable"):
            quorum.start(again)
