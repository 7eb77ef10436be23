"""The ACLs of an image, by whom and what they are about.

Owns `AclIndex`, which never changes, and `AclIndexDraft`, which makes the next one of it.

1. A name is looked up in as many places as prefixes have lengths, however many ACLs there are.
2. The next index shares what it does not touch: its tables are in `_BUCKETS` parts, and a part, or
   a principal's patterns, are copied once for a whole batch of records. It is built record by
   record, so in the slices that an image is built in.
3. An ACL that two records carry stays until both are gone.

Source: our own; Kafka's `StandardAuthorizerData` holds one sorted set. Not here: what is allowed
(`security/standard_authorizer.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol

LITERAL, PREFIXED = 3, 4  # Kafka's codes of a pattern's type
WILDCARD = "*"
_ALLOW = 3  # Kafka's code of a permission


class AclRecord(Protocol):
    """What an ACL says; the codes of `security/acl.py`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class Entry(NamedTuple):
    """Of one principal on one pattern."""

    host: str
    operation: int
    allows: bool


Entries = tuple[Entry, ...]
Pattern = tuple[int, str]  # its type, and its name
_Owner = tuple[int, str]  # a resource type, and a principal as written in the ACL
_Owned = Mapping[Pattern, Entries]
_Named = tuple[int, Pattern]  # a resource type, and a pattern
_NO_PATTERNS: _Owned = {}
_BUCKETS = 256


class AclIndex:
    """The ACLs of one image. `patterns`: how many ACLs each resource type and pattern has;
    `lengths`: how many prefixed patterns of each length a resource type has.
    """

    __slots__ = ("lengths", "owners", "patterns")

    def __init__(
        self,
        owners: Sequence[Mapping[_Owner, _Owned]],
        patterns: Sequence[Mapping[_Named, int]],
        lengths: Mapping[int, Mapping[int, int]],
    ) -> None:
        self.owners, self.patterns, self.lengths = owners, patterns, lengths

    def __bool__(self) -> bool:
        return any(self.patterns) or any(self.owners) or any(self.lengths.values())

    def names(self, resource: int, name: str) -> list[Pattern]:
        """The patterns that would match this name."""
        found = [(LITERAL, name)]
        if name != WILDCARD:
            found.append((LITERAL, WILDCARD))
        lengths = self.lengths.get(resource)
        if lengths:
            most = len(name)
            found += [(PREFIXED, name[:length]) for length in lengths if length <= most]
        return found

    def is_named(self, resource: int, patterns: Iterable[Pattern]) -> bool:
        """Whether any ACL is about one of the patterns."""
        named = [(resource, pattern) for pattern in patterns]
        return any(each in self.patterns[hash(each) % _BUCKETS] for each in named)

    def of(self, resource: int, principal: str) -> _Owned:
        """A principal's own entries, by pattern."""
        owner = (resource, principal)
        return self.owners[hash(owner) % _BUCKETS].get(owner, _NO_PATTERNS)


EMPTY_INDEX = AclIndex(({},) * _BUCKETS, ({},) * _BUCKETS, {})


class AclIndexDraft:
    """The next index, in the making."""

    __slots__ = ("_copied", "_lengths", "_owners", "_patterns")

    def __init__(self, base: AclIndex) -> None:
        self._owners, self._patterns = list(base.owners), list(base.patterns)
        self._lengths = {kind: dict(lengths) for kind, lengths in base.lengths.items()}
        self._copied: set[tuple[str, int] | _Owner] = set()

    def finish(self) -> AclIndex:
        """The index; the draft is not used any more."""
        return AclIndex(self._owners, self._patterns, self._lengths)

    def add(self, acl: AclRecord) -> None:
        kind, pattern = acl.resource_type, (acl.pattern_type, acl.resource_name)
        owned = self._owned((kind, acl.principal))
        before, added = owned.get(pattern), _entry(acl)
        owned[pattern] = added if before is None else before + added
        counts = self._counts((kind, pattern))
        count = counts[kind, pattern] = counts.get((kind, pattern), 0) + 1
        if count == 1 and pattern[0] == PREFIXED:
            lengths = self._lengths.setdefault(kind, {})
            lengths[len(pattern[1])] = lengths.get(len(pattern[1]), 0) + 1

    def remove(self, acl: AclRecord) -> None:
        """Raises KeyError or ValueError for one that was not added."""
        kind, pattern = acl.resource_type, (acl.pattern_type, acl.resource_name)
        owner = (kind, acl.principal)
        owned = self._owned(owner)
        entries = list(owned[pattern])
        entries.remove(_entry(acl)[0])
        if entries:
            owned[pattern] = tuple(entries)
        else:
            del owned[pattern]
            if not owned:
                del self._bucket("owners", self._owners, owner)[owner]
                self._copied.discard(owner)
        counts = self._counts((kind, pattern))
        counts[kind, pattern] -= 1
        if counts[kind, pattern]:
            return
        del counts[kind, pattern]
        if pattern[0] == PREFIXED:
            lengths = self._lengths[kind]
            lengths[len(pattern[1])] -= 1
            if not lengths[len(pattern[1])]:
                del lengths[len(pattern[1])]

    # this draft's own copies

    def _bucket(self, table: str, buckets: list[Any], key: Any) -> dict[Any, Any]:
        number = hash(key) % _BUCKETS
        if (table, number) not in self._copied:
            self._copied.add((table, number))
            buckets[number] = dict(buckets[number])
        found: dict[Any, Any] = buckets[number]
        return found

    def _owned(self, owner: _Owner) -> dict[Pattern, Entries]:
        bucket = self._bucket("owners", self._owners, owner)
        if owner not in self._copied:
            self._copied.add(owner)
            bucket[owner] = dict(bucket.get(owner, ()))
        found: dict[Pattern, Entries] = bucket[owner]
        return found

    def _counts(self, named: _Named) -> dict[_Named, int]:
        return self._bucket("patterns", self._patterns, named)


def _entry(acl: AclRecord) -> Entries:
    return _shared(acl.host, acl.operation, acl.permission_type == _ALLOW)


@lru_cache(maxsize=1024)
def _shared(host: str, operation: int, allows: bool) -> Entries:
    """One for all ACLs that say the same of other names: most do."""
    return (Entry(canonical_host(host), operation, allows),)


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
