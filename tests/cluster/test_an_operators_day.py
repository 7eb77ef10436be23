"""The log of a day: three production brokers on simulated machines, and the lines that an operator
finds of what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from errno import ENOSPC
from typing import Any

import pytest
from twisted.logger import LogLevel, formatEvent, globalLogPublisher

from tests.cluster.test_three_brokers import Three
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.wire.messages import configs as config_messages
from twisted_broker.wire.messages import groups as group_messages
from twisted_broker.wire.messages import reassignment as reassignment_messages
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)

BY_TEST = r"principal=User:ANONYMOUS client\.id=\S+ client=\S+"


class Log:
    """What is logged from now on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []

    def __call__(self, event: Any) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.info:
            self.lines.append(formatEvent(event))
            if level >= LogLevel.error:
                self.errors.append(self.lines[-1])

    def take(self) -> list[str]:
        found, self.lines = self.lines, []
        return found


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    globalLogPublisher.addObserver(made)
    yield made
    globalLogPublisher.removeObserver(made)


@pytest.fixture
def three(log: Log) -> Iterator[Three]:
    settings = {
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "3000",
        "offsets.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "2000",
        "log.segment.delete.delay.ms": "1000",
    }
    with SimCluster(11, 3, settings, NetworkConditions(), shuffle=False) as cluster:
        yield Three(cluster)


def expect(log: Log, *patterns: str) -> list[str]:
    """Each pattern is found by exactly one line, in any order; gives all lines, and forgets
    them.
    """
    lines = log.take()
    for pattern in patterns:
        found = [line for line in lines if re.fullmatch(pattern, line)]
        assert len(found) == 1, (pattern, found, "\n".join(lines))
    return lines


def reassign(three: Three, replicas: list[int], partitions: int) -> None:
    parts = [
        reassignment_messages.ReassignablePartition(partition_index=number, replicas=replicas)
        for number in range(partitions)
    ]
    topic = reassignment_messages.ReassignableTopic(name="t", partitions=parts)
    request = reassignment_messages.AlterPartitionReassignmentsRequest(topics=[topic])
    assert three.ask(1, request, 1).error_code == 0
    three.until(
        lambda: all(
            sorted(each.isr) == sorted(each.replicas) == sorted(replicas)
            for each in three.partitions().values()
        ),
        "moved",
    )


def join(three: Three, group: str) -> None:
    """A member of its own, to the end of the rebalance."""
    found: Any = None

    def is_there() -> bool:
        nonlocal found
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        found = three.ask(1, request, 4).coordinators[0]
        return found.error_code == 0

    three.until(is_there, "a coordinator")
    protocol = group_messages.JoinGroupRequestProtocol(name="range", metadata=b"")
    member = ""
    while True:
        request = group_messages.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[protocol],
        )
        answer = three.ask(found.node_id, request, 5)
        member = answer.member_id
        if answer.error_code == 0:
            break
    part = group_messages.SyncGroupRequestAssignment(member_id=member, assignment=b"x")
    synced = group_messages.SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=member,
        assignments=[part],
    )
    assert three.ask(found.node_id, synced, 3).error_code == 0


def configure(three: Three, name: str, value: str | None) -> None:
    edit = config_messages.IncrementalAlterConfigsRequestAlterableConfig(
        name=name, config_operation=0 if value is not None else 1, value=value
    )
    resource = config_messages.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=2, resource_name="t", configs=[edit]
    )
    request = config_messages.IncrementalAlterConfigsRequest(resources=[resource])
    assert three.ask(1, request, 1).responses[0].error_code == 0


