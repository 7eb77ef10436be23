"""The principal of a request: a type and a name.

1. Its written form in an Envelope is Kafka's, version 0.
2. Who came by a delegation token is equal to who came otherwise: the same permissions and quotas.
   Only requests about tokens look at `token_authenticated`.

Source: Kafka's `KafkaPrincipal`; `DefaultPrincipalData` for the written form that brokers send to
the controller. Not here: how a principal is proved (SASL, TLS).
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

    @property
    def token_authenticated(self) -> bool:
        """Whether it authenticated itself by a delegation token."""
        return False


class TokenPrincipal(Principal):
    """One that authenticated itself by a delegation token."""

    __slots__ = ()

    @property
    def token_authenticated(self) -> bool:
        return True


ANONYMOUS = Principal("User", "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """From its written form; without a colon, of no type."""
    kind, colon, name = text.partition(":")
    return Principal(kind, name) if colon else Principal("", text)


def encode_principal(principal: Principal) -> bytes:
    """For an Envelope: version 0 in two bytes, type, name, whether by a delegation token, no
    tags.
    """
    end = b"\1\0" if principal.token_authenticated else b"\0\0"
    return b"\0\0" + compact_string(principal.kind) + compact_string(principal.name) + end


def decode_principal(data: Buffer) -> Principal:
    """From an Envelope. Raises WireError."""
    try:
        if bytes(data[:2]) != b"\0\0":
            raise WireError("a principal of an unknown version")
        kind, position = read_compact_string(data, 2)
        name, position = read_compact_string(data, position)
        return (TokenPrincipal if data[position] else Principal)(kind, name)
    except IndexError:
        raise WireError("a principal that ends too early") from None
