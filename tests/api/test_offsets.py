"""Committed offsets and FindCoordinator through the wire, at every version."""

from typing import Any

import pytest

from tests.api.group_api import TOPIC_IDS, ApiRun, broker, each_version, image, topic
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.turns import SLICE_ELEMENTS
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.offsets import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from twisted_broker.wire.messages.topics import CreatableTopicResult, CreateTopicsResponse
from twisted_broker.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


def commit(
    version: int, *places: tuple[str, int, int], metadata: str | None = "m"
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                topic_id=TOPIC_IDS.get(name, b"?" * 16),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=metadata
                    ),
                ],
            )
            for name, index, offset in places
        ],
    )


def errors(answer) -> list[int]:
    return [p.error_code for t in answer.topics for p in t.partitions]


@each_version("OffsetCommit")
def test_committing(version):
    """What exists is committed; the rest has its error, in the order of the request."""
    run = ApiRun()
    unknown = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    answer = run.ask(commit(version, ("x", 0, 1), ("t", 0, 42), ("t", 9, 1), ("u", 1, 7)), version)
    assert errors(answer) == [unknown, E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
    assert run.fetched() == {("t", 0): 42, ("u", 1): 7}
    stored = run.coordinator.fetch_offsets("g", [("t", 0, bytes(16))])[0].committed
    assert stored is not None and stored.topic_id == TOPIC_IDS["t"] and stored.metadata == "m"


@pytest.mark.parametrize("kind", ["of a group", "of a transaction"])
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_topic_that_goes_while_a_long_commit_is_read(kind, is_made_anew):
    """What was committed for it is removed when it goes: nothing comes behind that, for a later
    topic of the name would get it.
    """
    run, count, name = ApiRun(), 2 * SLICE_ELEMENTS, "w"
    asked: Any
    run.source.image = image(topic(name, b"1" * 16, count), topic("t", TOPIC_IDS["t"]))
    if kind == "of a group":
        asked, version = commit(8, (name, 0, 1), ("t", 0, 42)), 8
        asked.topics[0].partitions *= 0
        asked.topics[0].partitions += [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=7)
            for index in range(count)
        ]
    else:
        asked, version = transactional((name, count), ("t", 1)), 3
        run.parts.config = BrokerConfig({"transaction.partition.verification.enable": "false"})
    waiting = run.start(asked, version)
    assert not waiting.called
    run.source.image = image(
        *[topic(name, b"2" * 16, count)] * is_made_anew, topic("t", TOPIC_IDS["t"])
    )
    run.coordinator.cleanup.topics_deleted({name: b"1" * 16})
    run.settle()
    gone, kept = waiting.result.topics
    assert {p.error_code for p in gone.partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}
    assert [p.error_code for p in kept.partitions] == [E.NONE]
    assert {each for each in run.partitions("g") if each[0] == name} == set()


def transactional(*places: tuple[str, int]) -> TxnOffsetCommitRequest:
    """(topic, how many partitions)."""
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=7)
                    for index in range(count)
                ],
            )
            for name, count in places
        ],
    )


def test_a_commit_without_metadata():
    """Null is stored as the empty text."""
    run = ApiRun()
    run.ask(commit(2, ("t", 0, 1), metadata=None), 2)
    assert run.committed("g")[0].committed.metadata == ""


