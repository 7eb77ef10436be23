"""Brokers register, beat, are fenced and leave: the controller's answers and records."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.cluster.fixtures import CLUSTER_ID, DIRECTORY_ID, Fixture
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.image.entries import LOST, NO_LEADER, RECOVERING
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages
from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)


def feature(
    name: str, low: int, high: int
) -> broker_lifecycle_messages.BrokerRegistrationRequestFeature:
    return broker_lifecycle_messages.BrokerRegistrationRequestFeature(
        name=name, min_supported_version=low, max_supported_version=high
    )


def make_topic(
    fixture: Fixture, name: str, *assignments: list[int], settings: dict[str, str] | None = None
) -> None:
    chosen = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
        for number, brokers in enumerate(assignments)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=chosen)
    topic.configs = [
        CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()
    ]
    result = fixture.ask("create_topics", CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert result.error_code == 0, result


def partition(fixture: Fixture, topic: str, number: int = 0) -> Any:
    return fixture.controller.image.topics_by_name[topic].partitions[number]


def test_a_broker_registers_and_is_unfenced_once_it_has_caught_up(fixture: Fixture) -> None:
    """RL 8.2: the broker epoch is the offset of its record; fenced until its own heartbeat says
    that it read that record.
    """
    epoch = fixture.register()
    broker = fixture.controller.image.brokers[1]
    assert broker.epoch == epoch == fixture.controller.image.offset and broker.fenced
    behind = fixture.beat(1, epoch, current_metadata_offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    assert fixture.beat(1, epoch, want_fence=True).is_fenced
    caught_up = fixture.beat(1, epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)
    assert not fixture.controller.image.brokers[1].fenced


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "B" * 22}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"cluster_id": "-" * 22}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"cluster_id": "z" * 22}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (
            {
                "features": [
                    feature("metadata.version", 7, 21),
                    feature("eligible.leader.replicas.version", 0, 1),
                ]
            },
            ErrorCode.UNSUPPORTED_VERSION,
        ),
        ({"features": [feature("metadata.version", 7, 30)]}, ErrorCode.UNSUPPORTED_VERSION),
        (
            {"features": [feature("eligible.leader.replicas.version", 0, 1)]},
            ErrorCode.INVALID_REGISTRATION,
        ),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(15) + b"\x05"]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [DIRECTORY_ID, DIRECTORY_ID]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [DIRECTORY_ID[:15] + b"\x02"]}, ErrorCode.INVALID_REGISTRATION),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
)
def test_registrations_that_are_refused(
    fixture: Fixture, changes: dict[str, Any], code: ErrorCode
) -> None:
    """KRAFT 3.4: another cluster, a finalised feature outside the ranges or not named,
    directories that cannot be; nothing is written.
    """
    fixture.register(2, b"2" * 16)
    before = fixture.controller.image
    with pytest.raises(BrokerError) as caught:
        fixture.register(1, b"i" * 16, **changes)
    assert caught.value.code is code
    assert fixture.controller.image is before


def test_another_incarnation_waits_until_the_session_of_the_first_is_over(fixture: Fixture) -> None:
    """KRAFT 3.4: same id, live session, other incarnation: DUPLICATE_BROKER_REGISTRATION for the
    9 s of the session.
    """
    epoch = fixture.join(1)
    fixture.advance(8.5)
    with pytest.raises(BrokerError) as caught:
        fixture.register(1, b"j" * 16)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    fixture.advance(0.5)
    assert fixture.register(1, b"j" * 16) > epoch


@pytest.mark.parametrize("changes", [{"features": []}, {"log_dirs": []}])
def test_a_taken_id_is_said_before_all_else(fixture: Fixture, changes: dict[str, Any]) -> None:
    """As in Kafka: whoever starts a second node of an id reads that, not what else is wrong; of
    directories and features, the directories come first.
    """
    fixture.join(1)
    with pytest.raises(BrokerError) as caught:
        fixture.register(1, b"j" * 16, **changes)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    old = [feature("metadata.version", 1, 2)]
    with pytest.raises(BrokerError) as caught:
        fixture.register(2, b"j" * 16, log_dirs=[], features=old)
    assert caught.value.code is ErrorCode.INVALID_REGISTRATION


def test_the_same_incarnation_may_say_it_again(fixture: Fixture) -> None:
    """KRAFT 3.4: a repeated registration (the answer was lost) keeps its epoch and does not
    fence.
    """
    epoch = fixture.join(1)
    again = fixture.register(1, bytes([1]) * 16)
    assert again == epoch and not fixture.controller.image.brokers[1].fenced


def test_a_silent_broker_is_fenced_after_its_session(fixture: Fixture) -> None:
    """RL 8.2: session 9 s; a beat in time keeps it; leadership goes to the one that still beats."""
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])
    for _ in range(4):
        fixture.advance(4.0)
        fixture.beat(2, epochs[2])
    image = fixture.controller.image
    assert image.brokers[1].fenced and not image.brokers[2].fenced
    assert (partition(fixture, "t").leader, partition(fixture, "t").isr) == (2, (2,))


def test_after_a_restart_every_broker_has_a_full_session(fixture: Fixture) -> None:
    """RL 8.1: the new controller fences nobody before 9 s of its own life, however silent the
    broker was before; then it does.
    """
    fixture.join(1)
    fixture.advance(8.0)
    fixture.restart()
    fixture.advance(8.5)
    assert not fixture.controller.image.brokers[1].fenced
    fixture.advance(1.0)
    assert fixture.controller.image.brokers[1].fenced


def test_a_restarted_lone_node_registers_at_once(fixture: Fixture) -> None:
    """RL 8.1: a session holds off another incarnation only if this controller heard it."""
    epoch = fixture.join(1)
    fixture.restart()
    assert fixture.register(1, b"k" * 16) > epoch


def test_a_stale_broker_epoch_is_refused(fixture: Fixture) -> None:
    """RL 8.2: heartbeats under another epoch, or of nobody."""
    epoch = fixture.join(1)
    for broker, wrong in ((1, epoch - 1), (5, epoch)):
        with pytest.raises(BrokerError) as caught:
            fixture.beat(broker, wrong)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_controlled_shutdown_moves_leaders_and_waits_for_the_others(fixture: Fixture) -> None:
    """RL 8.2: granted when it leads nothing and every live broker has passed the offset at which
    it began.
    """
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])
    before = fixture.controller.image.offset
    first = fixture.beat(1, epochs[1], want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert fixture.controller.image.brokers[1].in_controlled_shutdown
    assert (partition(fixture, "t").leader, partition(fixture, "t").isr) == (2, (2,))
    fixture.beat(2, epochs[2], current_metadata_offset=before)
    assert not fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down
    fixture.beat(2, epochs[2])
    last = fixture.beat(1, epochs[1], want_shut_down=True)
    assert (last.should_shut_down, last.is_fenced) == (True, True)
    assert fixture.controller.image.brokers[1].fenced


def test_a_controlled_shutdown_that_found_no_descriptor_begins_later(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: the others must have seen the record of the beginning that was written."""
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])

    def short(log: MetadataLog, *arguments: object) -> int:
        raise OutOfDescriptors(log.directory, OSError(errno.EMFILE, "no"))

    with monkeypatch.context() as patched:
        patched.setattr(MetadataLog, "append", short)
        with pytest.raises(BrokerError):
            fixture.beat(1, epochs[1], want_shut_down=True)
    before = fixture.controller.image.offset
    fixture.beat(1, epochs[1], want_shut_down=True)
    fixture.beat(2, epochs[2], current_metadata_offset=before)
    assert not fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down
    fixture.beat(2, epochs[2])
    assert fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down


