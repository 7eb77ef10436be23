"""The rights of a principal on a resource.

Owns the check; every API checks it before the existence of a resource (RL 5.1), so that a
refusal shows nothing.

Source: Kafka's `Authorizer`, codes of `AclOperation` and `ResourceType`. Not here: what ACLs say
(`standard_authorizer.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from twisted_broker.security.principal import Principal
from twisted_broker.subclassed import mypyc_attr


class Operation(IntEnum):
    """Kafka's codes, also those of `authorized_operations` bits."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    """Kafka's codes. ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    """Kafka's codes."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourceType(IntEnum):
    """Kafka's codes."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"

SUPPORTED_OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Authorizer(Protocol):
    """Answers at once; it never waits."""

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
    ) -> bool: ...

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        """Whether it may do that to any resource of the type at all."""
        ...

    @property
    def rules(self) -> object:
        """Another object once a decision may be another."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class AllowAll:
    """Everybody may do everything."""

    rules: object = None

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        return True

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        return True


def authorized_operations(
    authorizer: Authorizer, principal: Principal, host: str, resource: ResourceType, name: str
) -> int:
    """The bit field of the `authorized_operations` fields: bit n is the operation with code n."""
    bits = 0
    for operation in SUPPORTED_OPERATIONS.get(resource, ()):
        if authorizer.authorize(principal, host, operation, resource, name):
            bits |= 1 << operation
    return bits
