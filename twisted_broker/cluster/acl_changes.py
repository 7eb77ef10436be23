"""CreateAcls, DeleteAcls: what the controller decides; and which ACLs a filter matches.

1. An invalid ACL gets an error of its own, and the others are created; one that exists already is
   answered as created, and writes nothing.
2. An ACL that several filters match is in the answers of all of them, and is removed once.
3. Decisions pause after every `_ACLS_PER_STEP` ACLs: a cluster may have a hundred thousand.

Source: Kafka's `AclControlManager`, `AclApis`, `AclBindingFilter`, `CreateAclsRequest`. Not here:
what ACLs allow (`security/standard_authorizer.py`), who may change them (`api/controller.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from twisted_broker.image.acl_index import WILDCARD
from twisted_broker.security.acl import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages import acls
from twisted_broker.wire.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

MOST_CREATIONS = 10_000
_ACLS_PER_STEP = 2000  # some two milliseconds of one turn

Table = Mapping[bytes, AccessControlEntryRecord]
Filter = acls.DescribeAclsRequest | acls.DeleteAclsFilter
_Value = tuple[int, str, int, str, str, int, int]


class Creations(NamedTuple):
    """A result for each creation of the request."""

    records: list[AccessControlEntryRecord]
    results: list[acls.AclCreationResult]


class Deletions(NamedTuple):
    """A result for each filter of the request; `removed` is what the records remove."""

    records: list[RemoveAccessControlEntryRecord]
    results: list[acls.DeleteAclsFilterResult]
    removed: list[AccessControlEntryRecord]


def check_creations(creations: Iterable[acls.AclCreation]) -> None:
    """WireError for what Kafka does not even read: a code that stands for unknown."""
    for each in creations:
        if not (
            each.resource_type
            and each.resource_pattern_type
            and each.operation
            and each.permission_type
        ):
            raise WireError("an ACL to be created has a code of 0, which stands for unknown")


def check_filters(filters: Iterable[Filter]) -> None:
    """As `check_creations`."""
    for each in filters:
        if not (
            each.resource_type_filter
            and each.pattern_type_filter
            and each.operation
            and each.permission_type
        ):
            raise WireError("a filter of ACLs has a code of 0, which stands for unknown")


def create_acls(
    table: Table, creations: Sequence[acls.AclCreation], new_id: Callable[[], bytes]
) -> Generator[None, None, Creations]:
    """Raises BrokerError(POLICY_VIOLATION) for more than `MOST_CREATIONS` new ones."""
    # only those of the same names are compared: most are others
    names = {each.resource_name for each in creations}
    there: set[_Value] = set()
    for number, acl in enumerate(table.values(), 1):
        if number % _ACLS_PER_STEP == 0:
            yield
        if acl.resource_name in names:
            there.add(_value(acl))
    done = Creations([], [])
    for number, each in enumerate(creations, 1):
        if number % _ACLS_PER_STEP == 0:
            yield
        reason = refusal_of(each)
        if reason is not None:
            result = acls.AclCreationResult(
                error_code=ErrorCode.INVALID_REQUEST, error_message=reason
            )
            done.results.append(result)
            continue
        done.results.append(acls.AclCreationResult())
        record = AccessControlEntryRecord(
            id=new_id(),
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            pattern_type=each.resource_pattern_type,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission_type=each.permission_type,
        )
        value = _value(record)
        if value not in there:
            there.add(value)
            done.records.append(record)
            if len(done.records) > MOST_CREATIONS:
                raise BrokerError(
                    ErrorCode.POLICY_VIOLATION,
                    f"more than {MOST_CREATIONS} ACLs in one request",
                )
    return done


def delete_acls(
    table: Table, filters: Sequence[acls.DeleteAclsFilter]
) -> Generator[None, None, Deletions]:
    """Removes what the filters match."""
    done = Deletions([], [], [])
    gone: set[bytes] = set()
    for wanted in filters:
        yield
        if not _is_known(wanted):
            refused = acls.DeleteAclsFilterResult(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message="the filter has a code that is not known",
            )
            done.results.append(refused)
            continue
        result = acls.DeleteAclsFilterResult(error_message=None)
        for acl in (yield from matching(table, wanted)):
            result.matching_acls.append(
                acls.DeleteAclsMatchingAcl(
                    error_message=None,
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
            )
            found = bytes(acl.id)
            if found not in gone:
                gone.add(found)
                done.removed.append(acl)
                done.records.append(RemoveAccessControlEntryRecord(id=found))
        done.results.append(result)
    return done


def describe_acls(
    table: Table, wanted: Filter
) -> Generator[None, None, list[acls.DescribeAclsResource]]:
    """By resource pattern."""
    found: dict[tuple[int, str, int], acls.DescribeAclsResource] = {}
    for number, acl in enumerate((yield from matching(table, wanted)), 1):
        if number % _ACLS_PER_STEP == 0:
            yield
        pattern = acl.resource_type, acl.resource_name, acl.pattern_type
        resource = found.get(pattern)
        if resource is None:
            resource = found[pattern] = acls.DescribeAclsResource(
                resource_type=pattern[0], resource_name=pattern[1], pattern_type=pattern[2]
            )
        resource.acls.append(
            acls.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    return list(found.values())


def matching(table: Table, wanted: Filter) -> Generator[None, None, list[AccessControlEntryRecord]]:
    """The ACLs that a filter matches; ANY and null match all."""
    found = []
    any_type = wanted.resource_type_filter == ResourceType.ANY
    any_operation = wanted.operation == Operation.ANY
    any_permission = wanted.permission_type == PermissionType.ANY
    for number, acl in enumerate(table.values(), 1):
        if number % _ACLS_PER_STEP == 0:
            yield
        if (
            (any_type or acl.resource_type == wanted.resource_type_filter)
            and (any_operation or acl.operation == wanted.operation)
            and (any_permission or acl.permission_type == wanted.permission_type)
            and (wanted.principal_filter is None or acl.principal == wanted.principal_filter)
            and (wanted.host_filter is None or acl.host == wanted.host_filter)
            and _names(wanted.pattern_type_filter, wanted.resource_name_filter, acl)
        ):
            found.append(acl)
    return found


def _names(pattern_type: int, name: str | None, acl: AccessControlEntryRecord) -> bool:
    """MATCH finds every pattern that applies to the name: itself, `*` and prefixes of it."""
    if pattern_type == PatternType.MATCH:
        if name is None:
            return True
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)
    if pattern_type not in (PatternType.ANY, acl.pattern_type):
        return False
    return name is None or acl.resource_name == name


def _is_known(wanted: acls.DeleteAclsFilter) -> bool:
    return (
        wanted.resource_type_filter in _RESOURCE_TYPES
        and wanted.pattern_type_filter in _PATTERN_TYPES
        and wanted.operation in _OPERATIONS
        and wanted.permission_type in _PERMISSION_TYPES
    )


_RESOURCE_TYPES, _PATTERN_TYPES, _OPERATIONS, _PERMISSION_TYPES = (
    frozenset(int(each) for each in kind if each)
    for kind in (ResourceType, PatternType, Operation, PermissionType)
)


def refusal_of(each: acls.AclCreation) -> str | None:
    """What is wrong with it, in Kafka's order."""
    if each.resource_type == ResourceType.CLUSTER and each.resource_name != CLUSTER_NAME:
        return f"the only name of a cluster is {CLUSTER_NAME}"
    if not each.resource_name:
        return "the name of the resource is empty"
    if each.resource_type not in _RESOURCE_TYPES or each.resource_type == ResourceType.ANY:
        return f"resource type {each.resource_type} is no type of a resource"
    if each.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"pattern type {each.resource_pattern_type} is neither literal nor prefixed"
    if each.operation not in _OPERATIONS or each.operation == Operation.ANY:
        return f"operation {each.operation} is no operation"
    if each.permission_type not in (PermissionType.DENY, PermissionType.ALLOW):
        return f"permission type {each.permission_type} is neither deny nor allow"
    if ":" not in each.principal:
        return "a principal is written TYPE:NAME, such as User:alice"
    return None


def _value(acl: AccessControlEntryRecord) -> _Value:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