def test_a_topic_is_created_while_a_broker_shuts_down(fixture: Fixture) -> None:
    """A rolling restart: its only replicas go to those who stay."""
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])
    fixture.beat(1, epochs[1], want_shut_down=True)
    assert fixture.controller.image.brokers[1].in_controlled_shutdown
    fixture.create_topic("u", 10)
    placed = fixture.controller.image.topics_by_name["u"].partitions.values()
    assert {each.replicas for each in placed} == {(2,)}


def test_a_controlled_shutdown_does_not_wait_for_what_came_after_it(fixture: Fixture) -> None:
    """RL 8.2: the others need to know of its own beginning only."""
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])
    fixture.beat(1, epochs[1], want_shut_down=True)
    began = fixture.controller.image.offset
    make_topic(fixture, "u", [2])
    assert fixture.controller.image.offset > began
    fixture.beat(2, epochs[2], current_metadata_offset=began)
    assert fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down


def test_a_controlled_shutdown_goes_on_when_the_controller_restarts(fixture: Fixture) -> None:
    """RL 8.2: the new one finds it begun in the log, and lets the broker go when the others have
    seen all that it knows itself.
    """
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "t", [1, 2])
    fixture.beat(1, epochs[1], want_shut_down=True)
    before = fixture.controller.image.offset
    fixture.restart()
    assert not fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down
    fixture.beat(2, epochs[2], current_metadata_offset=before)
    assert not fixture.beat(1, epochs[1], want_shut_down=True).should_shut_down
    fixture.beat(2, epochs[2])
    last = fixture.beat(1, epochs[1], want_shut_down=True)
    assert (last.should_shut_down, last.is_fenced) == (True, True)


