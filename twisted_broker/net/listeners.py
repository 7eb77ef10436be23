"""The listeners of a broker: names, addresses, and the ports that are open.

Owns the parsing of `listeners`, `advertised.listeners` and their like, and the open ports.

1. A name is given once; a controller's listener is one named in `controller.listener.names`; the
   others are the broker's.
2. Port 0 becomes the port that the system gave, in what is advertised too.
3. No address is advertised that cannot be reached: 0.0.0.0 and :: are refused there.
4. Ports are bound at the start; they accept connections once the broker can serve them, a
   controller's before its ACLs are loaded unless `early.start.listeners` is set without it.
5. Every listener has a security protocol, and so has the first of `controller.listener.names`, by
   which a broker reaches controllers elsewhere.
6. A setting with the prefix of a listener or a mechanism that does not exist is refused, and so is
   a misspelt setting of security.
7. An address that cannot be bound is refused in one line: the setting, why, and what to change.

Source: Kafka's `SocketServerConfigs`, `KafkaConfig.effectiveAdvertisedBrokerListeners`,
`getInterBrokerListenerNameAndSecurityProtocol`. Not here: names and protocols
(`security/security_protocol.py`).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from errno import EACCES, EADDRINUSE
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import BROKER_SETTINGS, LISTENER_PREFIX, is_secret, override_row
from twisted_broker.interfaces import Runtime
from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.known_settings import broker_settings as known_broker_settings
from twisted_broker.security.security_protocol import (
    PROTOCOL_MAP,
    SASL_TO_BROKERS,
    SASL_TO_CONTROLLERS,
    SecurityProtocol,
    effective_protocols,
    parse_protocol_map,
    protocol_of,
)
from twisted_broker.settings import ConfigError

if TYPE_CHECKING:
    from twisted_broker.security.sasl.settings import ServerSettings

_ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)://(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]{1,5})\Z"
)
EARLY_START = "early.start.listeners"
_META_ADDRESSES = ("0.0.0.0", "::")
_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_PROTECTING = (
    "allow.everyone.if.no.acl.found",
    "authorizer.",
    "delegation.token.",
    "early.start.listeners",
    "listener.security.protocol.map",
    "sasl.",
    "security.",
    "ssl.",
    "super.users",
)


class ListenerName(NamedTuple):
    """Which listener a request came in on: known before the port is open."""

    name: str
    is_controller: bool = False
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


class Listener(NamedTuple):
    """An open listener. `host` and `port` are the advertised ones."""

    name: str
    host: str
    port: int
    is_controller: bool = False
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def address(self) -> str:
        """`HOST:PORT`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConfiguredListener(NamedTuple):
    """`NAME://HOST:PORT`; an empty host is every address of the machine."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_endpoints(setting: str, entries: Sequence[str]) -> list[ConfiguredListener]:
    """Raises ConfigError."""
    found: dict[str, ConfiguredListener] = {}
    for entry in entries:
        match = _ENTRY.match(entry)
        if match is None or int(match["port"]) > 65535:
            raise ConfigError(setting, entry, "a list of NAME://HOST:PORT")
        name = match["name"].upper()
        if name in found:
            raise ConfigError(setting, entry, f"each name once, {name} is there twice")
        found[name] = ConfiguredListener(name, match["six"] or match["host"], int(match["port"]))
    return list(found.values())


class ListenerPlan(NamedTuple):
    """What is to be listened on. `inter_broker` is the name by which other brokers come,
    `to_controllers` the one by which this node reaches controllers; `protocols` has the protocol
    of every name here; `early` names those that accept connections before the ACLs are loaded.
    """

    broker: list[ConfiguredListener]
    controller: list[ConfiguredListener]
    advertised: dict[str, ConfiguredListener]
    inter_broker: str
    to_controllers: str
    protocols: dict[str, SecurityProtocol]
    early: frozenset[str] = frozenset()


def plan_listeners(config: BrokerConfig) -> ListenerPlan:
    """From the settings. Raises ConfigError."""
    endpoints = parse_endpoints("listeners", config.names("listeners"))
    controller_names = [name.upper() for name in config.names("controller.listener.names")]
    broker = [each for each in endpoints if each.name not in controller_names]
    controller = [each for each in endpoints if each.name in controller_names]
    roles = config.names("process.roles")
    if "broker" in roles and not broker:
        raise ConfigError(
            "listeners", ",".join(map(str, endpoints)), "at least one listener of the broker"
        )
    if "controller" in roles and not controller:
        raise ConfigError(
            "listeners",
            ",".join(map(str, endpoints)),
            "a listener named in controller.listener.names",
        )
    to_controllers = controller_names[0] if controller_names else ""
    _check_prefixes(config, [*(each.name for each in endpoints), *controller_names])
    _check_spelling(config)
    return ListenerPlan(
        broker,
        controller if "controller" in roles else [],
        _advertised(config, broker, controller),
        _inter_broker(config, [each.name for each in broker]),
        to_controllers,
        _protocols(config, [each.name for each in endpoints], controller_names),
        _early(config, [each.name for each in endpoints], controller_names),
    )


def _check_prefixes(config: BrokerConfig, names: Sequence[str]) -> None:
    """Kafka ignores settings of a listener that is not there: a typo would leave the listener that
    was meant with the broker's own, by default weaker. A file may be that of several nodes: what
    the map names is known, too.
    """
    of_map = parse_protocol_map(config.text(PROTOCOL_MAP) or "")
    known = {each.lower() for each in (*names, *of_map)}
    for name, text in config.static.items():
        if not name.startswith(LISTENER_PREFIX):
            continue
        shown = "[hidden]" if is_secret(name) else text
        listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
        if listener not in known:
            there = ", ".join(sorted({each.lower() for each in names}))
            reason = f"there is no listener {listener}; write one of {there}, in small letters"
            raise ConfigError(name, shown, "", reason)
        mechanism, _, of_mechanism = setting.partition(".")
        if (
            of_mechanism in BROKER_SETTINGS
            and override_row(name) is BROKER_SETTINGS[of_mechanism]
            and mechanism not in _MECHANISMS
        ):
            reason = f"there is no mechanism {mechanism}; write one of {', '.join(_MECHANISMS)}"
            raise ConfigError(name, shown, "", reason)


def _check_spelling(config: BrokerConfig) -> None:
    """Unknown settings are ignored, but not one that is meant to protect: `ssl.clent.auth=required`
    would let in clients without a certificate.
    """
    for name in config.unknown():
        setting = name
        if name.startswith(LISTENER_PREFIX):
            setting = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
            mechanism, _, of_mechanism = setting.partition(".")
            setting = of_mechanism if mechanism in _MECHANISMS else setting
        near = get_close_matches(setting, (*BROKER_SETTINGS, *known_broker_settings()), 1, 0.8)
        if setting.startswith(_PROTECTING) or (near and near[0].startswith(_PROTECTING)):
            hint = f"; did you mean {name.removesuffix(setting)}{near[0]}?" if near else ""
            raise ConfigError(name, "[hidden]", "", f"no broker has this setting{hint}")


def _early(
    config: BrokerConfig, names: Sequence[str], controllers: Sequence[str]
) -> frozenset[str]:
    """KIP-801. Not set: the controllers' listeners, which load the ACLs themselves."""
    if not config.is_set(EARLY_START):
        return frozenset(controllers)
    found = [name.upper() for name in config.names(EARLY_START)]
    for name in found:
        if name not in names and name not in controllers:
            accepted = "names that listeners or controller.listener.names has: "
            raise ConfigError(EARLY_START, name, accepted + ", ".join((*names, *controllers)))
    return frozenset(found)