@pytest.mark.parametrize(
    ("version", "told"), [(8, E.ILLEGAL_GENERATION), (9, E.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_nothing(version, told):
    """A generation of a group that does not exist; what refuses the whole commit is told for
    each partition.
    """
    run = ApiRun()
    request = commit(version, ("t", 0, 1), ("x", 0, 1))
    request.generation_id_or_member_epoch, request.member_id = 3, "m"
    assert errors(run.ask(request, version)) == [told, E.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_that_may_not_be_read_is_not_committed():
    """TOPIC_AUTHORIZATION_FAILED, also for a topic that does not exist."""
    run = ApiRun()
    run.acl.denied |= {(Operation.READ, ResourceType.TOPIC, name) for name in "tx"}
    assert errors(run.ask(commit(8, ("t", 0, 1), ("x", 0, 1), ("u", 0, 1)), 8)) == [
        E.TOPIC_AUTHORIZATION_FAILED
    ] * 2 + [E.NONE]
    run.acl.denied.add((Operation.READ, ResourceType.GROUP, "g"))
    assert errors(run.ask(commit(8, ("u", 0, 1)), 8)) == [E.GROUP_AUTHORIZATION_FAILED]


def test_the_oldest_clients_own_times():
    """v1 may give the time of the commit, v2-4 a retention of its own."""
    run = ApiRun()
    old = commit(1, ("t", 0, 1))
    old.topics[0].partitions[0].commit_timestamp = 123_456
    run.ask(old, 1)
    assert run.committed("g")[0].committed.commit_timestamp_ms == 123_456
    kept = commit(3, ("t", 0, 1))
    kept.retention_time_ms = 5000
    run.ask(kept, 3)
    assert run.committed("g")[0].committed.expire_timestamp_ms == run.wall_ms() + 5000


def fetch(version: int, *places: tuple[str, int], everything: bool = False) -> OffsetFetchRequest:
    if version < 8:
        topics = (
            None
            if everything
            else [
                OffsetFetchRequestTopic(name=name, partition_indexes=[index])
                for name, index in places
            ]
        )
        return OffsetFetchRequest(group_id="g", topics=topics)
    named = (
        None
        if everything
        else [
            OffsetFetchRequestTopics(
                name=name, topic_id=TOPIC_IDS.get(name, b"?" * 16), partition_indexes=[index]
            )
            for name, index in places
        ]
    )
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=named)])


@each_version("OffsetFetch")
def test_fetching(version):
    """Offsets in the order of the request; -1 where there is none, by an error in v0 only."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42)), 8)
    answer = run.ask(fetch(version, ("t", 1), ("t", 0), ("x", 0)), version)
    found = (answer.groups[0] if version >= 8 else answer).topics
    missing = E.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else E.NONE
    unknown = E.UNKNOWN_TOPIC_ID if version >= 10 else missing
    told = [(p.committed_offset, p.metadata, p.error_code) for t in found for p in t.partitions]
    assert told == [(-1, "", missing), (42, "m", 0), (-1, "", unknown)]
    if version >= 10:
        assert [t.topic_id for t in found] == [TOPIC_IDS["t"], TOPIC_IDS["t"], b"?" * 16]
    else:
        assert [t.name for t in found] == ["t", "t", "x"]


@pytest.mark.parametrize("version", range(2, 11))
def test_fetching_everything(version):
    """Null for topics: all that is committed; with ids only what still has one."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42), ("u", 2, 7)), 8)
    run.source.image = image(topic("t", TOPIC_IDS["t"]))
    answer = run.ask(fetch(version, everything=True), version)
    found = (answer.groups[0] if version >= 8 else answer).topics
    assert [p.committed_offset for t in found for p in t.partitions] == (
        [42] if version >= 10 else [42, 7]
    )


def test_offsets_of_an_earlier_topic_of_that_name_are_not_found_by_id():
    """A topic that was deleted and made again starts without offsets."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42)), 8)
    run.source.image = image(topic("t", b"N" * 16))
    request: Any = fetch(10, ("t", 0))
    request.groups[0].topics[0].topic_id = b"N" * 16
    assert run.ask(request, 10).groups[0].topics[0].partitions[0].committed_offset == -1
    assert run.ask(fetch(10, everything=True), 10).groups[0].topics[0].partitions == []


def test_several_groups_at_once():
    """KIP-709: each group its own answer."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42)), 8)
    groups = [
        OffsetFetchRequestGroup(
            group_id=name, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        for name in ("g", "h")
    ]
    answer = run.ask(OffsetFetchRequest(groups=groups), 9)
    assert [
        (g.group_id, g.error_code, g.topics[0].partitions[0].committed_offset)
        for g in answer.groups
    ] == [("g", 0, 42), ("h", 0, -1)]


def test_topics_that_may_not_be_seen():
    """Asked for by name they are refused; among all they are left out."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42), ("u", 0, 7)), 8)
    run.acl.denied.add((Operation.DESCRIBE, ResourceType.TOPIC, "t"))
    named = run.ask(fetch(7, ("t", 0), ("u", 0)), 7)
    assert [(p.committed_offset, p.error_code) for t in named.topics for p in t.partitions] == [
        (-1, E.TOPIC_AUTHORIZATION_FAILED),
        (7, 0),
    ]
    assert [t.name for t in run.ask(fetch(7, everything=True), 7).topics] == ["u"]


@pytest.mark.parametrize("version", [0, 1, 2, 7, 8, 10])
def test_a_group_that_is_elsewhere(version):
    """The group's error where the version has a place for it: partitions, the answer, the group."""
    run = ApiRun()
    run.coordinator.stop()
    answer = run.ask(fetch(version, ("t", 0)), version)
    if version >= 8:
        assert answer.groups[0].error_code == E.NOT_COORDINATOR and answer.groups[0].topics == []
    elif version >= 2:
        assert answer.error_code == E.NOT_COORDINATOR
    else:
        assert (
            errors(answer) == [E.NOT_COORDINATOR]
            and answer.topics[0].partitions[0].committed_offset == -1
        )


def test_stable_offsets_only():
    """require_stable tells UNSTABLE_OFFSET_COMMIT until the commit under way is stored."""
    run = ApiRun()
    run.store.held = []
    waiting = run.start(commit(8, ("t", 0, 42)), 8)
    request = fetch(7, ("t", 0))
    request.require_stable = True
    assert errors(run.ask(request, 7)) == [E.UNSTABLE_OFFSET_COMMIT] and not waiting.called
    run.store.release()
    assert (
        errors(waiting.result) == [E.NONE]
        and run.ask(request, 7).topics[0].partitions[0].committed_offset == 42
    )


def test_deleting_offsets():
    """What exists is deleted; unknown topics and groups have their errors."""
    run = ApiRun()
    run.ask(commit(8, ("t", 0, 42), ("u", 0, 7)), 8)
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in indexes],
            )
            for name, indexes in (("t", (0, 1, 9)), ("x", (0,)))
        ],
    )
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(run.ask(request, 0)) == [E.NONE, E.NONE, unknown, unknown] and run.fetched() == {
        ("u", 0): 7
    }
    request.group_id = "nobody"
    assert run.ask(request, 0).error_code == E.GROUP_ID_NOT_FOUND