def test_a_lone_broker_leaves_and_comes_back_cleanly(fixture: Fixture) -> None:
    """RL 8.2, KIP-966: with the right previous epoch the eligible replica leads again, nothing
    is recovering.
    """
    epoch = fixture.join(1)
    make_topic(fixture, "t", [1])
    fixture.beat(1, epoch, want_shut_down=True)
    assert fixture.beat(1, epoch, want_shut_down=True).should_shut_down
    assert (partition(fixture, "t").leader, partition(fixture, "t").elr) == (NO_LEADER, (1,))
    again = fixture.register(1, b"n" * 16, previous_broker_epoch=epoch)
    assert partition(fixture, "t").elr == (1,)
    fixture.beat(1, again)
    found = partition(fixture, "t")
    assert (found.leader, found.isr, found.elr, found.leader_recovery_state) == (1, (1,), (), 0)


def test_who_was_let_go_comes_back_at_once(fixture: Fixture) -> None:
    """RL 8.2: a broker that led nothing leaves with its first beat; the session that it gave up
    refuses nobody under its id.
    """
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    assert fixture.beat(2, epochs[2], want_shut_down=True).should_shut_down
    assert not fixture.controller.image.brokers[2].in_controlled_shutdown
    again = fixture.register(2, b"n" * 16, previous_broker_epoch=epochs[2])
    assert again > epochs[2]


def test_an_unclean_stop_takes_the_node_out_of_isr_and_elr(fixture: Fixture) -> None:
    """RL 8.2: the previous epoch does not match: out of everything; alone it leads again,
    recorded as recovering.
    """
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    make_topic(fixture, "both", [1, 2])
    make_topic(fixture, "alone", [1])
    fixture.advance(8.5)
    fixture.beat(2, epochs[2])
    fixture.advance(0.5)
    assert partition(fixture, "alone").elr == (1,)
    again = fixture.register(1, b"n" * 16, previous_broker_epoch=-1)
    assert (partition(fixture, "both").isr, partition(fixture, "both").elr) == ((2,), ())
    assert (partition(fixture, "alone").isr, partition(fixture, "alone").elr) == ((), ())
    fixture.beat(1, again)
    assert (
        partition(fixture, "alone").leader,
        partition(fixture, "alone").leader_recovery_state,
    ) == (1, RECOVERING)
    assert partition(fixture, "both").isr == (2,)


def test_a_failed_directory_takes_its_replicas_out_of_the_isr(fixture: Fixture) -> None:
    """RL 1.12: only what lay in that directory; the broker stays."""
    two = [DIRECTORY_ID[:15] + b"\x01", DIRECTORY_ID[:15] + b"\x51"]
    epochs = {1: fixture.join(1, log_dirs=two), 2: fixture.join(2)}
    make_topic(fixture, "t", [1, 2], [1, 2])
    topic = fixture.controller.image.topics_by_name["t"]
    for number, directory in enumerate(two):
        assign(fixture, epochs[1], directory, topic.id, number)
    fixture.beat(1, epochs[1], offline_log_dirs=[two[0]])
    assert fixture.controller.image.brokers[1].directories == (two[1],)
    assert (partition(fixture, "t", 0).leader, partition(fixture, "t", 0).isr) == (2, (2,))
    assert (partition(fixture, "t", 1).leader, partition(fixture, "t", 1).isr) == (1, (1, 2))


THREE = [DIRECTORY_ID[:15] + bytes([last]) for last in (0x01, 0x51, 0x52)]


