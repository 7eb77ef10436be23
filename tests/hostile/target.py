"""The address under fire: connections to it, over TLS and SASL where it wants them."""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.compare.hostile import exactly
from tests.compare.side import CLOSED, ROUTE_OF, SILENT, built
from twisted_broker.api.routes import Route
from twisted_broker.security.sasl.plain import MECHANISM as PLAIN
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.scram import MECHANISMS, ScramClient
from twisted_broker.wire.errors import ErrorCode, WireError
from twisted_broker.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from twisted_broker.wire.schema import Struct, decode, encode

SECONDS = 10.0
MOMENT = 0.5
"""How long an answer is waited for that need not come."""
LARGEST = 104_857_600
NONE = "NONE"
_CODES: dict[int, str] = {int(code): code.name for code in ErrorCode}


class Address(NamedTuple):
    """`ca`: a file with the authority, over TLS; `mechanism`, `user`, `password` of SASL."""

    host: str
    port: int
    ca: str = ""
    mechanism: str = ""
    user: str = ""
    password: str = ""


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def head(key: int, version: int, client_id: str = "hostile") -> bytes:
    """A request's header."""
    return encode_request_header(RequestHeader(key, version, 7, client_id))


class Wire:
    """One connection, not logged in; OSError where the other side ended it."""

    def __init__(self, address: Address, seconds: float = SECONDS, bare: bool = False) -> None:
        self.socket: socket.socket = socket.create_connection((address.host, address.port), seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.ca and not bare:
            context = ssl.create_default_context(cafile=address.ca)
            context.check_hostname = False
            self.socket = context.wrap_socket(self.socket)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self, seconds: float = SECONDS) -> bytes:
        """The next answer; TimeoutError, ConnectionError."""
        self.socket.settimeout(seconds)
        return exactly(self.socket, struct.unpack(">i", exactly(self.socket, 4))[0])

    def kind(self, seconds: float = MOMENT) -> str:
        """What comes next: CLOSED, SILENT, or that there is an answer."""
        try:
            return f"(an answer of {len(self.frame(seconds))} bytes)"
        except TimeoutError:
            return SILENT
        except OSError:
            return CLOSED

    def call(self, api: str, version: int, fields: dict[str, Any], seconds: float = SECONDS) -> Any:
        """The decoded answer."""
        route = ROUTE_OF[api]
        body = encode(built(route.request_class(), version, fields), version)
        self.send(framed(head(route.api_key, version) + body))
        return answer_of(route, version, self.frame(seconds))


def answer_of(route: Route, version: int, frame: bytes) -> Any:
    """WireError where it is none."""
    _, offset = decode_response_header(frame, route.api_key, version)
    return decode(route.response_class(), frame, version, offset)


def codes_of(answer: Struct) -> set[str]:
    """The names of all error codes in an answer."""
    found: set[str] = set()
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            found.add(_CODES.get(value, str(value)))
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Struct):
                found |= codes_of(each)
    return found


class Target:
    """Requests to the address, each on a connection of its own unless said otherwise."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with self.logged_in() as wire:
            found = wire.call("ApiVersions", 0, {})
        self.versions = {
            each.api_key: (each.min_version, each.max_version) for each in found.api_keys
        }

    @property
    def has_sasl(self) -> bool:
        return bool(self.address.mechanism)

    def stranger(self, bare: bool = False) -> Wire:
        """A connection that has not logged in; `bare`: without TLS as well."""
        return Wire(self.address, bare=bare)

    def logged_in(self) -> Wire:
        wire = Wire(self.address)
        if self.address.mechanism:
            log_in(wire, self.address)
        return wire

    def version(self, api: str) -> int:
        """The newest that both sides have; -1 for none."""
        route = ROUTE_OF[api]
        low, high = self.versions.get(route.api_key, (0, -1))
        version = min(high, max(route.broker.max, route.controller.max))
        return version if version >= low else -1

    def request(self, api: str, version: int | None = None, **fields: Any) -> bytes:
        """Header and body, without the length."""
        version = self.version(api) if version is None else version
        route = ROUTE_OF[api]
        return head(route.api_key, version) + encode(
            built(route.request_class(), version, fields), version
        )

    def result(self, frame: bytes, wire: Callable[[], Wire], seconds: float = SECONDS) -> str:
        """What comes back for a frame: error codes, CLOSED or SILENT."""
        with wire() as connection:
            try:
                connection.send(framed(frame))
                answer = connection.frame(seconds)
            except TimeoutError:
                return SILENT
            except OSError:
                return CLOSED
        return kind_of(frame, answer)


def kind_of(frame: bytes, answer: bytes) -> str:
    """Error codes of an answer, sorted; what is no answer to that request is said to be none."""
    key, version = struct.unpack(">hh", frame[:4])
    route = next((each for each in ROUTE_OF.values() if each.api_key == key), None)
    if route is None:
        return "(an answer to an unknown API)"
    for number in (version, 0):  # ApiVersions answers what it cannot read in version 0
        try:
            codes = codes_of(answer_of(route, number, answer))
        except (WireError, ValueError):
            continue
        return ", ".join(sorted(codes - {NONE})) or NONE
    return "(an answer of another version)"


def log_in(wire: Wire, address: Address) -> None:
    """PermissionError where it is refused."""
    client: PlainClient | ScramClient
    if address.mechanism == PLAIN:
        client = PlainClient(address.user, address.password)
    else:
        mechanism = MECHANISMS[address.mechanism]
        client = ScramClient(mechanism, address.user, address.password, secrets.token_urlsafe(12))
    answer = wire.call("SaslHandshake", 1, {"mechanism": address.mechanism})
    token: bytes | None = client.first()
    while token is not None and not answer.error_code:
        answer = wire.call("SaslAuthenticate", 1, {"auth_bytes": token})
        token = client.respond(bytes(answer.auth_bytes)) if not answer.error_code else None
    if answer.error_code:
        raise PermissionError(f"{address.user} is refused: {answer}")
