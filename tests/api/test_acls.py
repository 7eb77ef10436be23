"""ACLs of a whole broker in memory: created, obeyed, described, deleted; who may, and what the
audit says.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionClosed

from tests.cluster.test_acl_changes import creation, wanted
from tests.memory_broker import MemoryBroker
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.controller_channel import check_answer
from twisted_broker.config_validation import check_together, super_users, warnings_for
from twisted_broker.security.acl import Operation
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import acls
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER, DENY = 4, 2
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def started(files: Any = None, **settings: str) -> MemoryBroker:
    """Everybody may do what no ACL names."""
    named = {"authorizer_class_name": AUTHORIZER, "allow_everyone_if_no_acl_found": "true"}
    return MemoryBroker(files, **(named | settings)).start()


def created(broker: MemoryBroker, *creations: acls.AclCreation) -> list[int]:
    answer = broker.ask(acls.CreateAclsRequest(creations=list(creations)), 3)
    broker.pass_time(1)  # the broker has read them
    return [each.error_code for each in answer.results]


def described(broker: MemoryBroker, port: int = 9092) -> acls.DescribeAclsResponse:
    request = acls.DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    answer: acls.DescribeAclsResponse = broker.ask(request, 3, port)
    return answer


def codes_of_topics(broker: MemoryBroker, *names: str) -> list[int]:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
    return [each.error_code for each in broker.ask(request, 7).topics]


def test_acls_are_obeyed_at_once_and_after_a_restart(lines: list[str]) -> None:
    """The controller decides for the client that the broker names; an audit line for each change
    and each denial.
    """
    broker = started()
    denied = creation(operation=int(Operation.CREATE), permission_type=DENY)
    general = creation(
        "kafka-cluster",
        resource_type=CLUSTER,
        operation=int(Operation.CREATE),
        permission_type=DENY,
    )
    assert codes_of_topics(broker, "u") == [0]
    lines.clear()
    node = creation("kafka-cluster", resource_type=CLUSTER, operation=int(Operation.ALL))
    assert created(broker, denied, general, denied, node) == [0, 0, 0, 0]
    who = "node=1 principal=User:ANONYMOUS client.id=test client=127.0.0.1"
    what = "permission=DENY operation=CREATE resource=TOPIC pattern=LITERAL name=t to=User:* host=*"
    assert lines[0] == f"audit acl created {who} {what}"
    assert len(lines) == 3
    lines.clear()
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes_of_topics(broker, "t", "v") == [0, refused]
    broker.stop()
    again = started(broker.files)
    assert len(described(again).resources) == 2
    assert codes_of_topics(again, "t") == [refused]
    lines.clear()
    deletion = acls.DeleteAclsRequest(filters=[wanted("t"), wanted("t")])
    answer = again.ask(deletion, 3)
    assert [len(each.matching_acls) for each in answer.filter_results] == [1, 1]
    assert [line.partition(" node=")[0] for line in lines] == ["audit acl deleted"]
    again.pass_time(1)
    assert codes_of_topics(again, "t") in ([0], [36])
    assert len(described(again).resources) == len(described(again, 9093).resources) == 1
    again.stop()


def test_who_may_see_and_change_acls(lines: list[str]) -> None:
    """DESCRIBE and ALTER on the cluster; super users always."""
    broker = started()
    shut = creation(
        "kafka-cluster",
        resource_type=CLUSTER,
        operation=int(Operation.ALTER),
        permission_type=DENY,
    )
    hidden = creation(
        "kafka-cluster",
        resource_type=CLUSTER,
        operation=int(Operation.DESCRIBE),
        permission_type=DENY,
    )
    node = creation("kafka-cluster", resource_type=CLUSTER, operation=int(Operation.CLUSTER_ACTION))
    assert created(broker, shut, hidden, node) == [0, 0, 0]
    lines.clear()
    for port in (9092, 9093):
        assert described(broker, port).error_code == REFUSED
        request = acls.CreateAclsRequest(creations=[creation(), creation("u")])
        answer = broker.ask(request, 3, port)
        assert [each.error_code for each in answer.results] == [REFUSED, REFUSED]
        answer = broker.ask(acls.DeleteAclsRequest(filters=[wanted()]), 3, port)
        assert [each.error_code for each in answer.filter_results] == [REFUSED]
    assert len(lines) == 6 and all(line.startswith("audit denied") for line in lines)
    assert "api=DescribeAcls operation=DESCRIBE resource=CLUSTER count=1" in lines[0]
    broker.stop()
    rooted = started(broker.files, super_users="User:root;User:ANONYMOUS")
    assert len(described(rooted).resources) == 1
    rooted.stop()


def test_without_an_authorizer_acls_are_disabled() -> None:
    """Each API says so in its own place, on both listeners."""
    broker = MemoryBroker().start()
    for port in (9092, 9093):
        disabled = ErrorCode.SECURITY_DISABLED
        assert described(broker, port).error_code == disabled
        answer = broker.ask(acls.CreateAclsRequest(creations=[creation()]), 3, port)
        assert [each.error_code for each in answer.results] == [disabled]
        answer = broker.ask(acls.DeleteAclsRequest(filters=[wanted()]), 3, port)
        assert [each.error_code for each in answer.filter_results] == [disabled]
    broker.stop()


def test_a_code_of_zero_ends_the_connection() -> None:
    broker = started()
    request = acls.CreateAclsRequest(creations=[creation(operation=0)])
    with pytest.raises(ConnectionClosed):
        broker.ask(request, 3)
    assert described(broker).resources == []
    broker.stop()


def test_a_new_cluster_denies_all_but_its_super_users() -> None:
    """A node that is one itself, or the cluster would not start."""
    broker = MemoryBroker(authorizer_class_name=AUTHORIZER, super_users="User:ANONYMOUS").start()
    assert created(broker, creation()) == [0]
    request = MetadataRequest(topics=None, include_topic_authorized_operations=True)
    assert not broker.ask(request, 8).topics
    broker.stop()


def test_an_authorizer_without_super_users_is_warned_of() -> None:
    """Nobody could create the first ACL, and no broker register."""
    settings = {"authorizer.class.name": AUTHORIZER}
    (line,) = warnings_for(BrokerConfig(settings))
    assert "set super.users=User:NAME;User:NAME on every node" in line
    assert not warnings_for(BrokerConfig(settings | {"super.users": "User:root"}))
    # Without any ACL all is open then.
    assert not warnings_for(BrokerConfig(settings | {"allow.everyone.if.no.acl.found": "true"}))


@pytest.mark.parametrize("text", ["User:a,User:b", "User:c;User:a, User:b"])
def test_super_users_with_a_comma_between_them_are_warned_of(text: str) -> None:
    """A comma is part of a name: of a certificate's subject it always is."""
    (line,) = warnings_for(BrokerConfig({"super.users": text}))
    assert "super.users" in line and "write ; between" in line and "User:b" in line
    assert not warnings_for(BrokerConfig({"super.users": "User:CN=a,OU=b;User:c"}))


