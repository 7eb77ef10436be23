"""Request and response headers, which every frame starts with.

1. A request header is v2 (tagged fields) for a flexible version, else v1. (v0, without a client id,
   was ControlledShutdown v0 only: not spoken.)
2. A response header is v1 (tagged fields) for a flexible version, else v0; that of ApiVersions is
   always v0, so that a client can read it before it knows what the server speaks.
3. The client id keeps its classic form in v2 as well. Tagged fields of headers are skipped, never
   kept.
Source: RequestHeader.json, ResponseHeader.json, KIP-482, KIP-511; FLEXIBLE_FROM says in one place
what the descriptions say one by one (a test holds them together), so that reading a header needs no
family of messages.
"""

import struct
from struct import Struct

from twisted_broker.wire.errors import WireError
from twisted_broker.wire.primitives import Buffer, skip_tagged_fields

API_VERSIONS = 18
NEVER = 32768
# First flexible version by API key: 0-92 of Kafka 4.3.1, 93 and 94 of 4.4.0.
FLEXIBLE_FROM = (
    (9, 12, 6, 9, 4, 2, 6, 3, 8, 6)  # Produce, Fetch, ListOffsets, Metadata ...
    + (3, 6, 4, 4, 4, 5, 3, NEVER, 3, 5)  # FindCoordinator ...
    + (4, 2, 2, 4, 3, 3, 3, 1, 3, 2)  # DeleteTopics ...
    + (2, 2, 4, 2, 2, 2, 2, 2, 2, 2)  # CreateAcls ...
    + (2, 2, 2, 2, 1, 0, 0, NEVER, 1, 1)  # ExpireDelegationToken ...
    + (0, 0, 0, 1, 1, 0, 0, 0, 0, 0)  # DescribeUserScramCredentials ...
    + (0,) * 35  # DescribeCluster and all that came later
)

# Ours, far above Kafka's: `AppendMirrored` (messages/mirror.py). Always flexible.
APPEND_MIRRORED = 30_000

_FIXED = Struct(">hhih")
_RESPONSE = Struct(">i")


class RequestHeader:
    """`client_id` is None when the client sent none."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None = None
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestHeader) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"RequestHeader({self.api_key}, {self.api_version}, {self.correlation_id}, "
            f"{self.client_id!r})"
        )


def is_flexible(api_key: int, api_version: int) -> bool:
    """Raises WireError for a key that does not exist."""
    if not 0 <= api_key < len(FLEXIBLE_FROM):
        if api_key == APPEND_MIRRORED:
            return True
        raise WireError(f"there is no API {api_key}")
    return api_version >= FLEXIBLE_FROM[api_key]


def request_header_version(api_key: int, api_version: int) -> int:
    """2 with tagged fields, else 1."""
    return 2 if is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """1 with tagged fields, else 0; always 0 for ApiVersions, whose asker does not know yet what
    the broker speaks (KIP-511).
    """
    return 1 if is_flexible(api_key, api_version) and api_key != API_VERSIONS else 0


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header and the offset of the body.

    WireError for what is not a header, an API key that does not exist included.
    """
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
        if not 0 <= api_key < len(FLEXIBLE_FROM):
            raise WireError(f"there is no API {api_key}")
        client_id, position = None, 10
        if length != -1:
            position += length
            if not 10 <= position <= len(frame):
                raise WireError(f"client id of {length} bytes in a frame of {len(frame)}")
            client_id = str(frame[10:position], "utf-8", "replace")
        if api_version >= FLEXIBLE_FROM[api_key]:
            tags = frame[position]
            position = skip_tagged_fields(frame, position + 1, tags) if tags else position + 1
    except (struct.error, IndexError):
        raise WireError(f"a frame of {len(frame)} bytes ends inside its header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def encode_request_header(header: RequestHeader) -> bytes:
    """A request up to its body, without the length in front; WireError for an API key that does
    not exist.
    """
    raw = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(raw)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, length)
    return fixed + raw + b"\0" * is_flexible(header.api_key, header.api_version)


def encode_response_header(correlation_id: int, api_key: int, api_version: int) -> bytes:
    """An answer up to its body, without the length in front."""
    return _RESPONSE.pack(correlation_id) + b"\0" * response_header_version(api_key, api_version)


def decode_response_header(frame: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """(correlation id, offset of the body) of a frame without its length.

    WireError when it ends too early.
    """
    try:
        (correlation_id,) = _RESPONSE.unpack_from(frame)
        if response_header_version(api_key, api_version) == 0:
            return correlation_id, 4
        tags = frame[4]
        return correlation_id, skip_tagged_fields(frame, 5, tags) if tags else 5
    except (struct.error, IndexError):
        raise WireError(f"a frame of {len(frame)} bytes ends inside its header") from None
