"""Who asks: a type and a name.

Source: Kafka's `KafkaPrincipal`. Leaves out: how a principal is proved (SASL, TLS), delegation tokens.
"""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """`str()` gives Kafka's written form, `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