def test_a_broker_that_the_controller_denies_says_what_to_do() -> None:
    """Each of its own requests is refused in the same way."""
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError, match=r"super\.users") as caught:
        check_answer(refused)
    assert caught.value.code == refused


@pytest.mark.parametrize("text", ["alice", "User:", ":alice", "User:a;bob"])
def test_a_super_user_has_a_type_and_a_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"super\.users"):
        check_together(BrokerConfig({"super.users": text}))
    assert super_users(BrokerConfig({"super.users": " User:a; User:b:c ;"})) == {
        "User:a",
        "User:b:c",
    }


KAFKAS_PRINCIPALS = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


@pytest.mark.parametrize(
    "name",
    [
        "principal.builder.class",
        "create.topic.policy.class.name",
        "alter.config.policy.class.name",
    ],
)
def test_a_class_that_would_stand_guard_is_not_left_out(name: str) -> None:
    """Without it an ACL would be about nobody, or a change that it refuses would be made. Kafka's
    own builder of principals does what is done here.
    """
    with pytest.raises(ConfigError, match=rf"{name}='com\.example\.Guard'.*remove the setting"):
        check_together(BrokerConfig({name: "com.example.Guard"}))
    check_together(BrokerConfig({name: "", "principal.builder.class": KAFKAS_PRINCIPALS}))