# FindCoordinator
def find(version: int, *groups: str, kind: int = 0) -> FindCoordinatorRequest:
    more = {"key_type": kind} if version >= 1 else {}
    return (
        FindCoordinatorRequest(coordinator_keys=list(groups), **more)
        if version >= 4
        else FindCoordinatorRequest(key=groups[0], **more)
    )


def found(answer, version: int) -> list[tuple[int, int, str, int]]:
    rows = answer.coordinators if version >= 4 else [answer]
    return [(r.error_code, r.node_id, r.host, r.port) for r in rows]


@each_version("FindCoordinator")
def test_the_leader_of_the_groups_partition_coordinates_it(version):
    """Node id and address of that leader on the asking listener, at every version."""
    run = ApiRun()
    offsets: Any = topic("__consumer_offsets", b"O" * 16, 50, leader=1)
    offsets.partitions[partition_for("h", 50)] = offsets.partitions[0]._replace(leader=2)
    run.source.image = image(offsets, brokers=(broker(1), broker(2)))
    assert found(run.ask(find(version, "g"), version), version) == [(0, 1, "host-1", 9091)]
    assert found(run.ask(find(version, "h"), version), version) == [(0, 2, "host-2", 9092)]


@each_version("FindCoordinator")
def test_the_first_question_makes_the_topic(version):
    """One CreateTopics at a time, with Kafka's settings; meanwhile clients are told to ask
    again.
    """
    run = ApiRun()
    waiting = [run.start(find(version, name), version) for name in "gh"]
    ((request, answer),) = run.created
    made = request.topics[0]
    assert (made.name, made.num_partitions, made.replication_factor) == (
        "__consumer_offsets",
        50,
        3,
    )
    assert {c.name: c.value for c in made.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    answer.callback(CreateTopicsResponse(topics=[CreatableTopicResult(name=made.name)]))
    assert not any(each.called for each in waiting)
    run.source.image = image(topic("__consumer_offsets", b"O" * 16, 50))
    run.coordinator.offsets_topic.image_changed()
    assert [found(each.result, version) for each in waiting] == [[(0, 1, "host-1", 9091)]] * 2


def test_leaders_may_be_known_before_the_creation_is_answered():
    """The metadata log can be faster than the answer; then the image's news is enough."""
    run = ApiRun()
    waiting = run.start(find(4, "g"), 4)
    run.source.image = image(topic("__consumer_offsets", b"O" * 16, 50))
    run.coordinator.offsets_topic.image_changed()
    assert found(waiting.result, 4) == [(0, 1, "host-1", 9091)]
    run.created[0][1].callback(CreateTopicsResponse())
    assert found(run.ask(find(4, "h"), 4), 4) == [(0, 1, "host-1", 9091)] and len(run.created) == 1


def test_nobody_waits_long_for_the_topic():
    """COORDINATOR_NOT_AVAILABLE after a second, or as soon as the creation failed; the next
    question tries again.
    """
    run = ApiRun()
    again = [(E.COORDINATOR_NOT_AVAILABLE, -1, "", -1)]
    waiting = run.start(find(4, "g"), 4)
    run.clock.advance(0.999)
    assert not waiting.called
    run.clock.advance(0.001)
    assert found(waiting.result, 4) == again and len(run.created) == 1
    waiting = run.start(find(4, "g"), 4)
    refused = CreatableTopicResult(
        name="__consumer_offsets", error_code=E.INVALID_REPLICATION_FACTOR
    )
    run.created[0][1].callback(CreateTopicsResponse(topics=[refused]))
    assert found(waiting.result, 4) == again and len(run.created) == 2
    waiting = run.start(find(4, "g"), 4)
    run.created[1][1].errback(BrokerError(E.REQUEST_TIMED_OUT))
    assert found(waiting.result, 4) == again and len(run.created) == 3
    assert not [call for call in run.clock.getDelayedCalls() if call.getTime() < 600], (
        "no timer is left behind"
    )


@pytest.mark.parametrize("brokers", [(broker(2),), (broker(1, fenced=True),)])
def test_a_coordinator_that_is_not_there_is_not_named(brokers):
    """Its leader is unknown or fenced: ask again; nothing is created."""
    run = ApiRun()
    run.source.image = image(topic("__consumer_offsets", b"O" * 16, 50), brokers=brokers)
    assert (
        found(run.ask(find(4, "g"), 4), 4) == [(E.COORDINATOR_NOT_AVAILABLE, -1, "", -1)]
        and not run.created
    )


@pytest.mark.parametrize(("version", "kind"), [(1, 3), (3, 3), (4, 7), (1, 2), (5, 2)])
def test_other_coordinators_are_not_served(version, kind):
    """INVALID_REQUEST for kinds that do not exist, and for share groups before v6; nothing is
    created for them.
    """
    run = ApiRun()
    assert (
        found(run.ask(find(version, "key", kind=kind), version), version)
        == [(E.INVALID_REQUEST, -1, "", -1)]
        and not run.created
    )


def test_each_key_has_its_own_answer():
    """Permission and coordinator per key."""
    run = ApiRun()
    run.source.image = image(topic("__consumer_offsets", b"O" * 16, 50))
    run.acl.denied.add((Operation.DESCRIBE, ResourceType.GROUP, "h"))
    answer = run.ask(find(5, "g", "h"), 5)
    assert [(c.key, c.error_code) for c in answer.coordinators] == [
        ("g", E.NONE),
        ("h", E.GROUP_AUTHORIZATION_FAILED),
    ]
    assert not answer.coordinators[1].error_message, "Kafka has no sentence there"
