"""Audit lines of a whole broker in memory: who changed what, and who was refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.group_api import LISTENER, ApiRun, Denying
from tests.api.test_groups import member_of
from tests.cluster.controller_fixture import PORT, ControllerFixture
from tests.cluster.fixtures import Fixture
from tests.cluster.test_partition_requests import Cluster
from tests.memory_broker import MemoryBroker
from tests.test_broker import create, produce
from twisted_broker.api import audit, broker_loggers
from twisted_broker.api.context import RequestContext
from twisted_broker.net.client import BrokerConnection
from twisted_broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from twisted_broker.security.principal import Principal
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import configs, metadata, reassignment, topics
from twisted_broker.wire.messages.broker_lifecycle import BrokerHeartbeatRequest
from twisted_broker.wire.messages.groups import DeleteGroupsRequest, LeaveGroupRequest
from twisted_broker.wire.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

FORGED = 'x\naudit topic deleted node=1 topic="orders"\x1b[31m\u2028'


@pytest.fixture(autouse=True)
def own_levels() -> Iterator[None]:
    yield
    broker_loggers._own.clear()
    broker_loggers._apply()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(num_partitions="2").start()


def ask(broker: MemoryBroker, request: Any, version: int, client_id: str = "admin") -> Any:
    connection = BrokerConnection(broker.runtime, "127.0.0.1", 9092, client_id)
    try:
        return broker.run(connection.send(request, version))
    finally:
        connection.close()


def wanted(lines: list[str], *patterns: str) -> None:
    """Each pattern is one line, and there are no others; forgets them."""
    who = r"node=1 principal=User:ANONYMOUS client\.id=admin client=\S+ "
    for pattern in patterns:
        kind, _, rest = pattern.partition(": ")
        matching = [line for line in lines if re.fullmatch(f"audit {kind} {who}{rest}", line)]
        assert len(matching) == 1, (pattern, lines)
    assert len(lines) == len(patterns), lines
    lines.clear()


def edited(kind: int, name: str, *edits: tuple[str, str | None], only: bool = False) -> Any:
    return configs.IncrementalAlterConfigsRequest(
        validate_only=only,
        resources=[
            configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    configs.IncrementalAlterConfigsRequestAlterableConfig(
                        name=key, config_operation=0 if value is not None else 1, value=value
                    )
                    for key, value in edits
                ],
            )
        ],
    )


def creation(name: str, only: bool = False) -> Any:
    new = topics.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return topics.CreateTopicsRequest(topics=[new], validate_only=only, timeout_ms=30_000)


def test_a_topic_that_a_client_names_is_created_as_that_client(
    broker: MemoryBroker, lines: list[str]
) -> None:
    """Kafka's AutoTopicCreationManager passes it on in an Envelope."""
    name = metadata.MetadataRequestTopic(name="named")
    ask(broker, metadata.MetadataRequest(topics=[name], allow_auto_topic_creation=True), 12)
    broker.pass_time(1)
    wanted(lines, r"topic created: topic=named partitions=2 replication\.factor=1")


def test_changes_of_topics_and_settings(broker: MemoryBroker, lines: list[str]) -> None:
    """The client's principal, id and address, though the controller decides; nothing for what was
    refused or only validated.
    """
    ask(broker, creation("t", only=True), 7)
    assert lines == []
    ask(broker, creation("t"), 7)
    wanted(lines, r"topic created: topic=t partitions=2 replication\.factor=1")
    ask(broker, creation("t"), 7)
    grown = topics.CreatePartitionsTopic(name="t", count=3, assignments=None)
    request = topics.CreatePartitionsRequest(topics=[grown], timeout_ms=30_000)
    ask(broker, request, 3)
    wanted(lines, "partitions created: topic=t partitions=3")
    ask(broker, edited(2, "t", ("retention.ms", "5"), ("segment.ms", "7")), 1)
    ask(broker, edited(2, "t", ("retention.ms", "9"), only=True), 1)
    ask(broker, edited(2, "none", ("retention.ms", "9")), 1)
    wanted(lines, r"settings changed: resource=topic name=t settings=retention\.ms,segment\.ms")
    name = "twisted_broker.api.audit"
    ask(broker, edited(8, "1", (name, "INFO")), 1)
    ask(broker, edited(8, "1", (name, "NONSENSE")), 1)
    wanted(lines, f"log levels changed: loggers={re.escape(name)}:INFO")
    ask(broker, topics.DeleteTopicsRequest(topic_names=["t", "none"], timeout_ms=30_000), 4)
    wanted(lines, "topic deleted: topic=t")


