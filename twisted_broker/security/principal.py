"""The principal of a request: a type and a name.

1. Its written form in an Envelope is Kafka's, version 0.

Source: Kafka's `KafkaPrincipal`; `DefaultPrincipalData` for the written form that brokers send to
the controller. Not here: how a principal is proved (SASL, TLS), delegation tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.wire.errors import WireError
from twisted_broker.wire.primitives import Buffer, compact_string, read_compact_string


class Principal(NamedTuple):
    """`str()` gives Kafka's written form, `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


def encode_principal(principal: Principal) -> bytes:
    """For an Envelope: version 0 in two bytes, type, name, not by a delegation token, no tags."""
    return b"\0\0" + compact_string(principal.kind) + compact_string(principal.name) + b"\0\0"


def decode_principal(data: Buffer) -> Principal:
    """From an Envelope. Raises WireError."""
    try:
        if bytes(data[:2]) != b"\0\0":
            raise WireError("a principal of an unknown version")
        kind, position = read_compact_string(data, 2)
        name, position = read_compact_string(data, position)
        return Principal(kind, name)
    except IndexError:
        raise WireError("a principal that ends too early") from None
