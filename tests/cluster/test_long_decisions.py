"""A decision about thousands of partitions: in steps, others are served meanwhile, and what is
written is one batch, decided on what holds then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker import turns as turns_module
from twisted_broker.cluster import metadata_log
from twisted_broker.cluster import records as record_frames
from twisted_broker.cluster.broker_registry import BrokerSessions
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.image.entries import NO_LEADER
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages import configs, log_dirs, topics
from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest
from twisted_broker.wire.records import iterate_batches

MANY = 2_500  # two pauses of a walk, two dozen of a decision, five of the records


@pytest.fixture
def one() -> Fixture:
    """A broker, 1, that leads MANY partitions."""
    fixture = Fixture(settings={"metadata.max.idle.interval.ms": "500"}).start()
    fixture.join()
    created = fixture.send_creation("many", MANY)
    turns(fixture, created)
    return fixture


def turn(fixture: Fixture) -> None:
    """`Clock.advance` would also run what is called later for now by what it runs."""
    call = fixture.clock.calls.pop(0)
    assert call.getTime() <= fixture.clock.seconds()
    call.called = 1
    call.func(*call.args, **call.kw)


def turns(fixture: Fixture, answer: Any, between: Callable[[int], object] = lambda turn: 0) -> int:
    """Turns until the answer is there."""
    count = 0
    while not answer.called:
        turn(fixture)
        count += 1
        assert count < 500
        if not answer.called:
            between(count)
    assert not hasattr(answer.result, "raiseException"), answer.result
    return count


def leaders(fixture: Fixture) -> dict[int, int]:
    """How many partitions each leads."""
    found: dict[int, int] = {}
    for topic in fixture.controller.image.topics_by_name.values():
        for partition in topic.partitions.values():
            found[partition.leader] = found.get(partition.leader, 0) + 1
    return found


def check_log(fixture: Fixture) -> None:
    """What a reader of the log gets is what was decided."""
    image = fixture.controller.image
    again = fixture.open().log.replay()
    assert again.topics_by_name == image.topics_by_name and again.brokers == image.brokers
    assert (again.offset, again.epoch) == (image.offset, image.epoch)


def last_batch_records(fixture: Fixture) -> int:
    log = fixture.controller.log.log
    found = log.read(log.log_start_offset, 1 << 24).slice
    assert found is not None
    last = list(iterate_batches(found.read()))[-1]
    return last.last_offset - last.base_offset + 1


def beat(fixture: Fixture, epoch: int, **changes: Any) -> Any:
    offset = fixture.controller.log.high_watermark - 1
    request = lifecycle.BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=epoch, current_metadata_offset=offset, **changes
    )
    return fixture.send("broker_heartbeat", request, 2)


def register(fixture: Fixture) -> Any:
    request = fixture.registration(1, b"another process!", previous_broker_epoch=-1)
    return fixture.send("broker_registration", request, 4)


def test_a_registration_and_its_unfencing_leave_turns_to_others(one: Fixture) -> None:
    """The old process's session is over; other brokers' heartbeats are answered meanwhile."""
    second = one.join(2)
    one.controller.sessions = BrokerSessions(9000)
    answer, image = register(one), one.controller.decided
    seen: list[bool] = []

    def others(turn: int) -> None:
        seen.append(one.controller.decided is image)
        assert not one.beat(2, second).is_fenced

    assert turns(one, answer, others) > 10 and all(seen)
    assert leaders(one) == {NO_LEADER: MANY} and last_batch_records(one) == MANY + 1
    epoch = answer.result.broker_epoch
    assert one.controller.image.brokers[1].epoch == epoch == one.controller.image.offset - MANY
    assert turns(one, beat(one, epoch)) > 10
    assert leaders(one) == {1: MANY} and last_batch_records(one) == MANY + 1
    check_log(one)


def test_what_comes_meanwhile_is_decided_on_as_well(one: Fixture) -> None:
    """A partition that the broker gets while its fencing is decided on: it would stay with a
    leader that is fenced.
    """
    epoch = one.controller.image.brokers[1].epoch
    answer = beat(one, epoch, want_fence=True)
    turns(one, answer, lambda turn: one.create_topic("late") if turn == 5 else None)
    assert leaders(one) == {NO_LEADER: MANY + 1}
    assert one.controller.image.brokers[1].fenced
    check_log(one)


def test_where_something_comes_all_the_time_it_ends_all_the_same(one: Fixture) -> None:
    epoch = one.controller.image.brokers[1].epoch
    answer = beat(one, epoch, want_fence=True)
    turns(one, answer, lambda turn: one.create_topic(f"late{turn}"))
    late = len(one.controller.image.topics_by_name) - 1
    assert late >= 3 and leaders(one) == {NO_LEADER: MANY + late}
    check_log(one)


def test_a_heartbeat_that_is_decided_on_again_does_not_set_a_session_back(one: Fixture) -> None:
    """A later one was heard meanwhile: the broker would be fenced before its session is over."""
    broker = one.controller.image.brokers[1]
    answer = beat(one, broker.epoch, want_fence=True)

    def later(turn: int) -> None:
        one.clock.rightNow += 0.1
        if turn == 3:
            one.beat(1, broker.epoch)
            one.create_topic("late")
            heard.append(one.controller.runtime.now_ms())
        session = one.controller.sessions.session_of(broker)
        assert session is not None and (not heard or session.contact_ms >= heard[0])

    heard: list[int] = []
    assert turns(one, answer, later) > 10 and heard
    assert one.controller.image.brokers[1].fenced


def test_an_empty_record_that_is_due_waits_for_it(one: Fixture) -> None:
    """A decision that took longer than the interval would never end."""
    epoch = one.controller.image.brokers[1].epoch
    answer = beat(one, epoch, want_fence=True)
    end = one.controller.log.end_offset

    def time_passes(turn: int) -> None:
        one.clock.rightNow += 0.2
        assert answer.called or one.controller.log.end_offset == end

    turns(one, answer, time_passes)
    assert last_batch_records(one) == MANY + 1


def test_a_controlled_shutdown_and_the_end_of_a_broker(one: Fixture) -> None:
    epoch = one.controller.image.brokers[1].epoch
    assert turns(one, beat(one, epoch, want_shut_down=True)) > 10
    assert one.controller.image.brokers[1].in_controlled_shutdown
    assert leaders(one) == {NO_LEADER: MANY}
    request = UnregisterBrokerRequest(broker_id=1)
    assert turns(one, one.send("unregister_broker", request, 0)) > 10
    assert one.controller.image.brokers == {}
    check_log(one)


def test_a_session_that_is_over_is_fenced_in_turns(one: Fixture) -> None:
    one.advance(8.5)
    assert not one.controller.image.brokers[1].fenced
    one.clock.rightNow += 0.5
    one.controller.tick()
    count = 0
    while one.controller.decided is one.controller.image and not leaders(one).get(NO_LEADER):
        turn(one)
        count += 1
    assert count >= 1 and one.controller.image.brokers[1].fenced
    assert leaders(one) == {NO_LEADER: MANY}
    check_log(one)


def test_a_heartbeat_before_its_end_ends_a_fencing(one: Fixture) -> None:
    epoch = one.controller.image.brokers[1].epoch
    one.advance(8.5)
    one.clock.rightNow += 0.5
    one.controller.tick()
    turn(one)
    assert not one.beat(1, epoch).is_fenced
    one.advance(8)
    assert not one.controller.image.brokers[1].fenced and leaders(one) == {1: MANY}


def test_two_decisions_at_once(one: Fixture) -> None:
    """The second to end sees the first: the broker is fenced once."""
    epoch = one.controller.image.brokers[1].epoch
    answers = [beat(one, epoch, want_fence=True) for _ in range(2)]
    for answer in answers:
        turns(one, answer)
    assert leaders(one) == {NO_LEADER: MANY} and last_batch_records(one) == MANY + 1
    assert [answer.result.is_fenced for answer in answers] == [True, True]
    check_log(one)


def test_a_long_log_is_replayed_in_steps(one: Fixture) -> None:
    """What is paused between is a few hundred records; a snapshot of them likewise."""
    steps = one.open().log.replay_in_steps()
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert end.value.topics_by_name == one.controller.image.topics_by_name
            break
        count += 1
    assert count >= 2 * MANY // 500


def test_a_decision_of_several_batches_leaves_turns_to_others(
    one: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 40,000 records all was encoded, applied and written in one turn."""
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH", 1000)
    encoded = [0]
    encode_record = record_frames.encode_record

    def counted(*arguments: Any) -> bytes:
        encoded[-1] += 1
        return encode_record(*arguments)

    monkeypatch.setattr(record_frames, "encode_record", counted)
    one.controller.sessions = BrokerSessions(9000)
    assert turns(one, register(one), lambda turn: encoded.append(0)) > 10
    # Records, Begin and End; a turn of background work is several pieces.
    assert sum(encoded) == MANY + 1 + 2 and max(encoded) <= MANY / 2
    assert leaders(one) == {NO_LEADER: MANY} and last_batch_records(one) == MANY + 3 - 2000
    check_log(one)


