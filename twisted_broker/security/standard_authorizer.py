"""What the ACLs of the metadata allow: Kafka's StandardAuthorizer.

Owns the rules, an index of the ACLs, and the decisions that were made under them.

1. A super user may do everything. For the others one DENY that matches decides, else one ALLOW.
   Where no ACL matches, all is denied; `allow_if_none` allows it on a resource that no ACL names.
2. An ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, one of ALTER_CONFIGS implies
   DESCRIBE_CONFIGS. A DENY implies nothing.
3. Decisions are those of the newest image: each image has its own `acls` only if they changed, so
   one comparison by identity finds a change. The index takes what differs, and decisions are
   forgotten.
4. Before any metadata is there, only super users may do anything.
5. Decisions that are kept are bounded, in number and in the length of their names.

Source: Kafka's `StandardAuthorizer`, `StandardAuthorizerData`, the default
`Authorizer.authorizeByResourceType`. Not here: who asks what (`api`), changes of ACLs
(`cluster/acl_changes.py`), refusals and their lines (`api/audit.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from twisted_broker.security.acl import Operation, PatternType, PermissionType, ResourceType
from twisted_broker.security.principal import Principal

WILDCARD = "*"
ALL_USERS = "User:*"
MOST_DECISIONS = 10_000
# as long as a topic's name may be; decisions about longer ones are made again
_LONGEST_KEPT = 249
_SOME_NAME = "hardcode"  # Kafka's: super users are allowed any name

_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.ALL,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}


class AclRecord(Protocol):
    """What an ACL says; the codes of `acl.py`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class AclImage(Protocol):
    """The part of a metadata image that is read here."""

    @property
    def offset(self) -> int: ...

    @property
    def acls(self) -> Mapping[bytes, AclRecord]: ...


class AclSource(Protocol):
    """Who follows the metadata; `image` is the newest."""

    @property
    def image(self) -> AclImage: ...


class NoMetadata:
    """A source before there is one; also its own image."""

    offset = -1

    def __init__(self) -> None:
        self.acls: Mapping[bytes, AclRecord] = {}

    @property
    def image(self) -> NoMetadata:
        return self


class _Entry(NamedTuple):
    """Of one principal on one pattern."""

    host: str
    operation: int
    allows: bool


# by principal, as written in the ACL
_Entries = dict[str, list[_Entry]]
_Pattern = tuple[int, int, str]
_NO_ENTRIES: list[_Entry] = []


class AclIndex:
    """ACLs by resource pattern and principal. A name is looked up in as many places as prefixes
    have lengths, however many ACLs there are.
    """

    def __init__(self) -> None:
        self._patterns: dict[_Pattern, _Entries] = {}
        self._lengths: dict[int, Counter[int]] = {}

    def add(self, acl: AclRecord) -> None:
        pattern = _pattern(acl)
        entries = self._patterns.get(pattern)
        if entries is None:
            entries = self._patterns[pattern] = {}
            if pattern[1] == PatternType.PREFIXED:
                self._lengths.setdefault(pattern[0], Counter())[len(pattern[2])] += 1
        entries.setdefault(acl.principal, []).append(_entry(acl))

    def remove(self, acl: AclRecord) -> None:
        """KeyError, ValueError for one that was not added."""
        pattern = _pattern(acl)
        entries = self._patterns[pattern]
        of_principal = entries[acl.principal]
        of_principal.remove(_entry(acl))
        if of_principal:
            return
        del entries[acl.principal]
        if entries:
            return
        del self._patterns[pattern]
        if pattern[1] == PatternType.PREFIXED:
            lengths = self._lengths[pattern[0]]
            lengths[len(pattern[2])] -= 1
            if not lengths[len(pattern[2])]:
                del lengths[len(pattern[2])]

    def matching(self, resource: int, name: str) -> Iterator[_Entries]:
        """The entries of each pattern that this name matches."""
        patterns = self._patterns
        named = [(resource, int(PatternType.LITERAL), name)]
        if name != WILDCARD:
            named.append((resource, int(PatternType.LITERAL), WILDCARD))
        named += [
            (resource, int(PatternType.PREFIXED), name[:length])
            for length in self._lengths.get(resource, ())
            if length <= len(name)
        ]
        for pattern in named:
            entries = patterns.get(pattern)
            if entries is not None:
                yield entries

    def of_type(self, resource: int) -> Iterator[tuple[int, str, _Entries]]:
        """The patterns of one resource type: pattern type, name, entries."""
        for (kind, pattern_type, name), entries in self._patterns.items():
            if kind == resource:
                yield pattern_type, name, entries


