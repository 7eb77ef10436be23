"""What CreateAcls and DeleteAcls write, and which ACLs a filter matches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.security.test_standard_authorizer import acl
from twisted_broker.cluster import acl_changes
from twisted_broker.cluster.acl_changes import create_acls, delete_acls, describe_acls
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages import acls
from twisted_broker.wire.messages.metadata_records import AccessControlEntryRecord
from twisted_broker.wire.schema import run_whole

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


def table(*found: AccessControlEntryRecord) -> dict[bytes, AccessControlEntryRecord]:
    return {bytes(each.id): each for each in found}


def creation(name: str = "t", **more: Any) -> acls.AclCreation:
    fields = {
        "resource_type": 2,
        "resource_name": name,
        "principal": "User:*",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return acls.AclCreation(**(fields | more))


def wanted(name: str | None = None, **more: Any) -> acls.DeleteAclsFilter:
    fields = {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return acls.DeleteAclsFilter(**(fields | more))


def created(there: Any, *creations: acls.AclCreation) -> acl_changes.Creations:
    ids = iter(range(100, 100_000))
    made = create_acls(there, creations, lambda: next(ids).to_bytes(16, "big"))
    return run_whole(made)


def test_what_is_new_is_written_once() -> None:
    """One that is there, or twice in the request, is answered as created."""
    there = table(acl("t", Operation.READ))
    done = created(there, creation(), creation("u"), creation("u"), creation("u", host="h"))
    assert [each.error_code for each in done.results] == [0, 0, 0, 0]
    assert [(each.resource_name, each.host) for each in done.records] == [("u", "*"), ("u", "h")]
    assert len({each.id for each in done.records}) == 2
    assert [each.pattern_type for each in done.records] == [LITERAL, LITERAL]


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_name": ""},
        {"resource_type": 4},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"operation": 99},
        {"permission_type": ANY},
        {"permission_type": 99},
        {"principal": ""},
        {"principal": "alice"},
    ],
)
def test_what_is_wrong_is_its_own_error(wrong: dict[str, Any]) -> None:
    """The others are created."""
    done = created({}, creation(**wrong), creation("u"))
    assert [each.error_code for each in done.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert done.results[0].error_message and len(done.records) == 1


def test_too_many_at_once_are_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "MOST_CREATIONS", 2)
    assert len(created({}, creation("a"), creation("b"), creation("b")).records) == 2
    with pytest.raises(BrokerError) as caught:
        created({}, creation("a"), creation("b"), creation("c"))
    assert caught.value.code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("name", ["resource_type", "resource_pattern_type", "operation"])
def test_a_code_that_stands_for_unknown_is_not_read(name: str) -> None:
    """As in Kafka: the connection ends."""
    with pytest.raises(WireError):
        acl_changes.check_creations([creation(), creation(**{name: 0})])
    acl_changes.check_creations([creation(resource_type=99)])
    with pytest.raises(WireError):
        acl_changes.check_filters([wanted(), wanted(permission_type=0)])
    acl_changes.check_filters([wanted(operation=99)])


THERE = [
    acl("t", Operation.READ),
    acl("t", Operation.WRITE, host="h", deny=True),
    acl("top", Operation.READ, prefixed=True, principal="User:a"),
    acl("*", Operation.READ),
]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "0123"),
        ({"name": "t"}, "01"),
        ({"name": "t", "pattern_type_filter": LITERAL}, "01"),
        ({"name": "t", "pattern_type_filter": PREFIXED}, ""),
        ({"name": "topic", "pattern_type_filter": MATCH}, "23"),
        ({"name": "t", "pattern_type_filter": MATCH}, "013"),
        ({"pattern_type_filter": MATCH}, "0123"),
        ({"pattern_type_filter": PREFIXED}, "2"),
        ({"resource_type_filter": 3}, ""),
        ({"resource_type_filter": 2}, "0123"),
        ({"operation": 4}, "1"),
        ({"permission_type": 2}, "1"),
        ({"principal_filter": "User:a"}, "2"),
        ({"host_filter": "*"}, "023"),
    ],
)
def test_what_a_filter_matches(fields: dict[str, Any], expected: str) -> None:
    """What is deleted is what is described."""
    found = run_whole(delete_acls(table(*THERE), [wanted(**fields)]))
    assert found.removed == [THERE[int(each)] for each in expected]
    assert [bytes(each.id) for each in found.records] == [each.id for each in found.removed]
    assert len(found.results[0].matching_acls) == len(expected)
    resources = run_whole(describe_acls(table(*THERE), wanted(**fields)))
    assert sum(len(each.acls) for each in resources) == len(expected)
    assert len(resources) == len({THERE[int(each)].resource_name for each in expected})


def test_an_acl_of_two_filters_is_removed_once() -> None:
    """It is in both answers; a filter that nobody knows is refused, and the others count."""
    filters = [wanted("t"), wanted(operation=3), wanted(operation=99)]
    found = run_whole(delete_acls(table(*THERE), filters))
    assert [len(each.matching_acls) for each in found.results] == [2, 3, 0]
    assert [each.error_code for each in found.results] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert len(found.records) == len(THERE)


def test_decisions_about_many_pause() -> None:
    """A hundred thousand ACLs hold nobody up."""
    many = {bytes([1]) * 16 + bytes(str(n), "ascii"): THERE[0] for n in range(9000)}
    for steps in (
        delete_acls(many, [wanted("none")]),
        describe_acls(many, wanted("none")),
        create_acls(many, [creation("x")], lambda: bytes(16)),
    ):
        pauses = 0
        try:
            while True:
                next(steps)
                pauses += 1
        except StopIteration:
            assert pauses >= 4
