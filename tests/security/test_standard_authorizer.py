"""What ACLs allow: the cases of Kafka's StandardAuthorizerTest, and any ACLs beside a plain reading
of the rules.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from twisted_broker.image.acl_index import AclIndexDraft, canonical_host
from twisted_broker.image.metadata_image import RECORDS_PER_STEP, MetadataImage
from twisted_broker.security import standard_authorizer
from twisted_broker.security.acl import Operation, PatternType, PermissionType, ResourceType
from twisted_broker.security.principal import Principal
from twisted_broker.security.standard_authorizer import (
    MOST_DECISIONS,
    StandardAuthorizer,
)
from twisted_broker.wire.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HERE = "127.0.0.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
_ids = iter(range(1 << 40))


def acl(
    name: str,
    operation: Operation,
    *,
    principal: str = "User:*",
    host: str = "*",
    deny: bool = False,
    prefixed: bool = False,
    resource: ResourceType = TOPIC,
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=next(_ids).to_bytes(16, "big"),
        resource_type=int(resource),
        resource_name=name,
        pattern_type=int(PatternType.PREFIXED if prefixed else PatternType.LITERAL),
        principal=principal,
        host=host,
        operation=int(operation),
        permission_type=int(PermissionType.DENY if deny else PermissionType.ALLOW),
    )


class Source:
    """A metadata log: each change is another image."""

    def __init__(self, *acls: AccessControlEntryRecord) -> None:
        self.image = MetadataImage(offset=0)
        self.add(*acls)

    def add(self, *acls: AccessControlEntryRecord) -> None:
        self.image, _ = self.image.apply(acls)

    def remove(self, *acls: AccessControlEntryRecord) -> None:
        self.image, _ = self.image.apply([RemoveAccessControlEntryRecord(id=a.id) for a in acls])


def authorizer(
    *acls: AccessControlEntryRecord, super_users: str = "", allow_if_none: bool = False
) -> StandardAuthorizer:
    return StandardAuthorizer(Source(*acls), frozenset(super_users.split()), allow_if_none)


def allowed(
    found: StandardAuthorizer,
    operation: Operation,
    name: str,
    principal: Principal = ALICE,
    host: str = HERE,
    resource: ResourceType = TOPIC,
) -> bool:
    """Twice: the second answer is one that was kept."""
    first = found.authorize(principal, host, operation, resource, name)
    assert found.authorize(principal, host, operation, resource, name) is first
    return first


def test_nothing_is_allowed_without_an_acl() -> None:
    """Unless the setting allows what no ACL names; one that names it, for whomever, ends that."""
    assert not allowed(authorizer(), Operation.READ, "t")
    open_ = authorizer(acl("t", Operation.READ, principal="User:bob"), allow_if_none=True)
    assert not allowed(open_, Operation.READ, "t")
    assert not allowed(open_, Operation.WRITE, "t", BOB)
    assert allowed(open_, Operation.READ, "t", BOB)
    assert allowed(open_, Operation.READ, "u")
    assert allowed(open_, Operation.READ, "t", resource=GROUP)
    for wide in (acl("*", Operation.READ), acl("u", Operation.READ, prefixed=True)):
        open_ = authorizer(wide, allow_if_none=True)
        assert not allowed(open_, Operation.WRITE, "user")


def test_a_super_user_may_do_everything() -> None:
    """Also what is denied to all."""
    found = authorizer(acl("*", Operation.ALL, deny=True), super_users="User:bob User:alice")
    assert allowed(found, Operation.WRITE, "t") and allowed(found, Operation.WRITE, "t", BOB)
    assert not allowed(found, Operation.WRITE, "t", Principal("User", "carol"))
    assert not allowed(found, Operation.WRITE, "t", Principal("Group", "alice"))


def test_a_denial_outweighs_any_number_of_permissions() -> None:
    """Whatever their patterns, in whatever order they came."""
    for denied in (
        acl("foobar", Operation.WRITE, deny=True),
        acl("foo", Operation.WRITE, deny=True, prefixed=True),
        acl("*", Operation.WRITE, deny=True),
        acl("*", Operation.ALL, deny=True),
    ):
        grants = [acl("foobar", Operation.ALL), acl("f", Operation.ALL, prefixed=True)]
        for order in ([denied, *grants], [*grants, denied]):
            assert not allowed(authorizer(*order), Operation.WRITE, "foobar")
    assert allowed(authorizer(*grants), Operation.WRITE, "foobar")


def test_literal_and_prefixed_names() -> None:
    """A literal is the whole name, `*` any name, a prefix also the name itself."""
    found = authorizer(
        acl("foo", Operation.READ), acl("bar", Operation.READ, prefixed=True), acl("*x", 3)
    )
    for name in ("foo", "bar", "barrier"):
        assert allowed(found, Operation.READ, name), name
    for name in ("fo", "food", "ba", "rabar", "*y"):
        assert not allowed(found, Operation.READ, name), name
    starred = authorizer(acl("*", Operation.READ, prefixed=True))
    assert allowed(starred, Operation.READ, "*t") and not allowed(starred, Operation.READ, "t")


def test_principals_and_hosts() -> None:
    """Exact, or everybody's; of no other type."""
    found = authorizer(
        acl("t", Operation.READ, principal="User:alice", host="10.0.0.1"),
        acl("u", Operation.READ, principal="User:*"),
    )
    assert allowed(found, Operation.READ, "t", host="10.0.0.1")
    assert not allowed(found, Operation.READ, "t", host="10.0.0.10")
    assert not allowed(found, Operation.READ, "t", BOB, host="10.0.0.1")
    assert allowed(found, Operation.READ, "u", Principal("Token", "x"))