def three_directories(
    fixture: Fixture, topic_settings: dict[str, str] | None = None
) -> dict[int, int]:
    """Broker 1 with a partition of "t" in each of its directories, and broker 2 behind it; their
    epochs.
    """
    epochs = {1: fixture.join(1, log_dirs=THREE), 2: fixture.join(2)}
    make_topic(fixture, "t", [1, 2], [1, 2], [1, 2], settings=topic_settings)
    topic = fixture.controller.image.topics_by_name["t"]
    for number, directory in enumerate(THREE):
        assign(fixture, epochs[1], directory, topic.id, number)
    return epochs


def leaders(fixture: Fixture) -> list[int]:
    return [partition(fixture, "t", number).leader for number in range(3)]


@pytest.mark.parametrize("restarted", [False, True])
def test_directories_fail_one_after_another(fixture: Fixture, restarted: bool) -> None:
    """RL 1.12: each heartbeat tells all that failed so far; each is acted on once, by whichever
    controller hears of it first.
    """
    epochs = three_directories(fixture)
    fixture.beat(1, epochs[1], offline_log_dirs=THREE[:1])
    assert leaders(fixture) == [2, 1, 1]
    if restarted:
        fixture.restart()
    fixture.beat(1, epochs[1], offline_log_dirs=THREE[:2])
    assert leaders(fixture) == [2, 2, 1]
    assert fixture.controller.image.brokers[1].directories == (THREE[2],)
    if restarted:
        fixture.restart()
    end = fixture.controller.log.end_offset
    assert not fixture.beat(1, epochs[1], offline_log_dirs=THREE[:2]).is_fenced
    assert fixture.controller.log.end_offset == end and leaders(fixture) == [2, 2, 1]


def test_the_last_directory_fences_the_broker_and_lets_it_go(fixture: Fixture) -> None:
    """RL 1.12, 8.2: it can serve nothing; asking to leave it is answered at once, as often as it
    asks, and it is not unfenced by its beats.
    """
    epochs = three_directories(fixture)
    fixture.beat(1, epochs[1], offline_log_dirs=THREE[:2])
    first = fixture.beat(1, epochs[1], offline_log_dirs=THREE)
    assert (first.is_fenced, first.should_shut_down) == (True, False)
    assert leaders(fixture) == [2, 2, 2] and fixture.controller.image.brokers[1].fenced
    end = fixture.controller.log.end_offset
    assert fixture.beat(1, epochs[1], offline_log_dirs=THREE).is_fenced
    last = fixture.beat(1, epochs[1], offline_log_dirs=THREE, want_shut_down=True)
    assert (last.is_fenced, last.should_shut_down) == (
        True,
        True,
    ) and fixture.controller.log.end_offset == end


def test_what_lay_in_a_failed_directory_is_not_eligible(fixture: Fixture) -> None:
    """KIP-966, RL 1.12: in the ISR or only eligible, it may have lost what it had; so may one
    whose directory is not there at the next start.
    """
    epochs = three_directories(fixture, {"min.insync.replicas": "2"})
    fixture.beat(2, epochs[2], want_fence=True)
    fixture.beat(1, epochs[1], want_fence=True)
    assert [partition(fixture, "t", number).elr for number in range(3)] == [(1, 2)] * 3
    fixture.beat(1, epochs[1], offline_log_dirs=THREE[:1], want_fence=True)
    assert [partition(fixture, "t", number).elr for number in range(3)] == [(2,), (1, 2), (1, 2)]
    fixture.advance(9.5)
    again = fixture.register(1, b"n" * 16, previous_broker_epoch=epochs[1], log_dirs=THREE[2:])
    fixture.beat(1, again)
    assert leaders(fixture) == [NO_LEADER, NO_LEADER, 1]
    assign(fixture, again, THREE[2], fixture.controller.image.topics_by_name["t"].id, 1)
    assert (partition(fixture, "t", 1).leader, partition(fixture, "t", 1).elr) == (NO_LEADER, (2,))


