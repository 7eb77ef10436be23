"""Headers: which version goes with which message, and their bytes."""

import struct

import pytest
from kafka.protocol.api_header import RequestHeader as TheirRequestHeader

from tests.wire.sampling import all_messages
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import (
    FLEXIBLE_FROM,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    is_flexible,
    request_header_version,
    response_header_version,
)
from twisted_broker.wire.schema import Request


def test_the_table_agrees_with_the_descriptions() -> None:
    """FLEXIBLE_FROM repeats what each description says about its versions."""
    assert len(FLEXIBLE_FROM) == 95
    for cls in all_messages():
        if issubclass(cls, Request):
            for version in range(cls.versions.max + 1):
                assert is_flexible(cls.api_key, version) == cls.flexible.holds(version), (
                    cls,
                    version,
                )


def test_header_versions() -> None:
    """Flexible messages have tagged fields in their headers; SaslHandshake never; the answer to
    ApiVersions never.
    """
    assert [request_header_version(1, version) for version in (0, 11, 12, 18)] == [1, 1, 2, 2]
    assert [response_header_version(1, version) for version in (0, 11, 12, 18)] == [0, 0, 1, 1]
    assert [request_header_version(18, version) for version in (0, 2, 3, 4)] == [1, 1, 2, 2]
    assert [response_header_version(18, version) for version in (0, 2, 3, 4)] == [0, 0, 0, 0]
    assert (request_header_version(17, 1), response_header_version(17, 1)) == (1, 0)


@pytest.mark.parametrize("client_id", [None, "", "a client", "kliënt 漢"])
@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 8), (0, 9), (18, 0), (18, 3), (17, 1), (92, 0)]
)
def test_request_header_round_trip(api_key: int, version: int, client_id: str | None) -> None:
    """What is written is read, the body begins behind it, and kafka-python writes the same."""
    header = RequestHeader(api_key, version, 123, client_id)
    encoded = encode_request_header(header)
    assert decode_request_header(encoded + b"body") == (header, len(encoded))
    assert decode_request_header(memoryview(encoded + b"body")) == (header, len(encoded))
    theirs = TheirRequestHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=123,
        client_id=client_id,
    )
    assert theirs.encode(flexible=is_flexible(api_key, version)) == encoded


@pytest.mark.parametrize(("api_key", "version", "size"), [(0, 8, 4), (0, 9, 5), (18, 3, 4)])
def test_response_header_round_trip(api_key: int, version: int, size: int) -> None:
    encoded = encode_response_header(-5, api_key, version)
    assert len(encoded) == size
    assert decode_response_header(encoded + b"body", api_key, version) == (-5, size)


def test_unknown_tagged_fields_in_headers_are_skipped() -> None:
    """A later peer may put fields there."""
    request = struct.pack(">hhih", 0, 9, 1, -1) + b"\2\0\1x\7\0"
    assert decode_request_header(request + b"body") == (RequestHeader(0, 9, 1), 16)
    assert decode_response_header(b"\0\0\0\1" + b"\1\0\2xx" + b"body", 0, 9) == (1, 9)


@pytest.mark.parametrize(
    "frame", [encode_request_header(RequestHeader(0, 9, 1, "abc"))[:length] for length in range(14)]
)
def test_every_truncation_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode_request_header(frame)


@pytest.mark.parametrize("length", [-2, -32768, 4, 32767])
def test_client_id_lengths(length: int) -> None:
    """Negative other than null, and beyond the end."""
    with pytest.raises(WireError):
        decode_request_header(struct.pack(">hhih", 3, 0, 1, length) + b"abc")


@pytest.mark.parametrize("api_key", [-1, 95, 32767, -32768])
def test_keys_that_do_not_exist(api_key: int) -> None:
    with pytest.raises(WireError, match="no API"):
        decode_request_header(struct.pack(">hhih", api_key, 0, 1, -1))
    with pytest.raises(WireError, match="no API"):
        response_header_version(api_key, 0)
