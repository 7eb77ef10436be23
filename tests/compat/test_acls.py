"""Access control through stock clients: ACLs kept by their admin clients, and obeyed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern
from kafka.admin import ResourceType as PythonResourceType
from kafka.errors import NoError

from twisted_broker.testing import Cluster

LIMIT_SECONDS = 60
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with Cluster(1, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def admin(guarded: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": guarded.bootstrap})


def binding(name: str, operation: Any, permission: Any, kind: Any = ResourceType.TOPIC) -> Any:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
    )


def created(admin: AdminClient, *bindings: Any) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(LIMIT_SECONDS)


def test_kafka_pythons_own_acl_test(guarded: Cluster) -> None:
    """kafka-python's `test_create_describe_delete_acls`, in its order."""
    client = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    pattern = ResourcePattern(PythonResourceType.TOPIC, "topic")
    wanted = ACLFilter(
        principal=None,
        host="*",
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=pattern,
    )
    try:
        found, error = client.describe_acls(wanted)
        assert error is NoError and found == []
        acl = ACL("User:test", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
        result = client.create_acls([acl])
        assert len(result["failed"]) == 0 and len(result["succeeded"]) == 1
        found, error = client.describe_acls(wanted)
        assert error is NoError and len(found) == 1
        removal = ACLFilter(
            principal="User:test",
            host="*",
            operation=ACLOperation.WRITE,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=pattern,
        )
        ((_, gone, error),) = client.delete_acls([removal])
        assert error is NoError and len(gone) == 1
        found, error = client.describe_acls(wanted)
        assert error is NoError and found == []
    finally:
        client.close()


def test_a_client_may_do_what_acls_allow_it(guarded: Cluster, admin: AdminClient) -> None:
    """librdkafka's own errors where they do not; and after the ACL is gone it goes on."""
    new = NewTopic("orders", 1, 1)
    admin.create_topics([new])["orders"].result(LIMIT_SECONDS)
    deny = binding("orders", AclOperation.WRITE, AclPermissionType.DENY)
    allow = binding("orders", AclOperation.ALL, AclPermissionType.ALLOW)
    created(admin, deny, allow)
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "message.timeout.ms": 10_000})
    outcomes: list[Any] = []
    producer.produce("orders", b"x", on_delivery=lambda error, message: outcomes.append(error))
    assert producer.flush(LIMIT_SECONDS) == 0
    assert outcomes[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    group = binding("readers", AclOperation.READ, AclPermissionType.DENY, ResourceType.GROUP)
    created(admin, group)
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": "readers"})
    try:
        consumer.subscribe(["orders"])
        told = consumer.poll(LIMIT_SECONDS)
        assert told is not None and told.error().name() == "GROUP_AUTHORIZATION_FAILED"
    finally:
        consumer.close()
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    ((gone,),) = [
        [future.result(LIMIT_SECONDS)] for future in admin.delete_acls([everything]).values()
    ]
    assert len(gone) == 3
    deadline = time.monotonic() + LIMIT_SECONDS
    while not got_through(producer):
        assert time.monotonic() < deadline


def got_through(producer: Producer) -> bool:
    """librdkafka refuses by itself until it asked for the topic again."""
    outcomes: list[Any] = []
    try:
        producer.produce("orders", b"x", on_delivery=lambda error, message: outcomes.append(error))
    except KafkaException:
        producer.poll(0.05)
        return False
    return producer.flush(LIMIT_SECONDS) == 0 and outcomes == [None]
