"""Decides by the ACLs of the metadata: Kafka's StandardAuthorizer.

Owns the rules, and the decisions that were made under them.

1. A super user may do everything. For the others one DENY that matches decides, else one ALLOW.
   Where no ACL matches, all is denied; `allow_if_none` allows it on a resource that no ACL names.
2. An ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, one of ALTER_CONFIGS implies
   DESCRIBE_CONFIGS. A DENY implies nothing.
3. Decisions are those of the newest image: each image has its own `acls` only if they changed, so
   one comparison by identity finds a change, and decisions are forgotten. The index comes with
   the image, which is made in slices: no turn is longer for a hundred thousand ACLs.
4. Before any metadata is there, only super users may do anything.
5. Decisions that are kept are bounded, in number and in the length of their names.
6. `authorize_by_resource_type` looks at the ACLs of one principal and of everybody only.

Source: Kafka's `StandardAuthorizer`, `StandardAuthorizerData`, the default
`Authorizer.authorizeByResourceType`. Not here: who asks what (`api`), changes of ACLs
(`cluster/acl_changes.py`), the index (`image/acl_index.py`), refusals and their lines
(`api/audit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from twisted_broker.image.acl_index import (
    EMPTY_INDEX,
    LITERAL,
    PREFIXED,
    WILDCARD,
    AclIndex,
    Entries,
    Entry,
    Pattern,
    canonical_host,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.security.principal import Principal

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


class AclImage(Protocol):
    """The part of a metadata image that is read here."""

    @property
    def offset(self) -> int: ...

    @property
    def acls(self) -> Mapping[bytes, Any]: ...

    @property
    def acl_index(self) -> AclIndex: ...


class AclSource(Protocol):
    """Who follows the metadata; `image` is the newest."""

    @property
    def image(self) -> AclImage: ...


class NoMetadata:
    """A source before there is one; also its own image."""

    offset = -1

    def __init__(self) -> None:
        self.acls: Mapping[bytes, Any] = {}
        self.acl_index = EMPTY_INDEX

    @property
    def image(self) -> NoMetadata:
        return self


class StandardAuthorizer:
    """`source.image` has the ACLs. `super_users` in Kafka's written form, `User:alice`."""

    def __init__(
        self, source: AclSource, super_users: frozenset[str], allow_if_none: bool = False
    ) -> None:
        self._source = source
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        self._acls: Mapping[bytes, Any] = {}
        self._index = EMPTY_INDEX
        self._decisions: dict[tuple[Principal, str, str | None, int], bool] = {}

    @property
    def rules(self) -> object:
        return self._source.image.acls

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
        """Takes over another image's ACLs."""
        image = self._source.image
        self._acls, self._index = image.acls, image.acl_index
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
        allowed = False
        patterns = self._index.names(resource, name)
        for owned in self._owned(resource, written):
            for pattern in patterns:
                for entry in owned.get(pattern, ()):
                    if entry.host not in (WILDCARD, address) or not _covers(entry, operation):
                        continue
                    if not entry.allows:
                        return False
                    allowed = True
        return allowed or (self._allow_if_none and not self._index.is_named(resource, patterns))

    def _owned(self, resource: int, written: str) -> list[Mapping[Pattern, Entries]]:
        """A principal's own entries, and everybody's."""
        who = (written,) if written == ALL_USERS else (written, ALL_USERS)
        return [self._index.of(resource, each) for each in who]

    def _any_allowed(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        if self._source.image.offset < 0:
            return False
        address = canonical_host(host)
        allowed: list[Pattern] = []
        denied: set[Pattern] = set()
        for owned in self._owned(resource, str(principal)):
            for pattern, entries in owned.items():
                for entry in entries:
                    # nothing is implied here, in Kafka neither
                    if entry.operation not in (operation, Operation.ALL):
                        continue
                    if entry.host not in (WILDCARD, address):
                        continue
                    if entry.allows:
                        allowed.append(pattern)
                    else:
                        denied.add(pattern)
        everything = (LITERAL, WILDCARD)
        if everything in denied:
            return False
        if everything in allowed:
            return True
        lengths = {len(name) for kind, name in denied if kind == PREFIXED}
        return any(
            ((kind, name) not in denied or kind == PREFIXED)
            and not any(
                (PREFIXED, name[:length]) in denied for length in lengths if length <= len(name)
            )
            for kind, name in allowed
        )


def _covers(entry: Entry, operation: Operation) -> bool:
    if entry.operation == Operation.ALL:
        return True
    implied_by = _IMPLIED_BY.get(operation)
    if entry.allows and implied_by is not None:
        return entry.operation in implied_by
    return entry.operation == operation