def _inter_broker(config: BrokerConfig, names: Sequence[str]) -> str:
    """The listener of `inter.broker.listener.name` or `security.inter.broker.protocol`. Where
    neither is set: PLAINTEXT, as in Kafka; where no listener has that name (Kafka refuses to start)
    the first one.
    """
    setting = "inter.broker.listener.name"
    found = (config.text(setting) or "").upper()
    if not found and config.is_set("security.inter.broker.protocol"):
        setting = "security.inter.broker.protocol"
        found = config.text(setting) or ""
    if not found:
        default = config.text("security.inter.broker.protocol") or ""
        return default if default in names else next(iter(names), "")
    if names and found not in names:
        accepted = f"the name of a listener of the broker: {', '.join(names)}"
        raise ConfigError(setting, found, accepted)
    return found


def _protocols(
    config: BrokerConfig, names: Sequence[str], controllers: Sequence[str]
) -> dict[str, SecurityProtocol]:
    known = effective_protocols(
        config.text(PROTOCOL_MAP) or "", config.is_set(PROTOCOL_MAP), names, controllers
    )
    # Controllers elsewhere are reached by the first of their names; with ZooKeeper there are none.
    wanted = dict.fromkeys((*names, *controllers[: ZOOKEEPER_CONNECT not in config.static]))
    return {name: protocol_of(known, name) for name in wanted}


def sasl_settings(config: BrokerConfig, listener: str) -> ServerSettings:
    """Of a listener with SASL. Raises ConfigError."""
    from twisted_broker.security.sasl.settings import server_settings

    settings = server_settings(config.listener_config(listener))
    scram = [name for name in settings.mechanisms if name.startswith("SCRAM-")]
    if scram and ZOOKEEPER_CONNECT in config.static:
        raise ConfigError(
            "sasl.enabled.mechanisms",
            ",".join(scram),
            "mechanisms without SCRAM: with zookeeper.connect its users are not read",
        )
    if settings.oauth is not None and find_spec("jwt") is None:
        from twisted_broker.installed import install

        raise ConfigError(
            "sasl.enabled.mechanisms",
            ",".join(settings.mechanisms),
            "",
            f"OAUTHBEARER needs a library: {install('oauth')}",
        )
    return settings


