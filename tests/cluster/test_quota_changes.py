"""Quotas of clients: what the controller writes, what it refuses, which ones a filter finds."""

from __future__ import annotations

import math

import pytest

from twisted_broker.cluster.quota_changes import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    QuotaFilter,
    alter_client_quotas,
    check_count,
    entity_of,
)
from twisted_broker.image.metadata_image import EMPTY, MetadataImage, QuotaEntity
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.quotas import (
    AlteredEntry,
    ComponentData,
    OpData,
    QuotaEntityData,
)

Parts = list[tuple[str, str | None]]
USER: Parts = [("user", "u")]
BOTH: Parts = [("user", "u"), ("client-id", None)]


def entry(parts: Parts, *ops: tuple[str, float | None]) -> AlteredEntry:
    return AlteredEntry(
        entity=[QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[OpData(key=key, value=value or 0, remove=value is None) for key, value in ops],
    )


def altered(image: MetadataImage, *entries: AlteredEntry) -> tuple[MetadataImage, list[int]]:
    """The image after it, and the codes."""
    found, results = alter_client_quotas(image, entries)
    codes = [0 if refused is None else int(refused.code) for refused in results.values()]
    return image.apply(found)[0], codes


def test_a_request_has_10_000_changes_at_most() -> None:
    most = [entry([("user", str(n))], ("producer_byte_rate", 1)) for n in range(10_000)]
    check_count(most)
    with pytest.raises(BrokerError) as caught:
        check_count([*most, entry(USER, ("producer_byte_rate", 1))])
    assert caught.value.code == ErrorCode.POLICY_VIOLATION


def test_an_entity_gets_changes_and_loses_its_quotas() -> None:
    image, codes = altered(
        EMPTY, entry(BOTH, ("producer_byte_rate", 5), ("request_percentage", 0.5))
    )
    both: QuotaEntity = (("client-id", None), ("user", "u"))
    assert codes == [0]
    assert image.client_quotas == {both: {"producer_byte_rate": 5, "request_percentage": 0.5}}
    image, delta = image.apply(
        alter_client_quotas(image, [entry(BOTH, ("producer_byte_rate", 6))])[0]
    )
    assert image.client_quotas[both]["producer_byte_rate"] == 6 and delta.quotas == {both}
    image, _ = altered(
        image, entry(BOTH, ("producer_byte_rate", None), ("request_percentage", None))
    )
    assert image.client_quotas == {}


def test_only_what_differs_is_written() -> None:
    image, _ = altered(EMPTY, entry(USER, ("producer_byte_rate", 5)))
    same = entry(USER, ("producer_byte_rate", 5), ("consumer_byte_rate", None))
    assert alter_client_quotas(image, [same])[0] == []


@pytest.mark.parametrize(
    "refused",
    [
        entry([], ("producer_byte_rate", 1)),
        entry([("group", "g")], ("producer_byte_rate", 1)),
        entry([("user", "")], ("producer_byte_rate", 1)),
        entry([("ip", "10.0.0.1"), ("user", "u")], ("producer_byte_rate", 1)),
        entry([("ip", "a-host")], ("connection_creation_rate", 1)),
        entry([("ip", "10.0.0.1")], ("producer_byte_rate", 1)),
        entry(USER, ("connection_creation_rate", 1)),
        entry(USER, ("no_such_key", 1)),
        entry(USER, ("producer_byte_rate", 0)),
        entry(USER, ("producer_byte_rate", -1)),
        entry(USER, ("producer_byte_rate", 1.5)),
        entry(USER, ("producer_byte_rate", math.inf)),
        entry(USER, ("producer_byte_rate", math.nan)),
        entry(USER, ("request_percentage", math.nan)),
        entry([("ip", None)], ("connection_creation_rate", 2.0**31)),
        entry(USER, ("producer_byte_rate", 1), ("producer_byte_rate", 1)),
    ],
)
def test_what_kafka_refuses_is_refused_and_writes_nothing(refused: AlteredEntry) -> None:
    good = entry([("client-id", "c")], ("controller_mutation_rate", 0.5))
    image, codes = altered(EMPTY, refused, good)
    assert codes == [ErrorCode.INVALID_REQUEST, 0]
    assert list(image.client_quotas) == [(("client-id", "c"),)]


def test_an_entity_that_is_named_again_is_refused_and_what_came_first_stays() -> None:
    again = entry([("client-id", None), ("user", "u")], ("producer_byte_rate", 2))
    image, codes = altered(EMPTY, entry(BOTH, ("producer_byte_rate", 1)), again)
    assert codes == [ErrorCode.INVALID_REQUEST]
    assert image.client_quotas[entity_of(again.entity)] == {"producer_byte_rate": 1}
    # in a later part of a long request
    found, results = alter_client_quotas(image, [again], {entity_of(again.entity)})
    assert not found and list(results.values()) != [None]


# filters

ENTITIES: list[Parts] = [
    [("user", "u")],
    [("user", None)],
    [("client-id", "c"), ("user", "u")],
    [("client-id", None), ("user", "u")],
    [("client-id", "c")],
    [("ip", "10.0.0.1")],
]


def component(kind: str, match_type: int, name: str | None = None) -> ComponentData:
    return ComponentData(entity_type=kind, match_type=match_type, match=name)


@pytest.mark.parametrize(
    ("components", "is_strict", "expected"),
    [
        ([], False, [0, 1, 2, 3, 4, 5]),
        ([], True, []),
        ([component("user", EXACT, "u")], False, [0, 2, 3]),
        ([component("user", EXACT, "u")], True, [0]),
        ([component("user", DEFAULT)], False, [1]),
        ([component("user", SPECIFIED)], False, [0, 1, 2, 3]),
        ([component("user", SPECIFIED), component("client-id", EXACT, "c")], True, [2]),
        ([component("client-id", DEFAULT)], False, [3]),
        ([component("ip", SPECIFIED)], True, [5]),
    ],
)
def test_a_filter_finds(
    components: list[ComponentData], is_strict: bool, expected: list[int]
) -> None:
    chosen = QuotaFilter(components, is_strict)
    found = [index for index, each in enumerate(ENTITIES) if chosen.matches(tuple(each))]
    assert found == expected


@pytest.mark.parametrize(
    ("code", "components"),
    [
        (ErrorCode.INVALID_REQUEST, [component("", SPECIFIED)]),
        (ErrorCode.INVALID_REQUEST, [component("user", SPECIFIED), component("user", DEFAULT)]),
        (ErrorCode.UNSUPPORTED_VERSION, [component("group", SPECIFIED)]),
        (ErrorCode.INVALID_REQUEST, [component("user", EXACT)]),
        (ErrorCode.INVALID_REQUEST, [component("user", DEFAULT, "u")]),
        (ErrorCode.INVALID_REQUEST, [component("user", SPECIFIED, "u")]),
        (ErrorCode.INVALID_REQUEST, [component("user", 9)]),
        (ErrorCode.INVALID_REQUEST, [component("user", SPECIFIED), component("ip", SPECIFIED)]),
    ],
)
def test_a_filter_that_makes_no_sense(code: ErrorCode, components: list[ComponentData]) -> None:
    with pytest.raises(BrokerError) as refused:
        QuotaFilter(components, False)
    assert refused.value.code == code
