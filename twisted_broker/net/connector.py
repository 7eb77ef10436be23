"""How connections to one kind of listener of other nodes are made: the brokers', or the
controllers'.

1. What `connect` fires with can be written to at once: a TLS handshake is over, and the certificate
   of the other side was accepted.
2. One connector serves all connections to listeners of one name, and follows changed settings.

Source: docs/ARCHITECTURE.md 3; Kafka's `ChannelBuilders.clientChannelBuilder`. Not here: which
connector a broker has (`net/listener_security.py`), requests (`net/client.py`).
"""

from __future__ import annotations

from typing import Any
from typing import Protocol as Protocol_

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.interfaces import INetwork
from twisted_broker.security.security_protocol import SecurityProtocol


class Connector(Protocol_):
    """`config`: the settings of the listener, by which this side identifies itself; None for
    plain TCP.
    """

    protocol: SecurityProtocol
    config: ListenerConfig | None

    def connect(
        self, network: INetwork, host: str, port: int, factory: Any, timeout: float
    ) -> Deferred[Any]:
        """Fires with the protocol of `factory`. `timeout` in seconds, for all of it."""
        ...


class PeerRefused(ConnectError):
    """One of the two sides does not take the other: an operator must do something.

    `words`: why, without the address; `by_sasl`: refused by SASL, otherwise by TLS; `cause`: the
    error, None where the connection only ended.
    """

    by_sasl = False

    def __init__(self, line: str, words: str, cause: Exception | None = None) -> None:
        Exception.__init__(self, line)
        self.osError = None
        self.words, self.cause = words, cause

    def __str__(self) -> str:
        return str(self.args[0])


class PlainConnector:
    """TCP. With `protocol` SASL_PLAINTEXT, the connection authenticates itself afterwards."""

    def __init__(
        self,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        config: ListenerConfig | None = None,
    ) -> None:
        self.protocol, self.config = protocol, config

    def connect(
        self, network: INetwork, host: str, port: int, factory: Any, timeout: float
    ) -> Deferred[Any]:
        connecting: Deferred[Any] = network.connect(host, port, factory, timeout)
        return connecting


PLAIN = PlainConnector()
