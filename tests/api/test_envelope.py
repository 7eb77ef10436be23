"""What `api/envelope.py` promises, against a controller in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.security.principal import Principal, decode_principal, encode_principal
from twisted_broker.wire.errors import ErrorCode, WireError
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.broker_lifecycle import EnvelopeRequest
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from twisted_broker.wire.schema import decode, encode

ALICE = encode_principal(Principal("User", "alice"))


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker().start()
    yield made
    made.stop()


def inside(request: Any, version: int) -> bytes:
    return encode_request_header(RequestHeader(request.api_key, version, 99, "client")) + encode(
        request, version
    )


def ask(
    broker: MemoryBroker,
    data: bytes,
    principal: bytes | None = ALICE,
    address: bytes = b"\x7f\0\0\1",
) -> Any:
    return broker.ask(
        EnvelopeRequest(
            request_data=data, request_principal=principal, client_host_address=address
        ),
        0,
        port=9093,
    )


def test_the_request_inside_is_answered_in_its_own_version(broker: MemoryBroker) -> None:
    """The inner answer has the inner correlation id and version; the envelope's own error stays
    NONE, whatever the answer says (KIP-590).
    """
    for version in (2, 7):
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)],
            timeout_ms=1000,
        )
        answer = ask(broker, inside(request, version))
        assert answer.error_code == 0
        correlation_id, offset = decode_response_header(answer.response_data, 19, version)
        read = decode(CreateTopicsResponse, answer.response_data, version, offset)
        assert correlation_id == 99
        assert read.topics[0].error_code == (0 if version == 2 else ErrorCode.TOPIC_ALREADY_EXISTS)


def test_only_what_is_passed_on_is_accepted(broker: MemoryBroker) -> None:
    """Neither APIs of brokers, nor those of controllers only, nor an envelope in an envelope."""
    assert ask(broker, inside(MetadataRequest(), 8)).error_code == ErrorCode.UNSUPPORTED_VERSION
    nested = EnvelopeRequest(
        request_data=b"", request_principal=ALICE, client_host_address=b"\x7f\0\0\1"
    )
    assert ask(broker, inside(nested, 0)).error_code == ErrorCode.INVALID_REQUEST


LOCAL, SOUND = b"\x7f\0\0\1", inside(CreateTopicsRequest(), 7)


@pytest.mark.parametrize(
    ("data", "principal", "address", "code"),
    [
        (b"", ALICE, LOCAL, ErrorCode.UNSUPPORTED_VERSION),
        (SOUND[:-1], ALICE, LOCAL, ErrorCode.UNSUPPORTED_VERSION),
        (SOUND, b"\0\7", LOCAL, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (SOUND, None, LOCAL, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (b"", b"", LOCAL, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (SOUND, ALICE, b"\x7f", ErrorCode.INVALID_REQUEST),
        (b"", ALICE, b"\x7f", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_broken_envelope_is_refused(
    broker: MemoryBroker, data: bytes, principal: bytes | None, address: bytes, code: ErrorCode
) -> None:
    """Kafka's code for the first thing that is wrong (principal, address, request), and the
    connection of the broker that sent it goes on.
    """
    assert ask(broker, data, principal, address).error_code == code


def test_principals_travel() -> None:
    """Written and read back; damage is a WireError."""
    assert decode_principal(ALICE) == Principal("User", "alice")
    for end in range(len(ALICE) - 2):
        with pytest.raises(WireError):
            decode_principal(ALICE[:end])