def delete_records(three: Three, number: int) -> None:
    """Up to the high watermark."""
    part = DeleteRecordsPartition(partition_index=number, offset=-1)
    topic = DeleteRecordsTopic(name="t", partitions=[part])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
    answer = three.ask(three.partitions()[number].leader, request, 2)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_day(three: Three, log: Log) -> None:
    """Start, topic, settings, rebalance, retention, a broker lost and back, its ISR, elections, a
    reassignment, a full disk, a deletion, a stop: a line each, and errors only for the disk.
    """
    expect(
        log,
        *(
            rf"broker registered controller=1 broker={node} epoch=\d+ "
            rf"listeners=PLAINTEXT://n{node}:9092"
            for node in (1, 2, 3)
        ),
        *(rf"broker unfenced controller=1 broker={node} epoch=\d+" for node in (1, 2, 3)),
    )
    three.create(partitions=6)
    expect(
        log,
        r"topic created controller=1 topic=t id=\S+ partitions=6 replication.factor=3",
        rf"audit topic created node=1 {BY_TEST} topic=t partitions=6 replication\.factor=3",
        *(rf"leadership taken broker={node} count=2 partitions=t-\d,t-\d" for node in (1, 2, 3)),
    )
    configure(three, "segment.ms", "1")
    configure(three, "retention.ms", "1")
    said = "settings changed controller=1 resource=topic name=t changes="
    audited = rf"audit settings changed node=1 {BY_TEST} resource=topic name=t settings="
    expect(
        log,
        re.escape(said) + '"segment.ms=1"',
        re.escape(said) + '"retention.ms=1"',
        audited + r"segment\.ms",
        audited + r"retention\.ms",
    )
    join(three, "readers")
    lines = expect(
        log,
        r'rebalance started group=readers generation=0 members=1 reason="member \S+ joined"',
        r"rebalance completed group=readers generation=1 members=1 protocol=range leader=\S+",
        r"topic created controller=1 topic=__consumer_offsets .*",
    )
    three.produce(0, b"old")
    three.produce(0, b"new")
    three.cluster.run_until(three.cluster.sim.now + 10)
    lines = log.take()
    assert any(
        re.fullmatch(
            r"retention deleted segments broker=\d partition=t-0 segments=\d+ bytes=[1-9]\d+ "
            r"log.start.offset=\d",
            line,
        )
        for line in lines
    ), lines
    delete_records(three, 0)
    expect(log, rf"audit records deleted node=\d {BY_TEST} partition=t-0 before=\d+")
    # a broker is lost, and comes back
    three.node(3).kill()
    three.until(lambda: 3 not in three.partitions()[0].isr, "3 is out")
    three.cluster.run_until(three.cluster.sim.now + 1)
    lines = expect(
        log,
        r"fencing broker 3: .*",
        r"broker fenced controller=1 broker=3 epoch=\d+",
        r"leaders elected controller=1 partitions=2 leaders=\S+ offline=0 unclean=0 first=t-0",
        r"ISR shrunk controller=1 partitions=7 first=__consumer_offsets-0",
    )
    assert any(re.match(r"leadership taken broker=[12] count=\d partitions=t-", x) for x in lines)
    three.node(3).start()
    three.until(lambda: three.node(3).ready and three.all_in_sync(), "3 is back")
    three.cluster.run_until(three.cluster.sim.now + 1)
    lines = expect(
        log,
        r"logs recovered, no clean shutdown broker=3 directory=/data logs=7 ms=\d+",
        r"broker registered controller=1 broker=3 .*",
        r"broker unfenced controller=1 broker=3 .*",
    )
    expanded = r"expanding ISR broker=[12] partition=\S+ isr=1,2,3 before=1,2 leader.epoch=\d"
    assert sum(bool(re.fullmatch(expanded, line)) for line in lines) == 7, lines
    # a follower stands still while records come
    three.node(3).pause()
    leading = three.partitions()[1].leader
    three.produce(1, b"more")
    three.node(3).resume()
    three.until(three.all_in_sync, "all in sync")
    three.cluster.run_until(three.cluster.sim.now + 1)
    own = rf"broker={leading} partition=t-1"
    expect(
        log,
        rf"shrinking ISR {own} isr=1,2 before=1,2,3 leader.epoch=\d",
        rf"expanding ISR {own} isr=1,2,3 before=1,2 leader.epoch=\d",
    )
    reassign(three, [1, 2], 6)
    expect(
        log,
        r"reassignment completed controller=1 partitions=6 first=t-0",
        rf"audit reassignment requested node=1 {BY_TEST} topic=t count=6 partitions=0,1,2,\+3",
        r"replicas removed broker=3 count=6 partitions=t-0,t-1,t-2,\+3",
    )
    reassign(three, [1, 2, 3], 6)
    lines = expect(log, r"reassignment started controller=1 partitions=6 first=t-0")
    completed = [line for line in lines if line.startswith("reassignment completed")]
    counts = [int((re.findall(r" partitions=(\d+)", line) or [1])[0]) for line in completed]
    assert sum(counts) == 6, lines
    # a stop, as at night
    three.node(3).stop()
    three.until(lambda: not three.node(3).is_up, "3 has stopped")
    lines = expect(log, r"broker fenced controller=1 broker=3 epoch=\d+")
    three.node(3).start()
    three.until(lambda: three.node(3).ready and three.all_in_sync(), "3 is back")
    expect(
        log,
        r"logs loaded broker=3 directory=/data logs=7 ms=\d+",
        *(rf"broker {what} controller=1 broker=3 .*" for what in ("registered", "unfenced")),
    )
    assert log.errors == []
    # a full disk
    three.node(2).disk.faults.append(Fault(ENOSPC, "write", times=1 << 30))
    three.until(lambda: not three.node(2).is_up or log.errors, "the disk is full")
    assert any("log directory /data is offline" in text for text in log.errors)
    log.take()
    deleted = three.ask(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 4)
    assert deleted.responses[0].error_code == 0
    expect(
        log,
        r"topic deleted controller=1 topic=t id=\S+ partitions=6",
        rf"audit topic deleted node=1 {BY_TEST} topic=t",
    )


