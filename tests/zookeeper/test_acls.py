"""ACLs of a ZooKeeper cluster: those that a member obeys, and those that it changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.zookeeper.test_changes import Serving
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.security.acl import Operation, PatternType, PermissionType, ResourceType
from twisted_broker.security.principal import Principal
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import acls
from twisted_broker.zookeeper.znodes import ZnodeError

AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
ALICE = Principal("User", "alice")
ENTRY = {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}
LITERAL, PREFIXED = "/kafka-acl/Topic/t", "/kafka-acl-extended/prefixed/Topic/pre"


def content(*entries: dict[str, str]) -> bytes:
    return json.dumps({"version": 1, "acls": list(entries)}).encode()


class Guarded(Serving):
    """A member with the authorizer of its Java brokers; alice may read t before it starts."""

    def __init__(self, *entries: dict[str, str]) -> None:
        self.entries = entries or (ENTRY,)
        super().__init__(authorizer_class_name=AUTHORIZER, super_users="User:ANONYMOUS;User:root")

    def prepare(self) -> None:
        self.ensemble.create(LITERAL, content(*self.entries))

    def may(self, name: str, operation: Operation = Operation.READ) -> bool:
        authorizer = self.broker.parts.authorizer
        return bool(authorizer.authorize(ALICE, "10.0.0.1", operation, ResourceType.TOPIC, name))

    def create(self, name: str, **fields: Any) -> tuple[int, str | None]:
        creation = acls.AclCreation(
            **{
                "resource_type": ResourceType.TOPIC,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": "User:alice",
                "host": "*",
                "operation": Operation.DESCRIBE_CONFIGS,
                "permission_type": PermissionType.ALLOW,
                **fields,
            }
        )
        (result,) = self.ask(acls.CreateAclsRequest(creations=[creation]), 3).results
        return result.error_code, result.error_message

    def delete(self, **fields: Any) -> Any:
        wanted = acls.DeleteAclsFilter(
            **{
                "resource_type_filter": ResourceType.ANY,
                "resource_name_filter": None,
                "pattern_type_filter": PatternType.ANY,
                "principal_filter": None,
                "host_filter": None,
                "operation": Operation.ANY,
                "permission_type": PermissionType.ANY,
                **fields,
            }
        )
        (result,) = self.ask(acls.DeleteAclsRequest(filters=[wanted]), 3).filter_results
        assert result.error_code == ErrorCode.NONE
        return result.matching_acls

    def node(self, path: str) -> Any:
        return json.loads(self.ensemble.node(path).data)


def test_what_was_there_is_obeyed_before_a_listener_opens() -> None:
    member = Guarded()
    assert member.may("t") and not member.may("t", Operation.WRITE) and not member.may("u")


def test_a_node_that_cannot_be_understood_ends_the_start() -> None:
    """One of its ACLs may deny."""
    with pytest.raises(ZnodeError, match=r"/kafka-acl/Topic/t cannot be understood"):
        Guarded(ENTRY | {"operation": "FromTheFuture"})


@pytest.mark.parametrize(
    ("path", "change", "said", "name"),
    [
        (LITERAL, "/kafka-acl-changes", b"TOPIC:t", "t"),
        (LITERAL, "/kafka-acl-changes", b"Topic:t", "t"),
        (
            PREFIXED,
            "/kafka-acl-extended-changes",
            b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}',
            "prefix",
        ),
    ],
)
def test_what_another_broker_announces_is_obeyed(
    path: str, change: str, said: bytes, name: str
) -> None:
    member = Guarded()
    write = ENTRY | {"operation": "Write"}
    if path == LITERAL:
        member.ensemble.set(path, content(write))
    else:
        member.ensemble.create(path, content(write))
    member.ensemble.create(f"{change}/acl_changes_", said, sequence=True)
    member.pass_time(1.0)
    assert member.may(name, Operation.WRITE)
    assert member.may("t") == (path != LITERAL)


def test_a_new_session_reads_all_again() -> None:
    member = Guarded()
    member.broker.membership.zookeeper.expire()
    member.ensemble.set(LITERAL, content())
    member.broker.membership.zookeeper.connect()
    member.pass_time(1.0)
    assert not member.may("t")


def test_acls_are_written_and_announced_as_kafka_does() -> None:
    member = Guarded()
    assert member.create("t") == (ErrorCode.NONE, None)
    assert member.node(LITERAL) == {
        "version": 1,
        "acls": [ENTRY, ENTRY | {"operation": "DescribeConfigs"}],
    }
    assert member.may("t", Operation.DESCRIBE_CONFIGS)
    assert member.create("pre", resource_pattern_type=PatternType.PREFIXED)[0] == ErrorCode.NONE
    assert member.node(PREFIXED)["acls"] == [ENTRY | {"operation": "DescribeConfigs"}]

    def announced(path: str) -> list[bytes]:
        names = member.ensemble.children(path)
        return [member.ensemble.node(f"{path}/{name}").data for name in names]

    assert announced("/kafka-acl-changes") == [b"TOPIC:t"]
    assert announced("/kafka-acl-extended-changes") == [
        b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}'
    ]
    assert member.create("t") == (ErrorCode.NONE, None)  # it is there: nothing is written
    assert len(announced("/kafka-acl-changes")) == 1


@pytest.mark.parametrize(
    "fields",
    [{"resource_name": "a/b"}, {"resource_name": ".."}, {"principal": "alice"}],
)
def test_what_no_node_can_hold_is_refused(fields: dict[str, Any]) -> None:
    member = Guarded()
    code, message = member.create("t", **fields)
    assert code == ErrorCode.INVALID_REQUEST and message
    assert member.node(LITERAL)["acls"] == [ENTRY]


@pytest.mark.parametrize("exactly", [True, False])
def test_acls_are_deleted(exactly: bool) -> None:
    """Those that a filter for one resource matches by what its node holds now."""
    member = Guarded()
    deny = ENTRY | {"permissionType": "Deny"}
    if exactly:
        member.ensemble.set(LITERAL, content(ENTRY, deny))  # not announced yet
    named: dict[str, Any] = {
        "resource_type_filter": ResourceType.TOPIC,
        "resource_name_filter": "t",
        "pattern_type_filter": PatternType.LITERAL,
    }
    found = member.delete(**(named if exactly else {}))
    assert [each.permission_type for each in found] == [PermissionType.ALLOW] + (
        [PermissionType.DENY] if exactly else []
    )
    assert member.node(LITERAL)["acls"] == [] and not member.may("t")
    assert len(member.ensemble.children("/kafka-acl-changes")) == 1


def test_a_change_of_another_broker_in_between_is_kept() -> None:
    member = Guarded()
    bob = ENTRY | {"principal": "User:bob"}
    overtaken: list[str] = []
    zookeeper = member.broker.membership.zookeeper
    get: Callable[[str], Any] = zookeeper.get

    def read(path: str) -> Any:
        found = get(path)
        if path == LITERAL and not overtaken:
            overtaken.append(path)
            member.ensemble.set(path, content(ENTRY, bob))
        return found

    zookeeper.get = read
    assert member.create("t")[0] == ErrorCode.NONE
    assert member.node(LITERAL)["acls"] == [ENTRY, bob, ENTRY | {"operation": "DescribeConfigs"}]


def test_without_an_authorizer_nobody_reads_them() -> None:
    creation = acls.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        resource_pattern_type=PatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=Operation.READ,
        permission_type=PermissionType.ALLOW,
    )
    (result,) = Serving().ask(acls.CreateAclsRequest(creations=[creation]), 3).results
    assert result.error_code == ErrorCode.SECURITY_DISABLED


def test_the_authorizers_of_kraft_and_of_zookeeper_are_not_each_others() -> None:
    kraft = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    member = {"broker.id": "7", "zookeeper.connect": "zk:2181"}
    for values in (
        member | {"authorizer.class.name": kraft},
        {"authorizer.class.name": AUTHORIZER},
    ):
        with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
            BrokerConfig(values)
