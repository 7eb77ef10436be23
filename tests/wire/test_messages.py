"""Every message at every version: what is written is read back, and says how long it is at
least.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.sampling import Sampler, all_messages, all_versions, version_name
from twisted_broker.api.routes import ROUTES, ZOOKEEPER_ROUTES
from twisted_broker.wire import messages
from twisted_broker.wire.schema import (
    Message,
    Record,
    Request,
    Struct,
    decode,
    decode_from,
    encode,
    encode_parts,
    smallest_size,
)

EVERY_ROUTE = (*ROUTES, *ZOOKEEPER_ROUTES)
SENT_ONLY = {"ControlledShutdownRequest"}  # a ZooKeeper cluster's controller is Apache Kafka's


@pytest.mark.parametrize(("cls", "version"), all_versions(), ids=version_name)
@settings(
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(random=st.randoms(use_true_random=False))
def test_round_trip(cls: type[Message], version: int, random: Random) -> None:
    """Any value of any version survives; the parts of a gathered write are the same bytes; the
    smallest size is a lower bound.
    """
    message = Sampler(random).message(cls, version)
    encoded = encode(message, version)
    assert decode(cls, encoded, version) == message
    assert decode_from(cls, memoryview(b"head" + encoded + b"tail"), version, 4) == (
        message,
        4 + len(encoded),
    )
    assert b"".join(encode_parts(message, version)) == encoded
    assert smallest_size(cls, version) <= len(encoded)


@pytest.mark.parametrize(("cls", "version"), all_versions(), ids=version_name)
def test_defaults_round_trip(cls: type[Message], version: int) -> None:
    """A message made of Kafka's defaults can be encoded wherever they are not null in a field
    that cannot be; lists and structs are not shared.
    """
    message = cls()
    for field in cls.FIELDS:
        if field.kind in ("array", "structure") and getattr(message, field.name) is not None:
            assert getattr(message, field.name) is not getattr(cls(), field.name)
        if (
            field.is_in(version)
            and getattr(message, field.name) is None
            and not field.is_nullable(version)
        ):
            pytest.skip(f"{field.name} has no default in this version")
    assert decode(cls, encode(message, version), version) == message


def test_every_field_is_of_some_version() -> None:
    """A field outside its message's versions would be dead."""
    for cls in all_messages():
        _check_fields(cls, cls.versions.min, cls.versions.max)


def _check_fields(cls: type[Struct], low: int, high: int) -> None:
    assert len({field.name for field in cls.FIELDS}) == len(cls.FIELDS)
    for field in cls.FIELDS:
        assert any(field.is_in(version) for version in range(low, high + 1)), (cls, field.name)
        if isinstance(field.element, type):
            _check_fields(field.element, low, high)


# Served by several parts, which are built one after the other: each adds its row when it is whole.
COMING = {
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeTransactions",
    "ListTransactions",
    "AddRaftVoter",
    "RemoveRaftVoter",
}


def test_every_request_has_a_route() -> None:
    """Messages come with the code that serves them: nothing is there that nothing uses."""
    requests = {cls.__name__ for cls in all_messages() if issubclass(cls, Request)}
    routed = {f"{route.name}Request" for route in EVERY_ROUTE}
    assert routed <= requests
    assert requests - routed - SENT_ONLY <= {f"{name}Request" for name in COMING}


def test_every_module_has_a_route_or_records() -> None:
    """A family of messages comes with the code that serves it."""
    served = {f"{messages.__name__}.{route.messages}" for route in EVERY_ROUTE}
    served.add(f"{messages.__name__}.transactions")
    stored = {cls.__module__ for cls in all_messages() if issubclass(cls, Record)}
    assert {cls.__module__ for cls in all_messages()} == served | stored


def test_requests_and_responses_match() -> None:
    """Both sides of an API have the same key and versions, and the names go together."""
    by_name = {cls.__name__: cls for cls in all_messages()}
    requests = [cls for cls in by_name.values() if issubclass(cls, Request)]
    assert len(requests) >= len(ROUTES)
    for request in requests:
        response: Any = by_name[request.__name__.removesuffix("Request") + "Response"]
        assert (request.api_key, request.versions, request.flexible) == (
            response.api_key,
            response.versions,
            response.flexible,
        )
    assert len({request.api_key for request in requests}) == len(requests)
