"""TLS for a broker: the factories of its listeners, and the connections that it makes.

1. A listener's client is refused before its first request is read: no certificate where one is
   required, one that is not trusted, a subject without a name.
2. A server that we call is refused unless its certificate is trusted, and for the name by which it
   was called (`ssl.endpoint.identification.algorithm`; empty: for any name).
3. A failed handshake is one line, and a flood of them one line a minute for each reason of an
   address. Beyond 64 of these, or 8 of one address, the others share a line.

Ring 2. Source: Kafka's `SslChannelBuilder`, `SslTransportLayer`, RFC 9110 (names in certificates),
by service-identity. Not here: settings (`net/tls_context.py`), bytes (`net/tls_protocol.py`).
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from OpenSSL import SSL
from service_identity import CertificateError, VerificationError
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import ClientFactory, Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.interfaces import IClock, INetwork
from twisted_broker.net.connection import one_line
from twisted_broker.net.connector import PeerRefused
from twisted_broker.net.tls_context import UNREADABLE, TlsSettings
from twisted_broker.net.tls_protocol import HANDSHAKE_SECONDS, TlsProtocol
from twisted_broker.security.key_store import alternative_names, subject_of
from twisted_broker.security.principal import Principal
from twisted_broker.security.principal_mapping import NoRuleMatches
from twisted_broker.security.security_protocol import SecurityProtocol

_LINE_SECONDS = 60.0
_MOST_REASONS, _MOST_OF_ADDRESS = 64, 8
_OTHER_REASONS = "for one of many other reasons"

_logger = Logger(namespace="replog.tls")


class TlsRefused(PeerRefused):
    """The other side and we do not agree on TLS; `str()` is one line."""


class FailedHandshakes:
    """The lines about clients of one listener."""

    def __init__(self, listener: str, clock: IClock) -> None:
        self._listener, self._clock = listener, clock
        # By address and reason: since when, and how many since the line.
        self._silent: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, host: str, words: str) -> None:
        now, words = self._clock.seconds(), one_line(words)
        key = self._key(host, words, now)
        until, count = self._silent.get(key, (now, 0))
        if now < until:
            self._silent[key] = until, count + 1
            return
        self._silent[key] = now + _LINE_SECONDS, 0
        _logger.warn(
            "listener {listener}: no TLS connection with {host}: {words}{more}",
            listener=self._listener,
            host=host,
            words=key[1],
            more=f" ({count + 1} such connections since the last line)" if count else "",
        )

    def _key(self, host: str, words: str, now: float) -> tuple[str, str]:
        """The key of one line a minute: beyond the bounds the reasons of an address share it, then
        addresses do.
        """
        key = host, words
        if key in self._silent:
            return key
        if self._is_full(host):
            # Those with a count stay a minute longer: their next line says it.
            self._silent = {
                each: (until, count)
                for each, (until, count) in self._silent.items()
                if now < until + (_LINE_SECONDS if count else 0.0)
            }
            if self._is_full(host):
                key = host, _OTHER_REASONS
                if key not in self._silent and len(self._silent) >= _MOST_REASONS:
                    key = "", _OTHER_REASONS
        return key

    def _is_full(self, host: str) -> bool:
        held = self._silent
        return len(held) >= _MOST_REASONS or (
            sum(each == host for each, _ in held) >= _MOST_OF_ADDRESS
        )


class TlsServerFactory(Factory):
    """Puts TLS beneath the connections of `factory`, a listener's."""

    noisy = False

    def __init__(self, factory: Any, settings: TlsSettings, clock: IClock) -> None:
        self._factory, self._settings, self._clock = factory, settings, clock
        self._failed = FailedHandshakes(settings.listener, clock)
        self.seconds = HANDSHAKE_SECONDS

    def logPrefix(self) -> str:
        prefix: str = self._factory.logPrefix()
        return prefix

    def buildProtocol(self, addr: Any) -> TlsProtocol | None:
        inner = self._factory.buildProtocol(addr)
        if inner is None:
            return None
        connection = SSL.Connection(self._settings.context, None)
        connection.set_accept_state()
        return TlsProtocol(inner, connection, self, self._clock, True, self.seconds)

    def accept_pause(self) -> float:
        """The listener's (`net/connection_limits.py`), for the port."""
        seconds: float = self._factory.accept_pause()
        return seconds

    # of `Peer`

    def established(self, tls: TlsProtocol) -> str | None:
        """Takes the client's name from its certificate; returns why it is refused, if it is."""
        if not self._settings.gives_principals:
            return None
        certificate = tls.connection.get_peer_certificate()
        if certificate is None:
            return None
        try:
            subject = subject_of(certificate.to_cryptography())
        except Exception:  # of what OpenSSL passed and cryptography does not: of any type
            return f"its certificate is refused: {UNREADABLE}"
        try:
            name = self._settings.mapper.name_of(subject)
        except NoRuleMatches as error:
            return str(error)
        tls.inner.principal = Principal("User", name)
        return None

    def ready(self, tls: TlsProtocol) -> None:
        """The client's requests follow."""

    def failed(self, tls: TlsProtocol, words: str) -> None:
        host = getattr(tls.getPeer(), "host", "memory") if tls.transport is not None else "memory"
        self._factory.failed_handshakes += 1
        self._failed.add(host, words)