@pytest.fixture
def two() -> tuple[Fixture, dict[int, int]]:
    """Brokers 1 and 2 with MANY partitions, all of which 2 leads, alone in the ISR; the first
    replica is 1.
    """
    fixture = Fixture(settings={"metadata.max.idle.interval.ms": "0"}).start()
    fixture.controller.sessions = BrokerSessions(1 << 40)
    epochs = {broker: fixture.join(broker) for broker in (1, 2)}
    assigned = [
        topics.CreatableReplicaAssignment(partition_index=number, broker_ids=[1, 2])
        for number in range(MANY)
    ]
    topic = topics.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=assigned
    )
    turns(fixture, fixture.send("create_topics", topics.CreateTopicsRequest(topics=[topic]), 7))
    for changes in ({"want_fence": True}, {}):
        turns(fixture, beat(fixture, epochs[1], **changes))
    assert leaders(fixture) == {2: MANY}
    return fixture, epochs


def rejoin(fixture: Fixture, epochs: dict[int, int]) -> Any:
    """2, the leader, proposes 1 for every ISR."""
    topic = fixture.controller.image.topics_by_name["t"]
    members = [
        lifecycle.BrokerState(broker_id=broker, broker_epoch=epoch)
        for broker, epoch in epochs.items()
    ]
    data = lifecycle.AlterPartitionRequestTopicData(
        topic_id=topic.id,
        partitions=[
            lifecycle.AlterPartitionRequestPartitionData(
                partition_index=number,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                new_isr_with_epochs=members,
            )
            for number, partition in topic.partitions.items()
        ],
    )
    request = lifecycle.AlterPartitionRequest(broker_id=2, broker_epoch=epochs[2], topics=[data])
    return fixture.send("alter_partition", request, 3)


