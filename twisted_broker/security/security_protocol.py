"""The protocol of a listener beneath Kafka's: plain TCP or TLS, with SASL or without.

Owns `SecurityProtocol`, the parsing of `listener.security.protocol.map`, and the protocol that
each name of a listener stands for.

1. A name that the map does not have, has no protocol: nothing is guessed, the start is refused.
2. Where the setting is not given, the protocols' own names stand for themselves; names in
   `controller.listener.names` stand for PLAINTEXT, unless any listener is named SSL, SASL_PLAINTEXT
   or SASL_SSL: a cluster that wants security does not get a plain controller by default.

Source: Kafka's `SecurityProtocol`, `KafkaConfig.effectiveListenerSecurityProtocolMap`. Not here:
the listeners' addresses (`net/listeners.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from twisted_broker.settings import ConfigError

PROTOCOL_MAP = "listener.security.protocol.map"
SASL_TO_BROKERS = "sasl.mechanism.inter.broker.protocol"
SASL_TO_CONTROLLERS = "sasl.mechanism.controller.protocol"
"""The settings that name the mechanism by which a node authenticates itself to others."""


class SecurityProtocol(IntEnum):
    """With Kafka's numbers, as in a broker's registration."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


_NAMES = ", ".join(each.name for each in SecurityProtocol)


def protocol_named(name: str, setting: str) -> SecurityProtocol:
    """In any case, as Kafka. Raises ConfigError."""
    try:
        return SecurityProtocol[name.strip().upper()]
    except KeyError:
        raise ConfigError(setting, name, f"one of {_NAMES}") from None


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Names of listeners, in capitals, with their protocols. Raises ConfigError."""
    found: dict[str, SecurityProtocol] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = entry.partition(":")
        name = name.strip().upper()
        if not colon or not name:
            raise ConfigError(PROTOCOL_MAP, entry, "a list of NAME:PROTOCOL")
        if name in found:
            raise ConfigError(PROTOCOL_MAP, entry, f"each name once, {name} is there twice")
        try:
            found[name] = protocol_named(protocol, PROTOCOL_MAP)
        except ConfigError as error:
            raise ConfigError(PROTOCOL_MAP, entry, f"for {name} {error.accepted}") from None
    return found


def effective_protocols(
    text: str, is_given: bool, listeners: Iterable[str], controllers: Iterable[str]
) -> dict[str, SecurityProtocol]:
    """`text`: the setting's value, `is_given`: it is no default. `listeners`, `controllers`: names
    in capitals, the latter of `controller.listener.names`. Raises ConfigError.
    """
    found = parse_protocol_map(text)
    controllers = list(controllers)
    secured = {each.name for each in SecurityProtocol if each is not SecurityProtocol.PLAINTEXT}
    if not is_given and secured.isdisjoint({*listeners, *controllers}):
        for name in controllers:
            found[name] = SecurityProtocol.PLAINTEXT
    return found


def protocol_of(protocols: Mapping[str, SecurityProtocol], name: str) -> SecurityProtocol:
    """Raises ConfigError for a listener that the map does not have."""
    try:
        return protocols[name]
    except KeyError:
        text = ",".join(f"{each}:{protocol.name}" for each, protocol in protocols.items())
        raise ConfigError(
            PROTOCOL_MAP, text, f"an entry for each listener, {name} has none: add {name}:PROTOCOL"
        ) from None
