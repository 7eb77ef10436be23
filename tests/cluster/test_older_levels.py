"""A controller whose cluster is at an older metadata.version: Apache Kafka 3.3 to 3.6 wrote its
log.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.cluster.fixtures import CLUSTER_ID, DIRECTORY_ID, Fixture
from twisted_broker.cluster.bootstrap import Bootstrap
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.metadata_log import open_metadata_log
from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.image.entries import MIGRATING, UNASSIGNED, PartitionRegistration
from twisted_broker.image.metadata_image import METADATA_VERSION
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages import log_dirs, reassignment
from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest
from twisted_broker.wire.messages.metadata_records import FeatureLevelRecord
from twisted_broker.wire.messages.topics import CreatableReplicaAssignment, CreatableTopic


def at_level(level: int) -> Fixture:
    """A controller that begins at this level, without any other feature; brokers 1 and 2 serve."""
    fixture = Fixture()
    fixture.controller = Controller(
        CLUSTER_ID,
        fixture.runtime,
        fixture.config,
        partial(open_metadata_log, fixture.files, fixture.worker, "/data", 1, fixture.now),
        bootstrap=lambda: Bootstrap({METADATA_VERSION: level}, {}),
    )
    fixture.start()
    fixture.join(1)
    fixture.join(2)
    return fixture


def place(fixture: Fixture, replicas: list[int]) -> bytes:
    """Topic `t` with one partition; its id."""
    placed = CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[placed])
    (result,) = fixture.create_topics(topic)
    assert result.error_code == 0
    topic_id: bytes = result.topic_id
    return topic_id


def partition(fixture: Fixture) -> PartitionRegistration:
    found = fixture.controller.image.partition("t", 0)
    assert found is not None
    return found


def assign(fixture: Fixture, broker: int, topic_id: bytes, directory: bytes) -> Any:
    where = log_dirs.AssignReplicasToDirsRequestPartitionData(partition_index=0)
    topic = log_dirs.AssignReplicasToDirsRequestTopicData(topic_id=topic_id, partitions=[where])
    request = log_dirs.AssignReplicasToDirsRequest(
        broker_id=broker,
        broker_epoch=fixture.controller.image.brokers[broker].epoch,
        directories=[
            log_dirs.AssignReplicasToDirsRequestDirectoryData(id=directory, topics=[topic])
        ],
    )
    return fixture.ask("assign_replicas_to_dirs", request, 0)


@pytest.mark.parametrize("level", [7, 12, 16])
def test_records_below_3_7_iv2_name_no_directories(level: int) -> None:
    """RL 8.1: topics are created, grown by a replica and found again after a restart, by the log
    and by a snapshot.
    """
    fixture = at_level(level)
    place(fixture, [1])
    assert partition(fixture).directories == (MIGRATING,)
    wanted = reassignment.ReassignablePartition(partition_index=0, replicas=[1, 2])
    request = reassignment.AlterPartitionReassignmentsRequest(
        topics=[reassignment.ReassignableTopic(name="t", partitions=[wanted])]
    )
    (answer,) = fixture.ask("alter_partition_reassignments", request, 1).responses
    assert answer.partitions[0].error_code == 0
    moving = partition(fixture)
    assert (moving.replicas, moving.directories) == ((1, 2), (MIGRATING, UNASSIGNED))
    fixture.restart()
    assert partition(fixture) == moving
    fixture.controller.log.write_snapshot(fixture.controller.committed)
    assert fixture.controller.log.snapshots
    fixture.restart()
    after = partition(fixture)
    assert after._replace(directories=moving.directories) == moving


def test_below_3_7_iv2_no_directory_is_assigned() -> None:
    """KIP-858: refused as by Kafka; nobody leaves an ISR."""
    fixture = at_level(16)
    topic_id = place(fixture, [1, 2])
    with pytest.raises(BrokerError) as refused:
        assign(fixture, 1, topic_id, DIRECTORY_ID[:15] + b"\x01")
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert partition(fixture).isr == (1, 2)


def test_a_registration_without_directories_loses_no_replica() -> None:
    """KAFKA-16162: when the level rises, a broker reports where its replicas lie, and registers its
    directories, in no order. Its registration would elect nobody.
    """
    fixture = at_level(16)
    topic_id = place(fixture, [1])
    fixture.controller.write([FeatureLevelRecord(name=METADATA_VERSION, feature_level=17)])
    directory = DIRECTORY_ID[:15] + b"\x01"
    code = assign(fixture, 1, topic_id, directory).directories[0].topics[0].partitions[0].error_code
    assert code == 0
    fixture.register(1, bytes([1]) * 16)
    led = partition(fixture)
    assert (led.leader, led.isr, led.directories) == (1, (1,), (directory,))


def test_who_was_unregistered_without_elr_comes_back_as_after_an_unclean_stop() -> None:
    """KIP-966: it stayed in the ISR as the last member. What its directories hold now nobody
    knows: with ELR, no clean election may take it.
    """
    fixture = at_level(30)
    place(fixture, [1, 2])
    fixture.beat(2, fixture.controller.image.brokers[2].epoch, want_fence=True)
    fixture.ask("unregister_broker", UnregisterBrokerRequest(broker_id=1), 0)
    assert (partition(fixture).leader, partition(fixture).isr) == (-1, (1,))
    fixture.controller.write([FeatureLevelRecord(name=ELR_FEATURE, feature_level=1)])
    fixture.join(1)
    assert (partition(fixture).leader, partition(fixture).isr) == (-1, ())


@pytest.mark.parametrize("level", [7, 14])
def test_a_controller_registers_where_the_level_has_it(level: int) -> None:
    """Kafka's `isControllerRegistrationSupported`: a broker of Apache Kafka below 3.7 ends at a
    record that it does not know.
    """
    fixture = at_level(level)
    assert fixture.controller.image.controllers == {}
    fixture.restart()
    assert fixture.controller.image.controllers == {}
    fixture.controller.write([FeatureLevelRecord(name=METADATA_VERSION, feature_level=15)])
    assert list(fixture.controller.image.controllers) == [1]
    fixture.restart()
    assert list(fixture.controller.image.controllers) == [1]


@pytest.mark.parametrize(("level", "rises"), [(7, 1), (11, 1), (12, 0), (30, 0)])
def test_below_3_6_a_smaller_isr_begins_a_leader_epoch(level: int, rises: int) -> None:
    """KAFKA-15021: the high watermark of a leader below 3.6 else waits for who left, for
    `replica.lag.time.max.ms`. A larger ISR begins none.
    """
    fixture = at_level(level)
    topic_id = place(fixture, [1, 2])
    epoch = fixture.controller.image.brokers[1].epoch
    sizes = []
    for isr in ([1], [1, 2]):
        now = partition(fixture)
        wanted = lifecycle.AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=now.leader_epoch,
            new_isr_with_epochs=[
                lifecycle.BrokerState(broker_id=member, broker_epoch=-1) for member in isr
            ],
            partition_epoch=now.partition_epoch,
        )
        topic = lifecycle.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[wanted])
        request = lifecycle.AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[topic])
        answer = fixture.ask("alter_partition", request, 3).topics[0].partitions[0]
        assert (answer.error_code, answer.leader_id) == (0, 1)
        assert answer.leader_epoch == partition(fixture).leader_epoch
        sizes.append((len(partition(fixture).isr), answer.leader_epoch))
    assert sizes == [(1, rises), (2, rises)]
    fixture.beat(2, fixture.controller.image.brokers[2].epoch, want_fence=True)
    assert (partition(fixture).isr, partition(fixture).leader_epoch) == ((1,), 2 * rises)