class StandardAuthorizer:
    """`source.image` has the ACLs. `super_users` in Kafka's written form, `User:alice`."""

    def __init__(
        self, source: AclSource, super_users: frozenset[str], allow_if_none: bool = False
    ) -> None:
        self._source = source
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        self._acls: Mapping[bytes, AclRecord] = {}
        self._index = AclIndex()
        self._decisions: dict[tuple[Principal, str, str | None, int], bool] = {}

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        """`host`: the client's address as text. It never waits; a decision that is known costs one
        look-up.
        """
        if self._source.image.acls is not self._acls:
            self._follow()
        found = self._decisions.get((principal, host, name, operation * 16 + resource))
        if found is not None:
            return found
        return self._keep(
            principal,
            host,
            name,
            operation * 16 + resource,
            self._decide(principal, host, operation, resource, name),
        )

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        """As Kafka's: an ALLOW that no DENY covers whole is enough."""
        if self._source.image.acls is not self._acls:
            self._follow()
        found = self._decisions.get((principal, host, None, operation * 16 + resource))
        if found is not None:
            return found
        return self._keep(
            principal,
            host,
            None,
            operation * 16 + resource,
            self._decide(principal, host, operation, resource, _SOME_NAME)
            or self._any_allowed(principal, host, operation, resource),
        )

    def _follow(self) -> None:
        """Takes over what changed. An ACL never changes under its id."""
        before, after = self._acls, self._source.image.acls
        for gone in before.keys() - after.keys():
            self._index.remove(before[gone])
        for added in after.keys() - before.keys():
            self._index.add(after[added])
        self._acls = after
        self._decisions.clear()

    def _keep(
        self, principal: Principal, host: str, name: str | None, what: int, decision: bool
    ) -> bool:
        if self._source.image.offset < 0:  # nothing is loaded: it is asked again
            return decision
        if len(name or "") <= _LONGEST_KEPT and len(principal.name) <= _LONGEST_KEPT:
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions.clear()
            self._decisions[principal, host, name, what] = decision
        return decision

    def _decide(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        written = str(principal)
        if written in self._super_users:
            return True
        if self._source.image.offset < 0:
            return False
        address = canonical_host(host)
        named = allowed = False
        for entries in self._index.matching(resource, name):
            named = True
            for of_principal in _of(entries, written):
                for entry in of_principal:
                    if entry.host not in (WILDCARD, address) or not _covers(entry, operation):
                        continue
                    if not entry.allows:
                        return False
                    allowed = True
        return allowed or (self._allow_if_none and not named)

    def _any_allowed(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        if self._source.image.offset < 0:
            return False
        written, address = str(principal), canonical_host(host)
        allowed: list[tuple[int, str]] = []
        denied: set[tuple[int, str]] = set()
        for pattern_type, name, entries in self._index.of_type(resource):
            for of_principal in _of(entries, written):
                for entry in of_principal:
                    if entry.host not in (WILDCARD, address):
                        continue
                    # nothing is implied here, in Kafka neither
                    if entry.operation not in (operation, Operation.ALL):
                        continue
                    if entry.allows:
                        allowed.append((pattern_type, name))
                    else:
                        denied.add((pattern_type, name))
        everything = (int(PatternType.LITERAL), WILDCARD)
        if everything in denied:
            return False
        if everything in allowed:
            return True
        lengths = {len(name) for kind, name in denied if kind == PatternType.PREFIXED}
        return any(
            (pattern_type == PatternType.PREFIXED or (pattern_type, name) not in denied)
            and not any(
                (int(PatternType.PREFIXED), name[:length]) in denied
                for length in lengths
                if length <= len(name)
            )
            for pattern_type, name in allowed
        )


def _of(entries: _Entries, principal: str) -> tuple[list[_Entry], ...]:
    """A principal's own entries, and everybody's."""
    everybody = entries.get(ALL_USERS, _NO_ENTRIES)
    if principal == ALL_USERS:
        return (everybody,)
    return entries.get(principal, _NO_ENTRIES), everybody


def _covers(entry: _Entry, operation: Operation) -> bool:
    if entry.operation == Operation.ALL:
        return True
    implied_by = _IMPLIED_BY.get(operation)
    if entry.allows and implied_by is not None:
        return entry.operation in implied_by
    return entry.operation == operation


def _pattern(acl: AclRecord) -> _Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


def _entry(acl: AclRecord) -> _Entry:
    return _Entry(
        canonical_host(acl.host), acl.operation, acl.permission_type == PermissionType.ALLOW
    )


def canonical_host(host: str) -> str:
    """An IPv6 address has many texts: Java writes ::1 as 0:0:0:0:0:0:0:1, and an IPv4 address that
    came in IPv6 as IPv4. All else is its own.
    """
    if ":" not in host:
        return host
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)
