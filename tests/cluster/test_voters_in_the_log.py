"""Controllers whose voters the metadata log says (kraft.version 1): founded by `replog format`,
added, removed, upgraded, all in one thread.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from tests.cluster.test_three_controllers import CLUSTER_ID, Quorum
from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.bootstrap import DEFAULT
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.metadata_recovery import Target, read_source, recover
from twisted_broker.cluster.snapshots import list_snapshots, quorum_of_snapshot
from twisted_broker.cluster.storage_formatter import Node, format_node
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.raft.replica_key import Endpoint, ReplicaKey
from twisted_broker.raft.voter_history import KRaftVersion, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from twisted_broker.wire.messages.quorum import (
    AddRaftVoterRequest,
    RaftVoterListener,
    RemoveRaftVoterRequest,
)

METADATA = "/data/__cluster_metadata-0"
BOOTSTRAP = ",".join(f"127.0.0.1:{9190 + node}" for node in (1, 2, 3))


def voter(number: int) -> VoterNode:
    endpoint = Endpoint("CONTROLLER", "127.0.0.1", 9190 + number)
    return VoterNode(ReplicaKey(number, bytes([number]) * 16), (endpoint,), 0, 1)


class VotersInTheLog(Quorum):
    """Nodes 1 to 3 are controllers; `founders` of them the first voters, the others join."""

    def __init__(self, *founders: int, **more: str) -> None:
        self.founders = founders
        super().__init__(**more)

    def start(self, *numbers: int) -> MemoryBroker:
        for number in numbers:
            if not self.files[number].exists("/data/meta.properties"):
                self.format(number)
        return super().start(*numbers)

    def format(self, number: int) -> None:
        voters = [voter(each) for each in self.founders] if number in self.founders else []
        node = Node(number, CLUSTER_ID, ["/data"], "/data", DEFAULT.levels, (), voters)
        format_node(self.files[number], node, Random(self.seed), 0, ignore_formatted=False)

    def found_by(self, number: int) -> dict[str, str]:
        return {"controller_quorum_bootstrap_servers": BOOTSTRAP}

    def of(self, number: int | None) -> Controller:
        controller = self.controller(number or 0)
        assert controller is not None
        return controller

    def directory_id(self, number: int) -> bytes:
        return self.of(number).log.quorum.local.key.directory_id

    def voters(self, number: int) -> list[int]:
        return sorted(self.of(number).log.history.voters.ids)

    def describe(self) -> Any:
        topic = DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata",
            partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
        )
        answer = self.broker.ask(DescribeQuorumRequest(topics=[topic]), 2, port=9194)
        return answer.topics[0].partitions[0]

    def add(self, number: int) -> ErrorCode:
        listener = RaftVoterListener(name="CONTROLLER", host="127.0.0.1", port=9190 + number)
        request = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=1000,
            voter_id=number,
            voter_directory_id=self.directory_id(number),
            listeners=[listener],
        )
        return error_of(self.broker.ask(request, 1, port=9194).error_code)

    def remove(self, number: int, directory_id: bytes) -> ErrorCode:
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=number, voter_directory_id=directory_id
        )
        return error_of(self.broker.ask(request, 0, port=9194).error_code)


class OneOfOne(VotersInTheLog):
    first = (1,)


def upgrade(level: int = 1, kind: int = 1) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(feature="kraft.version", max_version_level=level, upgrade_type=kind)
    return UpdateFeaturesRequest(feature_updates=[update], timeout_ms=1000)


def finalised(node: MemoryBroker, port: int) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = node.ask(request, 4, port=port)
    return {each.name: each.max_version_level for each in answer.finalized_features}


def test_voters_of_the_bootstrap_checkpoint_elect_a_leader() -> None:
    """QU 3.3, 4.9: the first leader writes them to the log, behind its LeaderChange."""
    quorum = VotersInTheLog(1, 2, 3)
    quorum.create("a")
    quorum.until(lambda: all(quorum.topics(node) == {"a"} for node in (1, 2, 3)))
    leader = quorum.of(quorum.leader)
    history = leader.log.history
    assert history.kraft_version == 1 and history.voters_offset == 2
    assert set(history.voters.keys) == {voter(each).key for each in (1, 2, 3)}
    described = quorum.describe()
    assert {each.replica_id: each.replica_directory_id for each in described.current_voters} == {
        each: bytes([each]) * 16 for each in (1, 2, 3)
    }
    port = 9190 + leader.node_id
    assert finalised(quorum.nodes[leader.node_id], port)["kraft.version"] == 1
    quorum.stop()


def test_the_leader_dies_and_comes_back_as_a_voter() -> None:
    quorum = VotersInTheLog(1, 2, 3)
    quorum.create("before")
    old = quorum.leader
    assert old is not None
    quorum.crash(old)
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")
    quorum.start(old)
    quorum.until(lambda: all(quorum.topics(node) == {"before", "after"} for node in (1, 2, 3)))
    assert quorum.voters(old) == [1, 2, 3]
    quorum.stop()


def test_from_one_controller_to_three_and_without_the_first() -> None:
    """QU 2.24 to 2.27, 4.13, 4.15: one by one; the removed leader hands over."""
    quorum = VotersInTheLog(1)
    quorum.create("a")
    assert quorum.leader == 1 and quorum.voters(1) == [1]
    quorum.until(lambda: quorum.topics(2) == quorum.topics(3) == {"a"})
    for number in (2, 3):
        assert quorum.add(number) is ErrorCode.NONE
        quorum.create(f"with-{number}")
    quorum.until(lambda: all(quorum.voters(node) == [1, 2, 3] for node in (1, 2, 3)))
    assert quorum.add(3) is ErrorCode.DUPLICATE_VOTER
    assert quorum.remove(1, b"x" * 16) is ErrorCode.VOTER_NOT_FOUND
    assert quorum.remove(1, quorum.directory_id(1)) is ErrorCode.NONE
    quorum.until(lambda: quorum.leader in (2, 3))
    quorum.create("without-1")
    quorum.crash(1)
    quorum.create("after")
    assert quorum.voters(2) == [2, 3]
    quorum.stop()


def test_a_controller_joins_by_itself_also_with_a_new_disk() -> None:
    """QU 4.13, 4.14: `controller.quorum.auto.join.enable`."""
    quorum = VotersInTheLog(1, 2, controller_quorum_auto_join_enable="true")
    quorum.create("a")
    quorum.until(lambda: all(quorum.voters(node) == [1, 2, 3] for node in (1, 2, 3)))
    before = quorum.directory_id(3)
    quorum.crash(3)
    quorum.files[3] = MemoryFileSystem()
    quorum.start(3)
    after = quorum.directory_id(3)
    assert after != before
    leader = quorum.of(quorum.leader)
    quorum.until(lambda: ReplicaKey(3, after) in leader.log.history.voters.keys)
    quorum.create("b")
    quorum.until(lambda: quorum.topics(3) == {"a", "b"})
    quorum.stop()


def test_a_snapshot_says_who_votes() -> None:
    """QU 3.15: its own, the one that a joiner fetches, and after a start that has nothing else."""
    quorum = OneOfOne(1, metadata_log_max_record_bytes_between_snapshots="2000")
    for number in range(30):
        quorum.create(f"t{number}")
        quorum.pass_time(0.5)
    assert quorum.of(1).log.log.log_start_offset > 3
    newest = list_snapshots(quorum.files[1], METADATA)[-1]
    found = quorum_of_snapshot(quorum.files[1], METADATA, newest, "CONTROLLER")
    assert found == (KRaftVersion(1), Voters(VoterSet([voter(1)])))
    quorum.start(2)
    quorum.until(lambda: len(quorum.topics(2)) == 30)
    assert quorum.voters(2) == [1] and quorum.of(2).log.history.kraft_version == 1
    assert quorum.add(2) is ErrorCode.NONE
    for number in (1, 2):
        quorum.crash(number)
        quorum.start(number)
        quorum.until(lambda: quorum.leader is not None)
        assert quorum.voters(number) == [1, 2]
    quorum.create("after")
    quorum.stop()


def test_kraft_version_becomes_1_when_each_voter_has_said_that_it_serves_it() -> None:
    """QU 4.4, 4.5: of static voters; their directory ids are known from then on."""
    quorum = Quorum()
    refused = quorum.broker.ask(upgrade(), 1, port=9194)
    assert error_of(refused.error_code) is ErrorCode.INVALID_UPDATE_VERSION
    quorum.pass_time(5.0)  # UpdateRaftVoter comes with a time-out of the fetches
    answer = quorum.broker.ask(upgrade(), 1, port=9194)
    assert answer.error_code == ErrorCode.NONE, answer.error_message

    def levels() -> set[int]:
        found = [quorum.controller(node) for node in (1, 2, 3)]
        return {each.log.history.kraft_version for each in found if each is not None}

    quorum.until(lambda: levels() == {1})
    refused = quorum.broker.ask(upgrade(0, 3), 1, port=9194)
    assert error_of(refused.error_code) is ErrorCode.INVALID_UPDATE_VERSION
    old = quorum.leader
    assert old is not None
    quorum.crash(old)
    quorum.until(lambda: quorum.leader is not None)
    quorum.create("after")
    quorum.start(old)
    quorum.until(lambda: quorum.topics(old) == {"after"})
    quorum.stop()


def test_a_cluster_of_its_own_is_upgraded_and_restarts() -> None:
    """One that a first start founded: from then on it can get a second voter."""

    def controller() -> MemoryBroker:
        return MemoryBroker(
            files, process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093"
        )

    files = MemoryFileSystem()
    first = controller().start()
    answer = first.ask(upgrade(), 1, port=9093)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    assert finalised(first, 9093)["kraft.version"] == 1
    known = first.broker.parts.controller
    assert known is not None and known.log.is_alone
    assert known.log.history.voters.keys == (known.log.quorum.local.key,)
    first.stop()
    again = controller().start()
    known = again.broker.parts.controller
    assert known is not None and known.is_active and known.log.history.kraft_version == 1
    again.stop()


def test_who_joins_without_a_cluster_id_is_refused() -> None:
    """It would found a cluster of its own, or be of any."""
    with pytest.raises(LogDirMismatch, match=r"--no-initial-controllers"):
        MemoryBroker(
            process_roles="controller",
            listeners="CONTROLLER://127.0.0.1:9191",
            controller_quorum_bootstrap_servers="127.0.0.1:9192",
        )


def test_a_majority_is_lost_and_one_goes_on_alone() -> None:
    """QU 4.20: from a broker's copy; the others are voters no more."""
    quorum = VotersInTheLog(1, 2, 3)
    quorum.create("a")
    copy = quorum.files[4]
    quorum.until(lambda: "a" in quorum.broker.broker.parts.metadata.image.topics_by_name)
    for number in (1, 2, 3):
        quorum.crash(number)
    quorum.nodes.pop(4).stop()
    source = read_source(copy, "/data")
    assert sorted(source.voters.ids) == [1, 2, 3]
    done = recover(copy, source, Target("/new", 1), 0, Random(3).randbytes)
    assert [each.id for each in done.dropped] == [2, 3]
    alone = MemoryBroker(
        copy,
        CLUSTER_ID,
        node_id="1",
        process_roles="controller",
        listeners="CONTROLLER://127.0.0.1:9191",
        log_dirs="/new",
        **quorum.found_by(1),
    ).start()
    controller = alone.broker.parts.controller
    assert controller is not None and controller.is_active
    assert set(controller.image.topics_by_name) == {"a"}
    (voter_left,) = controller.log.history.voters.nodes
    assert voter_left.id == 1 and voter_left.endpoints[0].port == 9191
    alone.stop()


def test_who_is_left_alone_short_of_descriptors_has_no_hole_in_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record that leaves it alone is known before it is written."""

    class Two(VotersInTheLog):
        first = (1, 2)

    quorum = Two(1, 2)
    quorum.create("before")
    quorum.until(lambda: all(quorum.topics(node) == {"before"} for node in (1, 2)))
    leader = quorum.leader
    assert leader is not None
    other = 3 - leader
    log = quorum.of(other).log
    real = Log.append_as_follower
    failed: list[Log] = []

    def append(self: Log, *of: Any) -> Any:
        if self is log.log and log.is_alone and not failed:
            failed.append(self)
            raise OutOfDescriptors("metadata", OSError(errno.EMFILE, "too many"))
        return real(self, *of)

    monkeypatch.setattr(Log, "append_as_follower", append)
    quorum.remove(leader, quorum.directory_id(leader))
    quorum.until(lambda: bool(failed) and log.epoch >= 0)
    quorum.pass_time(2)
    assert log.end_offset == log.raft.node.log.end_offset
    quorum.crash(other)
    quorum.start(other)
    quorum.until(lambda: quorum.topics(other) == {"before"})
