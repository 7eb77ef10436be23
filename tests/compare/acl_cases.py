"""Cases: ACLs. Without an authorizer all that can be read is SECURITY_DISABLED;
`permissions.py` asks the same of nodes that have one.
"""

from __future__ import annotations

from typing import Any

from tests.compare.side import Side

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 2, 3, 4, 5, 6, 7
READ, WRITE, DESCRIBE = 3, 4, 8
DENY, ALLOW = 2, 3


def creation(name: str, **more: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:nobody",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    } | more


def wanted(name: str | None, **more: Any) -> dict[str, Any]:
    """A filter."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | more


def _key(acl: Any) -> tuple[str, ...]:
    return tuple(str(getattr(acl, field.name)) for field in acl.FIELDS if field.name != "acls")


def _sorted(answer: Any) -> None:
    """A broker answers in no order."""
    for each in getattr(answer, "filter_results", ()):
        each.matching_acls.sort(key=_key)
    if hasattr(answer, "resources"):
        answer.resources.sort(key=_key)
        for each in answer.resources:
            each.acls.sort(key=_key)


def _made(side: Side) -> tuple[str, str]:
    """Some ACLs, where there is an authorizer: their names."""
    name, other = side.name("acl"), side.name("acl-of-others")
    creations = [
        creation(name),
        creation(name, operation=WRITE, host="10.0.0.1"),
        creation(name, permission_type=DENY, principal="User:a:b"),
        creation(name, resource_type=GROUP),
        creation(name, resource_pattern_type=PREFIXED),
        creation(other, resource_type=USER),
    ]
    side.latest("CreateAcls", creations=creations)
    return name, other


def _filters(name: str, other: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("by name", wanted(name)),
        ("literal", wanted(name, pattern_type_filter=LITERAL)),
        ("prefixed", wanted(name, pattern_type_filter=PREFIXED)),
        ("match", wanted(name, pattern_type_filter=MATCH, principal_filter="User:nobody")),
        (
            "match what begins so",
            wanted(f"{name}-x", pattern_type_filter=MATCH, principal_filter="User:nobody"),
        ),
        ("a topic", wanted(name, resource_type_filter=TOPIC)),
        ("a user", wanted(other, resource_type_filter=USER)),
        ("principal", wanted(name, principal_filter="User:a:b")),
        ("no such principal", wanted(name, principal_filter="User:*")),
        ("host", wanted(name, host_filter="10.0.0.1")),
        ("any host by *", wanted(name, host_filter="*")),
        ("operation", wanted(name, operation=WRITE)),
        ("all operations", wanted(name, operation=2)),
        ("denied", wanted(name, permission_type=DENY)),
        ("no such name", wanted(f"{name}-none")),
        ("empty name", wanted("")),
        ("resource type 99", wanted(name, resource_type_filter=99)),
        ("resource type -1", wanted(name, resource_type_filter=-1)),
        ("pattern type 9", wanted(name, pattern_type_filter=9)),
        ("operation 99", wanted(name, operation=99)),
        ("permission 9", wanted(name, permission_type=9)),
        ("resource type 0", wanted(name, resource_type_filter=0)),
        ("pattern type 0", wanted(name, pattern_type_filter=0)),
        ("operation 0", wanted(name, operation=0)),
        ("permission 0", wanted(name, permission_type=0)),
    ]


def describe_acls(side: Side, version: int) -> None:
    name, other = _made(side)
    for label, fields in _filters(name, other):
        side.ask(label, _sorted, **fields)


def create_acls(side: Side, version: int) -> None:
    name = side.name("acl")

    def asked(label: str, **more: Any) -> None:
        side.ask(label, creations=[creation(name, **more)])

    asked("one")
    asked("the same")
    side.ask("none", creations=[])
    side.ask("one twice, and a wrong one", creations=[creation("x"), creation(""), creation("x")])
    for kind in (TOPIC, GROUP, TRANSACTIONAL_ID, TOKEN, USER):
        asked(f"type {kind}", resource_type=kind)
    asked("cluster of another name", resource_type=CLUSTER)
    asked("the cluster", resource_type=CLUSTER, resource_name="kafka-cluster")
    asked(
        "a prefix of the cluster",
        resource_type=CLUSTER,
        resource_name="kafka-cluster",
        resource_pattern_type=PREFIXED,
    )
    for label, fields in (
        ("no name", {"resource_name": ""}),
        ("a name for all", {"resource_name": "*"}),
        ("a prefix for all", {"resource_name": "*", "resource_pattern_type": PREFIXED}),
        ("any type", {"resource_type": ANY}),
        ("type 99", {"resource_type": 99}),
        ("any pattern", {"resource_pattern_type": ANY}),
        ("match pattern", {"resource_pattern_type": MATCH}),
        ("pattern 9", {"resource_pattern_type": 9}),
        ("any operation", {"operation": ANY}),
        ("operation 99", {"operation": 99}),
        ("operation of another kind", {"operation": 12}),
        ("any permission", {"permission_type": ANY}),
        ("permission 9", {"permission_type": 9}),
        ("no principal", {"principal": ""}),
        ("principal without a type", {"principal": "alice"}),
        ("principal of another type", {"principal": "Group:x"}),
        ("no host", {"host": ""}),
        ("a host that is none", {"host": "nowhere at all"}),
        ("type 0", {"resource_type": 0}),
        ("pattern 0", {"resource_pattern_type": 0}),
        ("operation 0", {"operation": 0}),
        ("permission 0", {"permission_type": 0}),
    ):
        asked(label, **fields)
    filters = [wanted(name), *(wanted(each) for each in ("x", "*", "kafka-cluster"))]
    for each in filters:
        each["principal_filter"] = "User:nobody"
    # what ACLs of no principal of the protocol's form would do to others is no question here
    filters += [wanted(None, principal_filter=each) for each in ("", "alice", "Group:x")]
    side.latest("DeleteAcls", filters=filters)


def delete_acls(side: Side, version: int) -> None:
    for label, fields in _filters(*_made(side)):
        _made(side)
        side.ask(label, _sorted, filters=[fields])
    name, _ = _made(side)
    overlapping = [wanted(name, operation=READ), wanted(name, resource_type_filter=TOPIC)]
    side.ask("two filters for one", _sorted, filters=[*overlapping, wanted("", operation=99)])
    side.ask("gone", filters=[wanted(name)])
    side.ask("no filters", filters=[])