def test_many_isr_changes_and_preferred_elections_leave_turns_to_others(
    two: tuple[Fixture, dict[int, int]],
) -> None:
    """At most 1,000 partitions are given back at a time."""
    fixture, epochs = two

    def others(turn: int) -> None:
        assert not fixture.beat(2, epochs[2]).is_fenced

    answer = rejoin(fixture, epochs)
    assert turns(fixture, answer, others) > 10
    (topic,) = answer.result.topics
    assert {each.error_code for each in topic.partitions} == {0}
    assert all(
        sorted(each.isr) == [1, 2]
        for each in fixture.controller.image.topics_by_name["t"].partitions.values()
    )
    fixture.clock.rightNow += 300
    fixture.controller.tick()
    count = 0
    while leaders(fixture) == {2: MANY}:
        turn(fixture)
        others(count)
        count += 1
        assert count < 500
    # Background work: a turn is several pieces.
    assert count >= 1 and leaders(fixture) == {1: 1000, 2: MANY - 1000}
    check_log(fixture)


def test_a_partition_that_goes_meanwhile_is_not_given_back(
    two: tuple[Fixture, dict[int, int]],
) -> None:
    fixture, epochs = two
    turns(fixture, rejoin(fixture, epochs))
    fixture.clock.rightNow += 300
    fixture.controller.tick()
    request = topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name="t")])
    turns(fixture, fixture.send("delete_topics", request, 6))
    for _ in range(len(fixture.clock.calls)):
        turn(fixture)
    assert fixture.controller.image.topics_by_name == {}
    check_log(fixture)