def test_a_replica_that_could_not_be_made_is_led_elsewhere(fixture: Fixture) -> None:
    """KRAFT 3.6: its directory failed before the controller knew of any: LOST takes it out of
    the ISR, a directory makes it a replica again.
    """
    epochs = {1: fixture.join(1, log_dirs=THREE), 2: fixture.join(2)}
    make_topic(fixture, "t", [1, 2])
    topic_id = fixture.controller.image.topics_by_name["t"].id
    assert assign(fixture, epochs[1], LOST, topic_id, 0) == 0
    assert (
        partition(fixture, "t").leader,
        partition(fixture, "t").isr,
        partition(fixture, "t").directory_of(1),
    ) == (2, (2,), LOST)
    assert assign(fixture, epochs[1], THREE[1], topic_id, 0) == 0
    assert (
        partition(fixture, "t").leader,
        partition(fixture, "t").isr,
        partition(fixture, "t").directory_of(1),
    ) == (2, (2,), THREE[1])


def assign(fixture: Fixture, epoch: int, directory: bytes, topic_id: bytes, number: int) -> int:
    from twisted_broker.wire.messages import log_dirs

    where = log_dirs.AssignReplicasToDirsRequestPartitionData(partition_index=number)
    topic = log_dirs.AssignReplicasToDirsRequestTopicData(topic_id=topic_id, partitions=[where])
    request = log_dirs.AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=epoch,
        directories=[
            log_dirs.AssignReplicasToDirsRequestDirectoryData(id=directory, topics=[topic])
        ],
    )
    code: int = (
        fixture.ask("assign_replicas_to_dirs", request, 0)
        .directories[0]
        .topics[0]
        .partitions[0]
        .error_code
    )
    return code


def test_directories_are_assigned_and_nonsense_is_refused(fixture: Fixture) -> None:
    """KRAFT 3.6: a broker says where its replicas lie; unknown topics, partitions and replicas
    that are not its own are refused.
    """
    epoch = fixture.join(1)
    fixture.join(2)
    make_topic(fixture, "t", [1])
    make_topic(fixture, "other", [2])
    topics = fixture.controller.image.topics_by_name
    directory = DIRECTORY_ID[:15] + b"\x01"
    assert partition(fixture, "t").directories == (directory,)
    assert assign(fixture, epoch, directory, topics["t"].id, 0) == 0
    assert assign(fixture, epoch, directory, b"x" * 16, 0) == ErrorCode.UNKNOWN_TOPIC_ID
    assert (
        assign(fixture, epoch, directory, topics["t"].id, 4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert (
        assign(fixture, epoch, directory, topics["other"].id, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_a_broker_is_removed_for_good(fixture: Fixture) -> None:
    """UnregisterBroker: its registration goes; who is not there cannot go."""
    fixture.join(1)
    fixture.ask("unregister_broker", UnregisterBrokerRequest(broker_id=1), 0)
    assert fixture.controller.image.brokers == {}
    with pytest.raises(BrokerError) as caught:
        fixture.ask("unregister_broker", UnregisterBrokerRequest(broker_id=1), 0)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_first_records_of_a_cluster(fixture: Fixture) -> None:
    """RL 8.1: a new cluster finalises metadata.version 30; ELR, group.version, share.version and
    streams.version 1; transaction.version 2; other features stay 0; the controller is registered.
    """
    image = fixture.controller.image
    assert image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert image.config(4, "") == {"min.insync.replicas": "1"}
    assert image.controllers[1].listeners["CONTROLLER"].port == 9093
    assert fixture.controller.cluster_id == CLUSTER_ID


def test_a_controller_that_stood_still_fences_nobody_for_it(fixture: Fixture) -> None:
    """RL 8.2: a process that was stopped for a minute heard nobody: the brokers' sessions go on
    where they stood. Real silence counts as before.
    """
    fixture.join(1)
    fixture.advance(4.0)
    fixture.clock.advance(60.0)
    assert not fixture.controller.image.brokers[1].fenced
    fixture.advance(4.5)
    assert not fixture.controller.image.brokers[1].fenced
    fixture.advance(1.0)
    assert fixture.controller.image.brokers[1].fenced


def test_a_fencing_that_found_no_descriptor_is_made_with_the_next_tick(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: the broker that is gone does not get another session for it."""
    fixture.join(1)
    fixture.advance(8.5)

    def short(log: MetadataLog, *arguments: object) -> int:
        raise OutOfDescriptors(log.directory, OSError(errno.EMFILE, "no"))

    with monkeypatch.context() as patched:
        patched.setattr(MetadataLog, "append", short)
        fixture.advance(1.0)
    assert not fixture.controller.image.brokers[1].fenced
    fixture.advance(0.5)
    assert fixture.controller.image.brokers[1].fenced