def test_an_ipv6_host_in_any_spelling() -> None:
    """Kafka's clients of ::1 come from 0:0:0:0:0:0:0:1: ACLs that deny them must not miss."""
    found = authorizer(
        acl("t", Operation.READ), acl("t", Operation.READ, host="0:0:0:0:0:0:0:1", deny=True)
    )
    assert not allowed(found, Operation.READ, "t", host="::1")
    assert allowed(found, Operation.READ, "t", host="::2")
    assert canonical_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert canonical_host("no:address") == "no:address"


IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
REAL = [each for each in Operation if each > Operation.ALL]


@pytest.mark.parametrize("granted", [Operation.ALL, *REAL])
def test_what_an_operation_implies(granted: Operation) -> None:
    """For ALLOW only; a DENY is of its own operation, or of all."""
    allow, deny = (
        authorizer(acl("t", granted)),
        authorizer(acl("t", Operation.ALL), acl("t", granted, deny=True)),
    )
    for asked in REAL:
        own = granted in (asked, Operation.ALL)
        assert allowed(allow, asked, "t") is (own or granted in IMPLIED.get(asked, ()))
        assert allowed(deny, asked, "t") is not own


def test_a_change_acts_at_once() -> None:
    """Also on what was decided before; the index forgets what was removed."""
    source = Source()
    found = StandardAuthorizer(source, frozenset())
    many = [acl(name, Operation.READ, prefixed=True) for name in ("a", "ab", "ac")]
    assert not allowed(found, Operation.READ, "abc")
    source.add(*many)
    assert allowed(found, Operation.READ, "abc")
    denied = acl("abc", Operation.READ, deny=True)
    source.add(denied)
    assert not allowed(found, Operation.READ, "abc")
    source.remove(denied)
    assert allowed(found, Operation.READ, "abc")
    source.remove(*many)
    assert not allowed(found, Operation.READ, "abc")
    assert not source.image.acl_index


def test_an_acl_that_two_records_carry_stays_until_both_are_gone() -> None:
    twice = [acl("t", Operation.READ) for _ in range(2)]
    source = Source(*twice)
    found = StandardAuthorizer(source, frozenset())
    source.remove(twice[0])
    assert allowed(found, Operation.READ, "t")
    source.remove(twice[1])
    assert not allowed(found, Operation.READ, "t")


def test_before_any_metadata_only_super_users_are_allowed() -> None:
    """Whatever holds where no ACL is found; that is not kept."""
    source = Source()
    source.image = replace(source.image, offset=-1)
    found = StandardAuthorizer(source, frozenset({"User:bob"}), allow_if_none=True)
    assert not allowed(found, Operation.READ, "t")
    assert not found.authorize_by_resource_type(ALICE, HERE, Operation.WRITE, TOPIC)
    assert allowed(found, Operation.READ, "t", BOB)
    source.image = replace(source.image, offset=0)  # the same table of ACLs: none
    assert allowed(found, Operation.READ, "t")