def test_a_topic_that_goes_while_its_growth_waits_for_its_turn(one: Fixture) -> None:
    """Its new partitions fit no image any more."""
    one.create_topic("grows")
    grown = topics.CreatePartitionsTopic(name="grows", count=MANY, assignments=None)
    answer = one.send(
        "create_partitions", topics.CreatePartitionsRequest(topics=[grown]), version=3
    )
    assert not answer.called
    request = topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name="grows")])
    one.ask("delete_topics", request, 6)
    turns(one, answer)
    (result,) = answer.result.results
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    check_log(one)


def test_directories_of_many_replicas_leave_turns_to_others(one: Fixture) -> None:
    epoch = one.controller.image.brokers[1].epoch
    topic = one.controller.image.topics_by_name["many"]
    directory = bytes(15) + b"d"
    data = log_dirs.AssignReplicasToDirsRequestTopicData(
        topic_id=topic.id,
        partitions=[
            log_dirs.AssignReplicasToDirsRequestPartitionData(partition_index=number)
            for number in topic.partitions
        ],
    )
    request = log_dirs.AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=epoch,
        directories=[
            log_dirs.AssignReplicasToDirsRequestDirectoryData(id=directory, topics=[data])
        ],
    )
    assert turns(one, one.send("assign_replicas_to_dirs", request, 0)) > 10
    partitions = one.controller.image.topics_by_name["many"].partitions
    assert {each.directories for each in partitions.values()} == {(directory,)}
    check_log(one)


def test_elections_by_a_topics_setting_leave_turns_to_others(
    two: tuple[Fixture, dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sets unclean.leader.election.enable for a topic that nobody leads."""
    fixture, epochs = two
    request = lifecycle.BrokerHeartbeatRequest(
        broker_id=2,
        broker_epoch=epochs[2],
        current_metadata_offset=fixture.controller.log.high_watermark - 1,
        want_fence=True,
    )
    turns(fixture, fixture.send("broker_heartbeat", request, 2))
    assert leaders(fixture) == {NO_LEADER: MANY}
    decided = [0]
    elect = ClusterView._add_unclean_leader

    def counted(*arguments: Any) -> None:
        decided[-1] += 1
        elect(*arguments)

    monkeypatch.setattr(ClusterView, "_add_unclean_leader", counted)
    # The clock stands still: only their number ends a turn of background work.
    monkeypatch.setattr(turns_module, "PIECES_PER_TURN", 3)
    change = configs.IncrementalAlterConfigsRequestAlterableConfig(
        name="unclean.leader.election.enable", config_operation=0, value="true"
    )
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=2, resource_name="t", configs=[change]
    )
    answer = fixture.send(
        "incremental_alter_configs", configs.IncrementalAlterConfigsRequest(resources=[resource]), 1
    )
    while leaders(fixture) != {1: MANY}:
        assert len(decided) < 100
        decided.append(0)
        turn(fixture)
    assert answer.called and sum(decided) == MANY and max(decided) <= 300
    assert last_batch_records(fixture) == MANY
    check_log(fixture)
