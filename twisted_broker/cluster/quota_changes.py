"""Quotas of clients: what the controller decides, and which ones a filter finds.

Owns `alter_client_quotas` and `QuotaFilter`.

1. An entity changes as a whole or not at all; others of the request are not touched by its refusal.
2. Only what differs is written.
3. An entity counts once in a request; named again it is refused, and what came first stays.
4. An address is an IP address: names of hosts are not resolved.

Source: Kafka's `ClientQuotaControlManager`, `ClientQuotasImage`, `QuotaConfig`; KIP-546, KIP-599,
KIP-612. Not here: permission, what a quota does (`security/quota`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import ip_address

from twisted_broker.image.metadata_image import MetadataImage, QuotaEntity
from twisted_broker.security.quota.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.quotas import (
    AlterClientQuotasResponse,
    AlteredEntry,
    AlteredResult,
    ComponentData,
    OpData,
    QuotaEntityData,
)
from twisted_broker.wire.schema import Record

EXACT, DEFAULT, SPECIFIED = range(3)
_TYPES = (USER, CLIENT_ID, IP)
_INT, _LONG = float(2**31 - 1), float(2**63 - 1)
# The largest whole number of each key; None: any number.
_OF_CLIENTS: dict[str, float | None] = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_OF_ADDRESSES: dict[str, float | None] = {CONNECTION_CREATION_RATE: _INT}
_LEAST_FRACTION = 1e-6
MOST_CHANGES = 10_000  # Kafka's bound of records for one request
Results = dict[QuotaEntity, BrokerError | None]


def entity_of(parts: Iterable[records.EntityData | QuotaEntityData]) -> QuotaEntity:
    """As an image has it; of a type that is there twice the last counts."""
    return tuple(sorted({each.entity_type: each.entity_name for each in parts}.items()))


def check_count(entries: Sequence[AlteredEntry]) -> None:
    """Raises BrokerError(POLICY_VIOLATION) for more than `MOST_CHANGES` in one request."""
    if sum(len(entry.ops) for entry in entries) > MOST_CHANGES:
        raise BrokerError(
            ErrorCode.POLICY_VIOLATION, f"more than {MOST_CHANGES} quotas in one request"
        )


def alter_client_quotas(
    image: MetadataImage, entries: Sequence[AlteredEntry], before: Collection[QuotaEntity] = ()
) -> tuple[list[Record], Results]:
    """The records, and for each entity None or its refusal. `before`: the entities of the request
    that were decided on already.
    """
    found: list[Record] = []
    results: Results = {}
    for entry in entries:
        entity = entity_of(entry.entity)
        try:
            if entity in results or entity in before:
                raise twice(entity)
            found += _changes(image, entity, entry.ops)
            results[entity] = None
        except BrokerError as refused:
            results[entity] = refused
    return found, results


def twice(entity: QuotaEntity) -> BrokerError:
    """The refusal of an entity that the request had already."""
    return _invalid(f"the entity {_text(entity)} is in the request twice")


def answer(results: Results) -> AlterClientQuotasResponse:
    """Of the whole request."""
    return AlterClientQuotasResponse(
        entries=[
            AlteredResult(
                error_code=ErrorCode.NONE if refused is None else refused.code,
                error_message=None if refused is None else refused.message,
                entity=[
                    QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
            )
            for entity, refused in results.items()
        ]
    )


def text_of(key: str, value: float) -> str:
    """A quota's value as a node of ZooKeeper has it: Kafka reads some as whole numbers."""
    is_whole = (_OF_CLIENTS | _OF_ADDRESSES)[key] is not None
    return str(round(value)) if is_whole else repr(value)


def _changes(image: MetadataImage, entity: QuotaEntity, ops: Sequence[OpData]) -> list[Record]:
    wanted = {op.key: None if op.remove else op.value for op in ops}
    if len(wanted) < len(ops):
        raise _invalid(f"a key is there twice for {_text(entity)}")
    keys = keys_of(entity)
    current = image.client_quotas.get(entity, {})
    found: list[Record] = []
    for key, value in wanted.items():
        if value is not None:
            _check(keys, key, value)
        if value != current.get(key):
            found.append(
                records.ClientQuotaRecord(
                    entity=[
                        records.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity
                    ],
                    key=key,
                    value=0.0 if value is None else value,
                    remove=value is None,
                )
            )
    return found


def keys_of(entity: QuotaEntity) -> Mapping[str, float | None]:
    """What may be set for an entity of these types. Raises BrokerError."""
    if not entity:
        raise _invalid("an entity needs at least one type")
    for kind, name in entity:
        if kind not in _TYPES:
            raise _invalid(f"there is no entity type {kind}")
        if name == "":
            raise _invalid(f"the name of the {kind} is empty")
    kinds = dict(entity)
    if IP not in kinds:
        return _OF_CLIENTS
    if len(kinds) > 1:
        raise _invalid("an ip has quotas of its own only, not with a user or a client-id")
    address = kinds[IP]
    if address is not None:
        try:
            ip_address(address)
        except ValueError:
            raise _invalid(f"{address} is not an IP address") from None
    return _OF_ADDRESSES


def _check(keys: Mapping[str, float | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"there is no quota {key} for such an entity")
    if not value > 0:  # NaN is not
        raise _invalid(f"{key} must be greater than 0")
    most = keys[key]
    if most is None:
        return
    if value > most:
        raise _invalid(f"{key} is greater than {most:.0f}")
    if value % 1 > _LEAST_FRACTION:
        raise _invalid(f"{key} must be a whole number")


def _invalid(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, reason)


def _text(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


class QuotaFilter:
    """Of DescribeClientQuotas. Raises BrokerError for components that make no sense."""

    __slots__ = ("_exact", "_is_strict", "_specified")

    def __init__(self, components: Sequence[ComponentData], is_strict: bool) -> None:
        self._exact: dict[str, str | None] = {}
        self._specified: set[str] = set()
        self._is_strict = is_strict
        for each in components:
            self._add(each)
        kinds = self._exact.keys() | self._specified
        if IP in kinds and len(kinds) > 1:
            raise _invalid("a filter for an ip has no other component")

    def _add(self, component: ComponentData) -> None:
        kind = component.entity_type
        if not kind:
            raise _invalid("the entity type of a component is empty")
        if kind in self._exact or kind in self._specified:
            raise _invalid(f"the entity type {kind} is in the filter twice")
        if kind not in _TYPES:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"there is no entity type {kind}")
        match_type, name = component.match_type, component.match
        if match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise _invalid(f"there is no match type {match_type}")
        if (name is None) is (match_type == EXACT):
            raise _invalid(
                f"match type {match_type} {'without' if name is None else 'with'} a name"
            )
        if match_type == SPECIFIED:
            self._specified.add(kind)
        else:
            self._exact[kind] = name

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether it finds this entity."""
        if self._is_strict and len(entity) != len(self._exact) + len(self._specified):
            return False
        names = dict(entity)
        return self._specified <= names.keys() and all(
            kind in names and names[kind] == name for kind, name in self._exact.items()
        )