def test_elections_reassignments_and_records(broker: MemoryBroker, lines: list[str]) -> None:
    """What moves, by topic; deleted records by partition."""
    create(broker, "t", 2)
    produce(broker, "t", b"a", b"b")
    lines.clear()
    deletion = topics.DeleteRecordsRequest(
        topics=[
            topics.DeleteRecordsTopic(
                name="t",
                partitions=[
                    topics.DeleteRecordsPartition(partition_index=0, offset=1),
                    topics.DeleteRecordsPartition(partition_index=1, offset=99),
                ],
            )
        ],
        timeout_ms=1000,
    )
    ask(broker, deletion, 2)
    wanted(lines, "records deleted: partition=t-0 before=1")
    moved = reassignment.AlterPartitionReassignmentsRequest(
        topics=[
            reassignment.ReassignableTopic(
                name="t",
                partitions=[
                    reassignment.ReassignablePartition(partition_index=0, replicas=[1]),
                    reassignment.ReassignablePartition(partition_index=9, replicas=[1]),
                ],
            )
        ]
    )
    ask(broker, moved, 1)
    wanted(lines, "reassignment requested: topic=t count=1 partitions=0 replicas=1")
    # no election is needed, so nothing changes
    ask(broker, reassignment.ElectLeadersRequest(election_type=0, topic_partitions=None), 2)
    assert lines == []


def test_an_election_and_a_cancelled_move(lines: list[str]) -> None:
    """The partitions that have another leader now, and those whose move ends."""
    cluster = Cluster(Fixture().start())
    lines.clear()
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.set_isr(1, 2, 3) == 0
    codes = cluster.elect(0, 0, 1)
    assert codes == [0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    # both partitions when broker 1 was fenced, and one now
    assert cluster.fixture.controller.elections == 3
    assert cluster.reassign([1, 2, 4]) == 0 and cluster.reassign(None) == 0
    who = 'node=1 principal=User:ANONYMOUS client.id=test client=""'
    assert lines == [
        f"audit leaders elected {who} topic=t count=1 partitions=0 type=preferred",
        f"audit reassignment requested {who} topic=t count=1 partitions=0 replicas=1,2,4",
        f"audit reassignment cancelled {who} topic=t count=1 partitions=0",
    ]


def test_groups_and_offsets(lines: list[str]) -> None:
    """A group deleted, its offsets deleted; heartbeats and commits are no lines."""
    run = ApiRun()
    member = member_of(run)
    run.ask(LeaveGroupRequest(group_id="g", member_id=member), 2)
    requested = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    run.ask(OffsetDeleteRequest(group_id="g", topics=[requested]), 0)
    run.ask(DeleteGroupsRequest(groups_names=["g", "none"]), 2)
    who = "node=1 principal=User:ANONYMOUS client.id=client client=10.0.0.9"
    assert lines == [
        f"audit offsets deleted {who} group=g topic=t count=1 partitions=0",
        f"audit group deleted {who} group=g",
    ]


def test_what_is_refused_is_a_line(lines: list[str]) -> None:
    """With the API and what it named; the request's other elements are done."""
    run = ApiRun()
    run.acl.denied.add((Operation.DELETE, ResourceType.GROUP, "g"))
    run.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    run.ask(OffsetDeleteRequest(group_id="g", topics=[]), 0)
    who = "node=1 principal=User:ANONYMOUS client.id=client client=10.0.0.9"
    assert lines == [
        f"audit denied {who} api=DeleteGroups operation=DELETE resource=GROUP count=1 names=g",
        f"audit denied {who} api=OffsetDelete operation=DELETE resource=GROUP count=1 names=g",
    ]


def test_the_controller_says_what_it_refuses(lines: list[str]) -> None:
    """One line for a request's refusals, whatever they were of."""
    fixture = Fixture().start()
    fixture.authorizer = Denying()
    cluster = (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
    fixture.authorizer.denied |= {
        cluster,
        (Operation.CREATE, ResourceType.TOPIC, "*"),
        (Operation.ALTER, ResourceType.CLUSTER, "*"),
    }
    request = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=f"t{number}") for number in range(9)]
    )
    fixture.ask("create_topics", request, 7)
    with pytest.raises(BrokerError) as refused:
        fixture.ask("elect_leaders", reassignment.ElectLeadersRequest(), 2)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [re.sub(".* api=", "", line) for line in lines] == [
        "Produce operation=CREATE resource=TOPIC count=9 names=t0,t1,t2,+6",  # no API is named here
        f"Produce operation=ALTER resource=CLUSTER count=1 names={CLUSTER_NAME}",
    ]


