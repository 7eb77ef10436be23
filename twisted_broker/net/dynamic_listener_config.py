"""Listeners that come and go while the broker runs.

Owns `DynamicListenerConfig`: which listeners of the broker should be open by its settings, which
are, and the way from one to the other.

1. `listeners` and `listener.security.protocol.map` change for one broker. A listener that is new
   opens, one that is gone closes with its connections, one that has another address closes and
   opens again. The broker registers what is open then.
2. A change is refused as a whole before it is stored: what could not start cannot be changed to,
   and an address must be free. The listeners of controllers, the listener between brokers, and
   what protocol an open listener speaks stay as they are.
3. Of an open listener only limits, keys and certificates change. SASL of a listener is set before
   the listener is opened: another login comes with a listener of another name.
4. One change is carried out at a time; what changed meanwhile follows. What cannot be carried out
   is one line, and the listeners that are open stay.

Source: Kafka's `DynamicListenerConfig`, KIP-226. Kafka's brokers do not register a listener that
was added while they run. Not here: parsing (`listeners.py`), the factories of ports
(`server/socket_server.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig, LiveConfig
from twisted_broker.config import LISTENER_PREFIX, OPEN_LISTENER_SETTINGS, override_row
from twisted_broker.interfaces import IFileSystem
from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.net.listener_security import ListenerSecurity, check_tls
from twisted_broker.net.listeners import (
    CannotBind,
    ConfiguredListener,
    ListenerPlan,
    check_sasl,
    plan_listeners,
)
from twisted_broker.security.security_protocol import PROTOCOL_MAP
from twisted_broker.settings import ConfigError

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
_CONNECTION_LIMITS = frozenset({"max.connections", "max.connection.creation.rate"})
_logger = Logger(namespace="replog")


class DynamicListenerConfig:
    """Of one broker, which `config` is of. `listen(plan, endpoint)` and `close(name)` open and
    close one listener of the broker; `can_bind(endpoint)` fails with CannotBind where it is not
    free; `changed()` is called once the listeners are other ones.
    """

    def __init__(
        self,
        config: LiveConfig,
        plan: ListenerPlan,
        files: IFileSystem,
        security: ListenerSecurity,
        can_bind: Callable[[ConfiguredListener], Awaitable[None]],
        listen: Callable[[ListenerPlan, ConfiguredListener], Awaitable[None]],
        close: Callable[[str], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._config, self._files, self._security = config, files, security
        self._can_bind, self._listen, self._close = can_bind, listen, close
        self._changed = changed
        self.plan = plan
        """what is open"""
        self._is_advertised_given = config.is_set(ADVERTISED)
        self._following: Deferred[None] | None = None
        self._followed: tuple[object, ...] = ()
        """the settings that the listeners were last made after"""

    # before a change

    async def check(self, config: BrokerConfig, changed: Sequence[str]) -> None:
        """Whether the listeners can be as `config`, where the settings `changed` are other ones,
        says. Raises ConfigError.
        """
        self._security.check(config)
        if LISTENERS not in changed and PROTOCOL_MAP not in changed:
            for name in changed:
                self._check_own(name, self.plan)
            return
        wanted = self._planned(config)
        for name in changed:
            self._check_own(name, wanted)
        freed = {each.port for each in self.plan.broker if each not in wanted.broker}
        for endpoint in wanted.broker:
            if endpoint not in self.plan.broker and endpoint.port not in freed:
                try:
                    await self._can_bind(endpoint)
                except CannotBind as error:
                    raise ConfigError(LISTENERS, str(endpoint), "", str(error)) from None

    def _check_own(self, name: str, wanted: ListenerPlan) -> None:
        """A setting of one listener, which stays open. Raises ConfigError."""
        row = override_row(name)
        if row is None or row.name in _CONNECTION_LIMITS or row.name in OPEN_LISTENER_SETTINGS:
            return
        listener = name.removeprefix(LISTENER_PREFIX).partition(".")[0].upper()
        stays = {each.name for each in (*wanted.broker, *wanted.controller)}
        opened = {each.name for each in (*self.plan.broker, *self.plan.controller)}
        if listener in stays & opened:
            raise ConfigError(
                name,
                "[hidden]",
                "",
                f"listener {listener} is open: it cannot change there; set it for a listener of "
                f"another name and add that to {LISTENERS}",
            )

    def _planned(self, config: BrokerConfig) -> ListenerPlan:
        """Raises ConfigError."""
        if ZOOKEEPER_CONNECT in config.static:
            raise ConfigError(
                LISTENERS,
                ",".join(config.names(LISTENERS)),
                "",
                "a member of a ZooKeeper cluster opens its listeners at its start only",
            )
        if not self._is_advertised_given:  # what was found at the start is no setting
            static = {name: text for name, text in config.static.items() if name != ADVERTISED}
            config = BrokerConfig(static, config.cluster, config.broker)
        found, current = plan_listeners(config), self.plan
        if found.controller != current.controller:
            raise ConfigError(
                LISTENERS,
                ",".join(config.names(LISTENERS)),
                "the listeners of the controller as they are: "
                f"{','.join(map(str, current.controller)) or 'none'}",
            )
        if found.inter_broker != current.inter_broker:
            raise ConfigError(
                LISTENERS,
                ",".join(config.names(LISTENERS)),
                f"a list with {current.inter_broker}, by which other brokers connect",
            )
        for name, protocol in current.protocols.items():
            if found.protocols.get(name, protocol) is not protocol:
                raise ConfigError(
                    PROTOCOL_MAP,
                    config.text(PROTOCOL_MAP),
                    "",
                    f"listener {name} is open and speaks {protocol.name}: add a listener of "
                    "another name, or remove this one first",
                )
        check_sasl(config, found)
        check_tls(config, found, self._files)
        return found

    # after it

    async def start(self) -> None:
        """Opens what the stored settings say, and follows them from now on."""
        self._followed = self._settings(self._config)
        if self._config.broker.keys() & {LISTENERS, PROTOCOL_MAP}:
            self._followed = ()
            await self._follow()
        self._config.subscribe(self._settings_changed)

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _settings_changed(self, config: BrokerConfig) -> None:
        if self._following is None and self._settings(config) != self._followed:
            self._following = ensureDeferred(self._follow())
            self._following.addBoth(self._ended)

    def _ended(self, result: object) -> None:
        self._following = None
        if isinstance(result, Failure) and result.check(CancelledError) is None:
            _logger.failure("the listeners could not be changed", failure=result)

    async def _follow(self) -> None:
        """Until what is open is what the settings say, or cannot be."""
        while (settings := self._settings(self._config)) != self._followed:
            self._followed = settings
            try:
                wanted = self._planned(self._config)
            except ConfigError as error:
                _logger.error("the listeners stay as they are: {error}", error=error)
                continue
            await self._become(wanted)

    def _settings(self, config: BrokerConfig) -> tuple[object, ...]:
        return config[LISTENERS], config[PROTOCOL_MAP]

    async def _become(self, wanted: ListenerPlan) -> None:
        before = self.plan.broker
        for endpoint in before:
            if endpoint not in wanted.broker:
                await self._close(endpoint.name)
                self._opened(wanted, [each for each in self.plan.broker if each != endpoint])
                _logger.info("closed listener {endpoint}", endpoint=endpoint)
        for endpoint in wanted.broker:
            if endpoint in before:
                continue
            try:
                await self._listen(wanted, endpoint)
            except (CannotBind, ConfigError) as error:
                _logger.error(
                    "listener {endpoint} is not opened, the others stay: {error}",
                    endpoint=endpoint,
                    error=error,
                )
                continue
            self._opened(wanted, [*self.plan.broker, endpoint])
            _logger.info("opened listener {endpoint}", endpoint=endpoint)
        if self.plan.broker != before:
            self._changed()

    def _opened(self, wanted: ListenerPlan, broker: list[ConfiguredListener]) -> None:
        self.plan = wanted._replace(broker=broker)