class _Call(ClientFactory):
    """One connection that is made: TCP, then TLS."""

    noisy = False

    def __init__(
        self,
        factory: Any,
        settings: TlsSettings,
        clock: IClock,
        host: str,
        port: int,
        timeout: float,
    ) -> None:
        self._factory, self._settings, self._clock = factory, settings, clock
        self._host, self._port, self._timeout = host, port, timeout
        self._started = clock.seconds()
        self._tls: TlsProtocol | None = None
        self._attempt: Deferred[Any] | None = None
        self.connected: Deferred[Any] = Deferred(self._cancel)

    def start(self, network: INetwork) -> Deferred[Any]:
        """Fires with the protocol of the factory."""
        attempt = self._attempt = network.connect(self._host, self._port, self, self._timeout)
        attempt.addErrback(self._not_connected)
        return self.connected

    def buildProtocol(self, addr: Any) -> TlsProtocol:
        connection = SSL.Connection(self._settings.context, None)
        connection.set_connect_state()
        if not _is_address(self._host):
            connection.set_tlsext_host_name(self._host.encode("idna"))
        inner = self._factory.buildProtocol(addr)
        left = max(self._started + self._timeout - self._clock.seconds(), 0.001)
        self._tls = TlsProtocol(inner, connection, self, self._clock, False, left)
        return self._tls

    # of `Peer`

    def established(self, tls: TlsProtocol) -> str | None:
        if self._settings.verifies_host:
            verify = verify_ip_address if _is_address(self._host) else verify_hostname
            try:
                verify(tls.connection, self._host)
            except (VerificationError, CertificateError):
                certificate = tls.connection.get_peer_certificate()
                names = alternative_names(certificate.to_cryptography()) if certificate else ()
                return (
                    f"its certificate is not for {self._host}, but for "
                    f"{', '.join(sorted(names)) or 'no name'}: advertise one of its names, or "
                    "give it a certificate for this one"
                )
            except Exception:  # as in a listener
                return f"its certificate is refused: {UNREADABLE}"
        return None

    def ready(self, tls: TlsProtocol) -> None:
        if not self.connected.called:
            self.connected.callback(tls.inner)

    def failed(self, tls: TlsProtocol, words: str) -> None:
        line = f"no TLS connection with {self._host}:{self._port}: {words}"
        self._refuse(TlsRefused(line, words))

    def _not_connected(self, reason: Failure) -> None:
        if not self.connected.called:
            self.connected.errback(reason)

    def _refuse(self, error: Exception) -> None:
        if not self.connected.called:
            self.connected.errback(Failure(error))

    def _cancel(self, connected: Deferred[Any]) -> None:
        if self._tls is not None and self._tls.transport is not None:
            self._tls.abortConnection()
        elif self._attempt is not None:
            self._attempt.cancel()
        if not connected.called:
            connected.errback(Failure(CancelledError()))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class TlsConnector:
    """Connections to listeners of one name, with the certificates of `settings`."""

    def __init__(
        self,
        clock: IClock,
        config: ListenerConfig,
        protocol: SecurityProtocol,
        settings: TlsSettings,
    ) -> None:
        self.protocol = protocol
        self.config: ListenerConfig | None = config
        self._settings, self._clock = settings, clock

    def connect(
        self, network: INetwork, host: str, port: int, factory: Any, timeout: float
    ) -> Deferred[Any]:
        return _Call(factory, self._settings, self._clock, host, port, timeout).start(network)