def test_decisions_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In number and in the length of names; none is lost by it."""
    monkeypatch.setattr(standard_authorizer, "MOST_DECISIONS", 10)
    found = authorizer(acl("t", Operation.READ, prefixed=True))
    for number in range(100):
        assert allowed(found, Operation.READ, f"t{number}")
        assert not allowed(found, Operation.READ, f"u{number}")
        assert len(found._decisions) <= 10
    before = len(found._decisions)
    assert allowed(found, Operation.READ, "t" * 5000)
    assert allowed(found, Operation.READ, "t", Principal("User", "x" * 5000))
    assert len(found._decisions) <= before + 1
    assert not any(len(key[2] or "") > 249 for key in found._decisions)
    assert not any(len(key[0].name) > 249 for key in found._decisions)
    assert MOST_DECISIONS <= 10_000


def test_a_decision_that_is_known_costs_one_call() -> None:
    """And the source's `image`, here an attribute; however many ACLs there are."""
    found = authorizer(*(acl(f"t{number}", Operation.WRITE) for number in range(50)))
    assert allowed(found, Operation.WRITE, "t7")
    calls: list[str] = []
    sys.setprofile(
        lambda frame, event, argument: (
            calls.append(frame.f_code.co_name) if event == "call" else None
        )
    )
    found.authorize(ALICE, HERE, Operation.WRITE, TOPIC, "t7")
    sys.setprofile(None)
    assert [name for name in calls if name != "<lambda>"] == ["authorize"]


class Plain:
    """The rules, read one after the other over all ACLs."""

    def __init__(self, acls: list[AccessControlEntryRecord], allow_if_none: bool) -> None:
        self.acls, self.allow_if_none = acls, allow_if_none

    def authorize(self, principal: str, host: str, operation: Operation, name: str) -> bool:
        of_name = [each for each in self.acls if self._names(each, name)]
        if not of_name:
            return self.allow_if_none
        mine = [
            each
            for each in of_name
            if each.principal in (principal, "User:*") and each.host in (host, "*")
        ]
        if any(
            each.permission_type == PermissionType.DENY
            and each.operation in (operation, Operation.ALL)
            for each in mine
        ):
            return False
        return any(
            each.permission_type == PermissionType.ALLOW
            and (
                each.operation in (operation, Operation.ALL)
                or each.operation in IMPLIED.get(operation, ())
            )
            for each in mine
        )

    @staticmethod
    def _names(each: AccessControlEntryRecord, name: str) -> bool:
        if each.resource_type != TOPIC:
            return False
        if each.pattern_type == PatternType.PREFIXED:
            return name.startswith(each.resource_name)
        return each.resource_name in (name, "*")


