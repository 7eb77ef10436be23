"""Connections of our own clients to brokers of a secured cluster.

Owns `client_connector`, and the one line of a connection that was refused.

1. The same TLS and SASL as between nodes (`net/tls.py`, `net/sasl_connector.py`); only the words
   are a client's: each line names the property to look at.
2. Certificates that were renewed count for the next connection.
3. A plain client loads nothing of TLS or SASL.

Source: Kafka's `ChannelBuilders.clientChannelBuilder`. Not here: properties
(`security/client_security.py`), requests (`net/client.py`).
"""

from __future__ import annotations

import posixpath
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.python.failure import Failure

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.interfaces import IFileSystem, INetwork, Runtime
from twisted_broker.net.connector import PLAIN, Connector, PeerRefused, PlainConnector
from twisted_broker.net.frames import NotKafka
from twisted_broker.security.client_security import (
    JAAS,
    MECHANISM,
    PROTOCOL,
    TOKEN_URL,
    USER,
    ClientSecurity,
)
from twisted_broker.security.sasl import oauth_client
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.wire.errors import ErrorCode, WireError

_LONGEST_TOKEN = 1 << 16
_TLS_HINTS = (
    # What is in the words, and what a client's user does about it.
    ("trust store", "set ssl.truststore.location to the authority of the broker's certificate"),
    (
        "its certificate is not for",
        "here: call it by one of these names, or set ssl.endpoint.identification.algorithm= "
        "(empty) to accept any",
    ),
    ("its certificate is refused", ""),
    ("it refused us", "look at ssl.keystore.location, ssl.enabled.protocols, ssl.cipher.suites"),
    ("unsupported protocol", "look at ssl.enabled.protocols"),
)


class SecurityRefused(ConnectError):
    """The broker did not let this client in, or the client did not trust it. `words`: why, and the
    property to look at.
    """

    def __init__(self, address: str, words: str) -> None:
        Exception.__init__(self, address, words)
        self.osError = None
        self.address, self.words = address, words

    def __str__(self) -> str:
        return f"{self.address}: {self.words}"


def client_connector(runtime: Runtime, security: ClientSecurity, client_id: str) -> Connector:
    """Raises ConfigError."""
    protocol = security.protocol
    if protocol is SecurityProtocol.PLAINTEXT:
        return PLAIN
    files = runtime.key_files or runtime.files
    return _ClientConnector(runtime, security, files, client_id)


class _ClientConnector:
    """TLS, SASL or both."""

    def __init__(
        self, runtime: Runtime, security: ClientSecurity, files: IFileSystem, client_id: str
    ) -> None:
        protocol = self.protocol = security.protocol
        self.config: ListenerConfig | None = security
        self._security = security
        self._tls: Any = None
        self._connector: Connector = PlainConnector(protocol, security)
        if protocol.uses_tls:
            from twisted_broker.net.listener_security import tls_settings

            self._tls = tls_settings(security, files, protocol, PROTOCOL, protocol.name)
            from twisted_broker.net.tls import TlsConnector

            self._connector = TlsConnector(runtime.clock, security, protocol, self._tls)
        if protocol.uses_sasl:
            from twisted_broker.net.sasl_connector import SaslConnector

            class Sasl(SaslConnector):
                def failed(self, address: str, reason: str, mechanism: str) -> None:
                    """Whoever connects gets the line."""

            login = security.login(lambda path: _token_bytes(files, path))
            self._connector = Sasl(self._connector, login, runtime.clock, client_id)

    def connect(
        self, network: INetwork, host: str, port: int, factory: Any, timeout: float
    ) -> Deferred[Any]:
        """Fails with `SecurityRefused`, too."""
        if self._tls is not None:
            self._tls.refresh()
        connecting = self._connector.connect(network, host, port, factory, timeout)
        return connecting.addErrback(self._refused, f"{host}:{port}")

    def _refused(self, failure: Failure, address: str) -> Failure:
        error = failure.value
        if not isinstance(error, PeerRefused):
            return failure  # nobody is there: no matter of security
        words = error.words
        if error.by_sasl:
            words = f"authentication failed: {words}; {self._sasl_hint(error.cause)}"
        else:
            words = f"no TLS connection: {_with_hint(words)}"
        return Failure(SecurityRefused(address, words))

    def _sasl_hint(self, failure: Exception | None) -> str:
        code = getattr(failure, "code", ErrorCode.NONE)
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return f"look at {MECHANISM}"
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            return f"this listener has no SASL: look at {PROTOCOL}={self.protocol.name}"
        if failure is None or isinstance(failure, WireError):
            return f"does this listener speak {self.protocol.name}? Look at {PROTOCOL}"
        if (self._security.text(MECHANISM) or "").upper() == oauth_client.MECHANISM:
            return f"look at {TOKEN_URL}, or at what gives the tokens"
        return f"look at {JAAS if self._security.text(JAAS) else USER}"


def lost_words(error: Exception, protocol: SecurityProtocol) -> str:
    """Why a connection ended, or broke the protocol, before the broker answered anything but
    ApiVersions, which it answers to every client.
    """
    words = str(error) or type(error).__name__
    if isinstance(error, ConnectionClosed | WireError) and not isinstance(error, NotKafka):
        words += f" (does this listener speak {protocol.name}? Look at {PROTOCOL})"
    return words


def _with_hint(words: str) -> str:
    for part, hint in _TLS_HINTS:
        if part in words:
            return f"{words}; {hint}" if hint else words
    return f"{words}; look at {PROTOCOL}"


def _token_bytes(files: IFileSystem, path: str) -> bytes:
    """Raises OSError."""
    path = posixpath.abspath(path)
    if files.exists(path) and not files.is_file(path):
        raise OSError("it is no regular file")  # to open a FIFO would hold the reactor
    file = files.open(path, read_only=True)
    try:
        return file.read_at(0, min(file.size(), _LONGEST_TOKEN))
    finally:
        file.close()