def test_what_only_nodes_of_the_cluster_may_is_refused_with_a_line(lines: list[str]) -> None:
    """Before the request's own function sees it."""
    fixture = ControllerFixture()
    fixture.start()
    fixture.authorizer = Denying()
    fixture.authorizer.denied.add((Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "*"))
    fixture.serve()
    connection = BrokerConnection(fixture.runtime, "127.0.0.1", PORT, "stranger")
    answers: list[Any] = []
    connection.send(BrokerHeartbeatRequest(broker_id=1), 2).addBoth(answers.append)
    fixture.settle()
    connection.close()
    assert answers[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    who = "node=1 principal=User:ANONYMOUS client.id=stranger client=127.0.0.1"
    what = f"operation=CLUSTER_ACTION resource=CLUSTER count=1 names={CLUSTER_NAME}"
    assert lines == [f"audit denied {who} api=BrokerHeartbeat {what}"]


def test_a_client_cannot_forge_a_line(broker: MemoryBroker, lines: list[str]) -> None:
    """Its id and its names are quoted: one line each, with nothing in them that a terminal
    obeys.
    """
    ask(broker, creation("t"), 7, client_id=FORGED)
    (line,) = lines
    assert line.isprintable() and "\\n" in line and line.count(" topic=") == 2
    assert re.search(r'client\.id="x\\naudit topic deleted .*\\u001b.*\\u2028" client=', line)
    lines.clear()
    run = ApiRun()
    run.acl.denied.add((Operation.DELETE, ResourceType.GROUP, "*"))
    run.ask(DeleteGroupsRequest(groups_names=[FORGED]), 2)
    (line,) = lines
    assert line.isprintable() and line.endswith('\\u2028"')


def test_a_storm_is_bounded(broker: MemoryBroker, lines: list[str]) -> None:
    """Twenty lines of a kind a minute, then how many more there were."""
    new = [
        topics.CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
        for number in range(100)
    ]
    ask(broker, topics.CreateTopicsRequest(topics=new, timeout_ms=30_000), 7)
    assert len(lines) == 20
    broker.pass_time(61)
    assert lines[20:] == [
        "audit topic created, more in that minute: node=1 principal=User:ANONYMOUS count=80"
    ]


def test_one_principal_does_not_hide_what_another_was_denied(lines: list[str]) -> None:
    """It may be denied as often as it likes."""
    run = ApiRun()
    run.acl.denied.add((Operation.DELETE, ResourceType.GROUP, "*"))
    for name, group in (*(("alice", f"g{number}") for number in range(30)), ("bob", "payroll")):
        user = Principal("User", name)
        context = RequestContext(run.parts, LISTENER, 42, 2, 1, "client", "10.0.0.9", user)
        assert not context.may(Operation.DELETE, ResourceType.GROUP, group)
        audit.denied(context)
    assert "principal=User:bob" in lines[-1] and lines[-1].endswith(" names=payroll")
    run.parts.audit.stop()
    assert lines[-1] == "audit denied, more in that minute: node=1 principal=User:alice count=10"