def test_ordinary_changes_of_leaders_log_no_errors(three: Three, log: Log) -> None:
    """Reassignments, elections, a restart: what an operator must act on is an error, this is
    not.
    """
    three.create(partitions=12)
    for replicas in ([2, 3], [3, 1], [1, 2, 3]):
        reassign(three, replicas, 12)
    three.node(2).stop()
    three.until(lambda: not three.node(2).is_up, "2 has stopped")
    three.node(2).start()
    three.until(lambda: three.node(2).ready and three.all_in_sync(), "2 is back")
    asked = reassignment_messages.ElectLeadersRequest(election_type=0, topic_partitions=None)
    assert three.ask(1, asked, 2).error_code == 0
    three.cluster.run_until(three.cluster.sim.now + 2)
    assert log.errors == []


def test_a_topic_deleted_while_a_broker_was_away_is_few_lines(three: Three, log: Log) -> None:
    """A broker comes back to a hundred logs that are nobody's any more."""
    three.create(partitions=100)
    three.node(3).kill()
    three.until(lambda: 3 not in three.partitions()[0].isr, "3 is out")
    three.ask(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 4)
    log.take()
    three.node(3).start()
    three.until(lambda: three.node(3).ready, "3 is back")
    (line,) = [line for line in log.take() if "stray" in line or "while this broker was" in line]
    assert line.startswith("replicas removed while this broker was away broker=3 count=100 ")
    three.cluster.run_until(three.cluster.sim.now + 61)
    assert not [line for line in log.take() if "stray" in line]


def test_a_storm_of_topics(three: Three, log: Log) -> None:
    """A hundred topics in a minute are no hundred lines."""
    for number in range(100):
        three.create(topic=f"t{number}")
    lines = [line for line in log.take() if line.startswith("topic created")]
    assert len(lines) <= 20
    three.cluster.run_until(three.cluster.sim.now + 61)
    assert [line for line in log.take() if line.startswith("topic created, more")]