def test_any_acls_decide_as_the_rules_read() -> None:
    """Random ACLs over few names, so that they meet; added and removed as they come."""
    random = Random(15)
    names = ["a", "ab", "abc", "b", "*", "abd"]
    for _ in range(60):
        source = Source()
        allow_if_none = random.random() < 0.5
        found = StandardAuthorizer(source, frozenset(), allow_if_none)
        for _ in range(12):
            held = list(source.image.acls.values())
            if held and random.random() < 0.3:
                source.remove(random.choice(held))
            else:
                made = acl(
                    random.choice(names),
                    random.choice(list(Operation)[2:9]),
                    principal=random.choice(["User:alice", "User:bob", "User:*"]),
                    host=random.choice(["*", "1.1.1.1", "2.2.2.2"]),
                    deny=random.random() < 0.3,
                    prefixed=random.random() < 0.5,
                    resource=random.choice([TOPIC, TOPIC, GROUP]),
                )
                source.add(made)
            plain = Plain(list(source.image.acls.values()), allow_if_none)
            for _ in range(15):
                who = random.choice([ALICE, BOB])
                host, name = random.choice(["1.1.1.1", "3.3.3.3"]), random.choice(names)
                operation = random.choice(REAL)
                assert found.authorize(who, host, operation, TOPIC, name) is plain.authorize(
                    str(who), host, operation, name
                ), (held, who, host, operation, name)


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl("t", Operation.WRITE)], True),
        ([acl("t", Operation.ALL)], True),
        ([acl("t", Operation.READ)], False),
        ([acl("t", Operation.WRITE, host="1.1.1.1")], False),
        ([acl("t", Operation.WRITE, principal="User:bob")], False),
        ([acl("g", Operation.WRITE, resource=GROUP)], False),
        ([acl("t", Operation.WRITE), acl("t", Operation.WRITE, deny=True)], False),
        ([acl("t", Operation.WRITE), acl("u", Operation.WRITE, deny=True)], True),
        ([acl("t", Operation.WRITE), acl("*", Operation.WRITE, deny=True)], False),
        ([acl("to", Operation.WRITE), acl("t", Operation.WRITE, deny=True, prefixed=True)], False),
        ([acl("to", 4, prefixed=True), acl("to", 4, deny=True, prefixed=True)], False),
        ([acl("t", 4, prefixed=True), acl("to", 4, deny=True, prefixed=True)], True),
        ([acl("to", 4, prefixed=True), acl("to", 4, deny=True)], True),
        ([acl("*", Operation.WRITE), acl("t", 4, deny=True, prefixed=True)], True),
    ],
)
def test_whether_any_resource_of_a_type_is_allowed(
    acls: list[AccessControlEntryRecord], expected: bool
) -> None:
    """A DENY that covers the ALLOW whole takes it away, a narrower one does not."""
    found = authorizer(*acls)
    for _ in range(2):
        assert found.authorize_by_resource_type(ALICE, HERE, Operation.WRITE, TOPIC) is expected


def test_any_resource_for_super_users_and_where_no_acl_is_found() -> None:
    denied = acl("*", Operation.ALL, deny=True)
    found = authorizer(denied, super_users="User:alice")
    assert found.authorize_by_resource_type(ALICE, HERE, Operation.WRITE, TOPIC)
    assert not found.authorize_by_resource_type(BOB, HERE, Operation.WRITE, TOPIC)
    assert authorizer(allow_if_none=True).authorize_by_resource_type(ALICE, HERE, 4, TOPIC)


def test_many_acls_are_indexed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the image, whose steps they share; the first decision after it looks up its name only.
    Another image shares what did not change.
    """
    many = [
        acl(
            f"t{number}", Operation.READ, principal=f"User:{number % 700}", prefixed=number % 9 == 0
        )
        for number in range(3000)
    ]
    indexed: Counter[int] = Counter()
    step, add = [0], AclIndexDraft.add

    def counted(draft: AclIndexDraft, each: AccessControlEntryRecord) -> None:
        indexed[step[0]] += 1
        add(draft, each)

    monkeypatch.setattr(AclIndexDraft, "add", counted)
    for step[0], _ in enumerate(MetadataImage(offset=0).apply_in_steps(many), 1):
        pass
    assert max(indexed.values()) <= RECORDS_PER_STEP and indexed.total() == len(many)

    source = Source(*many)
    found = StandardAuthorizer(source, frozenset())
    calls: list[str] = []
    sys.setprofile(
        lambda frame, event, argument: (
            calls.append(frame.f_code.co_name) if event == "call" else None
        )
    )
    is_allowed = found.authorize(Principal("User", "7"), HERE, Operation.READ, TOPIC, "t707")
    source.add(acl("t707", Operation.ALL, principal="User:7", deny=True))
    was_allowed, is_allowed = (
        is_allowed,
        found.authorize(Principal("User", "7"), HERE, Operation.READ, TOPIC, "t707"),
    )
    sys.setprofile(None)
    assert was_allowed and not is_allowed
    assert len(calls) < 100, len(calls)


def test_another_image_shares_what_did_not_change() -> None:
    before, _ = MetadataImage().apply([acl(f"t{number}", Operation.READ) for number in range(500)])
    after, _ = before.apply([acl("x", Operation.READ, principal="User:alice")])
    for table in ("owners", "patterns"):
        pairs = zip(getattr(before.acl_index, table), getattr(after.acl_index, table), strict=True)
        assert sum(was is not now for was, now in pairs) == 1, table
    assert not before.acl_index.of(TOPIC, "User:alice")
    assert len(before.acl_index.of(TOPIC, "User:*")) == 500
