"""The ACLs of a Kafka 3.9 cluster as nodes of ZooKeeper.

Owns paths and content of the nodes of resources and of their announcements.

1. Literal patterns and prefixed ones lie apart, each with announcements of a form of its own.
2. Content that cannot be understood raises `ZnodeError`, which names the node.

Source: Kafka 3.9's `ZkAclStore`, `ZkAclChangeStore`, `AclEntry`. Not here: reading and writing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from twisted_broker.security.acl import Operation, PatternType, PermissionType, ResourceType
from twisted_broker.wire.messages.metadata_records import AccessControlEntryRecord
from twisted_broker.zookeeper.znodes import ZnodeError

CHANGE_PREFIX = "acl_changes_"
_ROOTS = {
    PatternType.LITERAL: ("/kafka-acl", "/kafka-acl-changes"),
    PatternType.PREFIXED: ("/kafka-acl-extended/prefixed", "/kafka-acl-extended-changes"),
}
CHANGES = tuple(changes for _, changes in _ROOTS.values())


def _word(each: Operation | ResourceType | PermissionType) -> str:
    return "".join(part.capitalize() for part in each.name.split("_"))


_WORDS = {kind: _word(kind) for kind in ResourceType if kind > ResourceType.ANY}
_OPERATIONS = {_word(each): each for each in Operation if each > Operation.ANY}
_PERMISSIONS = {_word(each): each for each in (PermissionType.DENY, PermissionType.ALLOW)}


class Pattern(NamedTuple):
    """What ACLs are about. Raises ValueError for a code that is not known."""

    pattern_type: PatternType
    resource_type: ResourceType
    name: str

    @property
    def path(self) -> str:
        return f"{_ROOTS[self.pattern_type][0]}/{_WORDS[self.resource_type]}/{self.name}"

    @property
    def change(self) -> tuple[str, bytes]:
        """The path of an announcement, without its number, and what it says."""
        path = f"{_ROOTS[self.pattern_type][1]}/{CHANGE_PREFIX}"
        if self.pattern_type is PatternType.LITERAL:
            return path, f"{self.resource_type.name}:{self.name}".encode()
        value = {
            "version": 1,
            "resourceType": self.resource_type.name,
            "name": self.name,
            "patternType": self.pattern_type.name,
        }
        return path, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def fits(self) -> bool:
        """Whether a node may have this name."""
        return "/" not in self.name and "\0" not in self.name and self.name not in ("", ".", "..")


def folders() -> list[tuple[str, PatternType, ResourceType]]:
    """Where the nodes of resources lie."""
    return [
        (f"{root}/{word}", pattern_type, kind)
        for pattern_type, (root, _) in _ROOTS.items()
        for kind, word in _WORDS.items()
    ]


def read_change(path: str, data: bytes) -> Pattern:
    """Whose ACLs changed."""
    try:
        if path.startswith(_ROOTS[PatternType.LITERAL][1] + "/"):
            kind, _, name = data.decode().partition(":")
            return Pattern(PatternType.LITERAL, _resource_type(kind), name)
        value = json.loads(data)
        return Pattern(
            PatternType[value["patternType"].upper()],
            _resource_type(value["resourceType"]),
            value["name"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZnodeError(f"ZooKeeper's {path} cannot be understood: {error!r}") from error


def _resource_type(name: str) -> ResourceType:
    """`TOPIC`; `Topic` in older announcements."""
    found = {kind.name: kind for kind in _WORDS} | {word: kind for kind, word in _WORDS.items()}
    return found[name]


def acls_json(acls: Iterable[AccessControlEntryRecord]) -> bytes:
    """Of a resource's node."""
    entries = [
        {
            "principal": acl.principal,
            "permissionType": _word(PermissionType(acl.permission_type)),
            "operation": _word(Operation(acl.operation)),
            "host": acl.host,
        }
        for acl in acls
    ]
    value = {"version": 1, "acls": entries}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read_acls(pattern: Pattern, data: bytes) -> list[AccessControlEntryRecord]:
    """What a resource's node has; ids are made of what they say: ZooKeeper knows none."""
    if not data:
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(data)["acls"]
        return [
            acl_record(
                pattern,
                each["principal"],
                each["host"],
                _OPERATIONS[each["operation"]],
                _PERMISSIONS[each["permissionType"]],
            )
            for each in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZnodeError(f"ZooKeeper's {pattern.path} cannot be understood: {error!r}") from error


def acl_record(
    pattern: Pattern, principal: str, host: str, operation: int, permission_type: int
) -> AccessControlEntryRecord:
    """As an image has it."""
    said = json.dumps([*pattern, principal, host, operation, permission_type]).encode()
    return AccessControlEntryRecord(
        id=hashlib.sha256(said).digest()[:16],
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission_type,
    )