def check_sasl(config: BrokerConfig, plan: ListenerPlan) -> None:
    """What listeners with SASL, and connections to them, need of settings. Raises ConfigError."""
    for each in (*plan.broker, *plan.controller):
        if plan.protocols[each.name].uses_sasl:
            sasl_settings(config, each.name)
    if "broker" not in config.names("process.roles"):
        return
    for listener, mechanism in (
        (plan.inter_broker, SASL_TO_BROKERS),
        (plan.to_controllers, SASL_TO_CONTROLLERS),
    ):
        if plan.protocols.get(listener, SecurityProtocol.PLAINTEXT).uses_sasl:
            from twisted_broker.security.sasl.settings import client_login

            client_login(config.listener_config(listener), mechanism, lambda login: str)


def _advertised(
    config: BrokerConfig,
    broker: Sequence[ConfiguredListener],
    controller: Sequence[ConfiguredListener],
) -> dict[str, ConfiguredListener]:
    entries = config.names("advertised.listeners")
    advertised = {
        each.name: each
        for each in (parse_endpoints("advertised.listeners", entries) if entries else broker)
    }
    names = {each.name for each in (*broker, *controller)}
    for each in advertised.values():
        if each.name not in names:
            raise ConfigError(
                "advertised.listeners",
                str(each),
                f"names that listeners has: {', '.join(sorted(names))}",
            )
        if each.host in _META_ADDRESSES:
            raise ConfigError(
                "advertised.listeners", str(each), "an address that clients can reach"
            )
    if broker and not any(each.name in advertised for each in broker):
        raise ConfigError(
            "advertised.listeners", ",".join(entries), "at least one listener of the broker"
        )
    return {each.name: each for each in controller} | advertised


class CannotBind(CannotListenError):
    """The address of `endpoint` cannot be bound.

    `str()` is one line: setting, value, why, and the remedy.
    """

    def __init__(
        self, endpoint: ConfiguredListener, error: CannotListenError, is_controller: bool
    ) -> None:
        super().__init__(error.interface, error.port, error.socketError)  # type: ignore[no-untyped-call]
        self.endpoint, self._is_controller = endpoint, is_controller

    def __str__(self) -> str:
        error = self.socketError
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None) or error
        what, option = "an address of this machine", "--host"
        if number == EADDRINUSE:
            what, option = "a free port (0: any)", "--port"
        elif number == EACCES:
            what, option = "a port that this user may open (as a rule 1024 or more)", "--port"
        where = "listeners" if self._is_controller else f"listeners or with {option}"
        return (
            f"listeners: {self.endpoint} cannot be listened on ({reason}): give {what} in {where}"
        )


class OpenListeners:
    """The ports of one broker, open until closed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ports: list[tuple[Listener, Any]] = []

    async def open(
        self,
        endpoint: ConfiguredListener,
        factory: Any,
        advertised: ConfiguredListener,
        is_controller: bool,
        start_accepting: bool = True,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
    ) -> Listener:
        """Listens; gives the advertised listener. `start_accepting` False: clients connect,
        and wait until `start_accepting()`.

        Fails with `CannotBind`.
        """
        try:
            port = await maybeDeferred(
                self._runtime.network.listen, endpoint.host, endpoint.port, factory
            )
        except CannotListenError as error:
            raise CannotBind(endpoint, error, is_controller) from None
        real = port.getHost().port
        listener = Listener(
            endpoint.name,
            advertised.host or socket.gethostname(),
            advertised.port or real,
            is_controller,
            protocol,
        )
        self._ports.append((listener, port))
        if not start_accepting and hasattr(port, "stopReading"):
            port.stopReading()
        return listener

    async def can_bind(self, endpoint: ConfiguredListener) -> None:
        """Listens for a moment, without accepting. Fails with `CannotBind`."""
        try:
            port = await maybeDeferred(
                self._runtime.network.listen, endpoint.host, endpoint.port, Factory()
            )
        except CannotListenError as error:
            raise CannotBind(endpoint, error, is_controller=False) from None
        await maybeDeferred(port.stopListening)

    def start_accepting(self, which: Callable[[Listener], bool] = lambda listener: True) -> None:
        """Accepts on the ports of `which`, by default on every one."""
        for listener, port in self._ports:
            if which(listener) and hasattr(port, "startReading"):
                port.startReading()

    def close(self, which: Callable[[Listener], bool]) -> Deferred[Any]:
        """Closes those of `which`; fires when they are."""
        closing = [port for listener, port in self._ports if which(listener)]
        self._ports = [(listener, port) for listener, port in self._ports if not which(listener)]
        return DeferredList(
            [maybeDeferred(port.stopListening) for port in closing], consumeErrors=True
        )
