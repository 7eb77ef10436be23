"""The needs of a broker's listeners' protocols: TLS beneath their connections, and connections
to other nodes, with SASL on top.

1. Nothing of TLS is loaded, or costs anything, where no listener speaks it.
2. Settings and files that cannot work are refused when the broker is made, before anything is open.
3. Changed settings count at once, changed files within `LOOK_SECONDS`, for new connections.

Source: Kafka's `ChannelBuilders`. Not here: TLS itself (`net/tls.py`),
SASL (`net/sasl_gate.py`, `net/sasl_connector.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList

from twisted_broker.broker_config import BrokerConfig, ListenerConfig, LiveConfig
from twisted_broker.interfaces import IFileSystem, Runtime
from twisted_broker.net.connector import PLAIN, Connector, PlainConnector
from twisted_broker.net.listeners import ListenerPlan
from twisted_broker.periodic import PeriodicTask
from twisted_broker.security.security_protocol import (
    PROTOCOL_MAP,
    SASL_TO_BROKERS,
    SASL_TO_CONTROLLERS,
    SecurityProtocol,
)
from twisted_broker.settings import ConfigError

if TYPE_CHECKING:
    from twisted_broker.net.access_tokens import AccessTokens
    from twisted_broker.net.tls_context import TlsSettings
    from twisted_broker.security.sasl.access_token import OAuthLogin

LOOK_SECONDS = 10.0


class ListenerSecurity:
    """Of one broker. `config`: a LiveConfig while it runs. Raises ConfigError."""

    def __init__(self, runtime: Runtime, config: BrokerConfig, plan: ListenerPlan) -> None:
        self._runtime, self._config = runtime, config
        self._protocols = dict(plan.protocols)
        self._followed: list[TlsSettings] = []
        self._tokens: list[AccessTokens] = []
        self._servers = {
            each.name: self._tls(each.name, is_server=True)
            for each in (*plan.broker, *plan.controller)
            if plan.protocols[each.name].uses_tls
        }
        self.to_brokers = self._connector(plan.inter_broker, SASL_TO_BROKERS)
        self.to_controllers = self._connector(plan.to_controllers, SASL_TO_CONTROLLERS)
        self._look = PeriodicTask(runtime.clock, self._refresh, "looking for new certificates")
        if isinstance(config, LiveConfig):
            config.subscribe(lambda live: self._refresh())

    def wrapped(self, listener: str, factory: Any) -> Any:
        """The factory of the listener's port: `factory`, over TLS where it speaks that."""
        settings = self._servers.get(listener)
        if settings is None:
            return factory
        from twisted_broker.net.tls import TlsServerFactory

        return TlsServerFactory(factory, settings, self._runtime.clock)

    def add(self, listener: str, protocol: SecurityProtocol) -> None:
        """A listener that is opened while the broker runs. Raises ConfigError."""
        self._protocols[listener] = protocol
        if protocol.uses_tls:
            self._servers[listener] = self._tls(listener, is_server=True)
            if not self._look.running:
                self._look.start(LOOK_SECONDS)

    def remove(self, listener: str) -> None:
        """One that is closed."""
        settings = self._servers.pop(listener, None)
        if settings is not None:
            self._followed.remove(settings)

    def check(self, config: BrokerConfig) -> None:
        """Whether the listeners could have the keys and certificates that `config` names. Raises
        ConfigError.
        """
        for each in self._followed:
            each.check(config)

    def start(self) -> Deferred[Any]:
        """Looks for changed files from now on; fires when access tokens were retrieved, well or
        not.
        """
        if self._followed:
            self._look.start(LOOK_SECONDS)
        return DeferredList([each.load() for each in self._tokens])

    def stop(self) -> None:
        self._look.stop()
        for each in self._tokens:
            each.stop()

    def _refresh(self) -> None:
        for each in self._followed:
            each.refresh()

    def _connector(self, listener: str, mechanism: str) -> Connector:
        """To the listeners of that name on all nodes; `mechanism`: the setting that names SASL's
        mechanism.
        """
        protocol = self._protocols.get(listener, SecurityProtocol.PLAINTEXT)
        if protocol is SecurityProtocol.PLAINTEXT:
            return PLAIN
        config = self._config.listener_config(listener)
        if not protocol.uses_tls:
            return self._with_sasl(PlainConnector(protocol, config), config, mechanism)
        settings = self._tls(listener, is_server=False)
        from twisted_broker.net.tls import TlsConnector

        connector = TlsConnector(self._runtime.clock, config, protocol, settings)
        return self._with_sasl(connector, config, mechanism)

    def _with_sasl(self, connector: Connector, config: ListenerConfig, mechanism: str) -> Connector:
        # A controller connects to nobody.
        if not connector.protocol.uses_sasl or "broker" not in self._config.names("process.roles"):
            return connector
        from twisted_broker.net.sasl_connector import SaslConnector
        from twisted_broker.security.sasl.settings import client_login

        login = client_login(config, mechanism, self._access_token)
        name = f"broker-{self._config.node_id}"
        return SaslConnector(connector, login, self._runtime.clock, name)

    def _access_token(self, login: OAuthLogin) -> Callable[[], str]:
        from twisted_broker.net.access_tokens import AccessTokens

        made = AccessTokens(login, self._runtime)
        self._tokens.append(made)
        return made.text

    def _tls(self, listener: str, is_server: bool) -> TlsSettings:
        files = self._runtime.key_files or self._runtime.files
        made = _tls_settings(self._config, files, listener, self._protocols[listener], is_server)
        self._followed.append(made)
        return made


def check_tls(config: BrokerConfig, plan: ListenerPlan, files: IFileSystem) -> None:
    """What listeners with TLS, and connections to them, need. Raises ConfigError."""
    own = {each.name for each in (*plan.broker, *plan.controller)}
    for listener in own | {plan.inter_broker, plan.to_controllers}:
        protocol = plan.protocols.get(listener, SecurityProtocol.PLAINTEXT)
        if protocol.uses_tls:
            _tls_settings(config, files, listener, protocol, listener in own)


def _tls_settings(
    config: BrokerConfig,
    files: IFileSystem,
    listener: str,
    protocol: SecurityProtocol,
    is_server: bool,
) -> TlsSettings:
    own = config.listener_config(listener)
    return tls_settings(
        own, files, protocol, PROTOCOL_MAP, f"{listener}:{protocol.name}", is_server
    )


def tls_settings(
    config: ListenerConfig,
    files: IFileSystem,
    protocol: SecurityProtocol,
    setting: str,
    value: str,
    is_server: bool = False,
) -> TlsSettings:
    """Of a listener, or of a client; `setting`, with this `value`, is what wants TLS. Raises
    ConfigError.
    """
    try:
        import service_identity  # noqa: F401

        from twisted_broker.net.tls_context import TlsSettings
    except ImportError as error:
        from twisted_broker.installed import install

        raise ConfigError(
            setting,
            value,
            "",
            f"{error.name} is not installed: {install('tls')}",
        ) from None
    return TlsSettings(config, files, protocol, is_server)
