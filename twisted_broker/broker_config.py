"""The settings of one broker, typed, by the rows of the table.

Owns `BrokerConfig`, `LiveConfig` (of a broker that runs) and `ListenerConfig` (as one listener has
them).

1. What changed while running counts before the file, this broker's own before that of all.
2. A wrong value of the file stops the start; one in the metadata is obeyed as the nearest that is
   allowed, or left out, with a line.

Source: Kafka 4.3.1's `KafkaConfig`, `DynamicBrokerConfig`. Not here: rows, ranges and defaults
(`config.py`), what settings contradict (`config_validation.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace

from twisted_broker.config import (
    BROKER_SETTINGS,
    BROKER_SETTINGS_39,
    LISTENER_PREFIX,
    REFUSED,
    TOPIC_SETTINGS,
    TOPIC_SETTINGS_39,
    override_row,
    setting_row,
)
from twisted_broker.known_settings import ZOOKEEPER_CONNECT, zookeeper_settings
from twisted_broker.known_settings import broker_settings as known_broker_settings
from twisted_broker.settings import ConfigError, Setting, Value

_BROKER_ID = "broker.id"


def _with_node_id(static: Mapping[str, str]) -> dict[str, str]:
    """`broker.id` is the older name of `node.id`: who gives one gives both, as in Kafka. Raises
    ConfigError where they differ.
    """
    values = dict(static)
    if _BROKER_ID in values:
        replace(BROKER_SETTINGS["node.id"], name=_BROKER_ID).parse(values[_BROKER_ID])
    if (
        _BROKER_ID in values
        and values.setdefault("node.id", values[_BROKER_ID]) != values[_BROKER_ID]
    ):
        raise ConfigError(
            _BROKER_ID, values[_BROKER_ID], f"the same as node.id, {values['node.id']}"
        )
    if "node.id" in values:
        values[_BROKER_ID] = values["node.id"]
    return values


class BrokerConfig:
    """The settings of one broker: immutable, typed, each with where its value comes from.

    `static` is the file and the command line; `cluster` and `broker` are what AlterConfigs set
    while running, for all brokers and for this one. Raises ConfigError. `config[name]` is the typed
    value.
    """

    __slots__ = ("_values", "broker", "cluster", "static")

    def __init__(
        self,
        static: Mapping[str, str],
        cluster: Mapping[str, str] | None = None,
        broker: Mapping[str, str] | None = None,
    ) -> None:
        self.static, self.cluster, self.broker = (
            _with_node_id(static),
            dict(cluster or {}),
            dict(broker or {}),
        )
        self._values: dict[str, Value] = {name: row.default for name, row in self.rows.items()}
        if ZOOKEEPER_CONNECT in self.static:
            for name, row in zookeeper_settings().items():
                self._values[name] = (
                    row.parse(self.static[name]) if name in self.static else row.default
                )
        for layer in (self.static, self.cluster, self.broker):
            for name, text in layer.items():
                known = self.row(name)
                if known is not None:
                    self._values[name] = known.parse(text)
                else:
                    _check_without_row(name, text)
        self._check_voters()

    @property
    def rows(self) -> Mapping[str, Setting]:
        """The settings that are obeyed."""
        return BROKER_SETTINGS_39 if ZOOKEEPER_CONNECT in self.static else BROKER_SETTINGS

    @property
    def topic_rows(self) -> Mapping[str, Setting]:
        """Those of a topic."""
        return TOPIC_SETTINGS_39 if ZOOKEEPER_CONNECT in self.static else TOPIC_SETTINGS

    def row(self, name: str) -> Setting | None:
        """Of a setting that a broker obeys, or knows."""
        found = self.rows.get(name)
        if found is not None or name in REFUSED or name == _BROKER_ID:
            return found
        return known_broker_settings().get(name)

    def _check_voters(self) -> None:
        """A controller is one of the voters that are named."""
        voters = self.names("controller.quorum.voters")
        if not voters or "controller" not in self.names("process.roles"):
            return
        if str(self.node_id) not in [each.partition("@")[0] for each in voters]:
            raise ConfigError(
                "controller.quorum.voters",
                ",".join(voters),
                f"the id of this node, {self.node_id}, because process.roles has controller",
            )

    def __getitem__(self, name: str) -> Value:
        try:
            return self._values[name]
        except KeyError:
            return self.node_id if name == _BROKER_ID else known_broker_settings()[name].default

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def optional_integer(self, name: str) -> int | None:
        """None when it is not set."""
        return None if self._values[name] is None else self.integer(name)

    def number(self, name: str) -> float:
        """The value of a setting that need not be whole."""
        value = self[name]
        assert isinstance(value, (int, float))
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def text(self, name: str) -> str | None:
        value = self._values[name]
        assert value is None or isinstance(value, str), name
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list setting; empty when it is not set."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def is_set(self, name: str) -> bool:
        """Whether anybody gave the setting, rather than its default."""
        return name in self.broker or name in self.cluster or name in self.static

    def listener_config(self, listener: str) -> ListenerConfig:
        """The settings as the listener of this name has them, also those of a later change."""
        return ListenerConfig(self, listener)

    @property
    def node_id(self) -> int:
        return self.integer("node.id")

    @property
    def log_directories(self) -> tuple[str, ...]:
        return self.names("log.dirs") or self.names("log.dir")

    @property
    def cordoned_directories(self) -> frozenset[str]:
        """Those of `log_directories` that take no new replica (KIP-1066)."""
        named = self.names("cordoned.log.dirs")
        paths = self.log_directories if named == ("*",) else named
        known = {posixpath.normpath(path) for path in self.log_directories}
        return frozenset(map(posixpath.normpath, paths)) & known

    @property
    def metadata_directory(self) -> str:
        """The log directory that holds the metadata; it may lie outside `log.dirs`."""
        return posixpath.normpath(self.text("metadata.log.dir") or self.log_directories[0])

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """The same file and command line under other dynamic values."""
        return BrokerConfig(self.static, cluster, broker)

    def with_stored(
        self, cluster: Mapping[str, str], broker: Mapping[str, str]
    ) -> tuple[BrokerConfig, list[str]]:
        """As `with_dynamic`, with settings stored in the metadata: another version may have
        accepted what is refused here. Instead of a refused value the nearest accepted one is
        obeyed, or none; a line for each.
        """
        refused: list[str] = []
        layers = [obeyed(layer, self.row, refused) for layer in (cluster, broker)]
        return self.with_dynamic(*layers), refused

    def unknown(self) -> list[str]:
        """Names given that nobody knows: a warning line each."""
        others = self.static.keys() - self.rows.keys() - {_BROKER_ID}
        if ZOOKEEPER_CONNECT in others:
            others -= zookeeper_settings().keys()
        others -= {name for name in others if override_row(name) is not None}
        return sorted(others - known_broker_settings().keys()) if others else []

    def without_effect(self) -> list[str]:
        """Names given that Kafka knows and that nothing here obeys."""
        others = self.static.keys() - self.rows.keys() - {_BROKER_ID}
        return sorted(others & known_broker_settings().keys()) if others else []


class ListenerConfig:
    """The settings of a broker as one listener has them: `listener.name.NAME.x`, NAME in small
    letters, goes before `x`; where a SASL mechanism is named, `listener.name.NAME.MECHANISM.x`
    goes before both. Read from `config` at each call.
    """

    __slots__ = ("_config", "_prefix", "name")

    def __init__(self, config: BrokerConfig, name: str) -> None:
        self.name, self._config = name, config
        self._prefix = f"{LISTENER_PREFIX}{name.lower()}."

    @property
    def whose(self) -> str:
        """For lines of the log."""
        return f"listener {self.name}"

    def __getitem__(self, name: str) -> Value:
        return self.value(name)

    def value(self, name: str, mechanism: str = "") -> Value:
        """The typed value of the setting `name`; `mechanism`: of SASL, in any case."""
        given = self._given(name, mechanism)
        return self._config[name] if given is None else setting_row(name).parse(given)

    def overrides(self, name: str, mechanism: str = "") -> bool:
        """Whether the listener has a value of its own, rather than the broker's."""
        return self._given(name, mechanism) is not None

    def _given(self, name: str, mechanism: str) -> str | None:
        names = [f"{self._prefix}{mechanism.lower()}.{name}"] if mechanism else []
        for each in (*names, self._prefix + name):
            for layer in (self._config.broker, self._config.cluster, self._config.static):
                if each in layer:
                    return layer[each]
        return None

    def text(self, name: str, mechanism: str = "") -> str | None:
        """Also a password's."""
        value = self.value(name, mechanism)
        assert value is None or isinstance(value, str), name
        return value

    def names(self, name: str, mechanism: str = "") -> tuple[str, ...]:
        """A list setting; empty when it is not set."""
        value = self.value(name, mechanism)
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def integer(self, name: str, mechanism: str = "") -> int:
        value = self.value(name, mechanism)
        assert isinstance(value, int), name
        return value

    def boolean(self, name: str, mechanism: str = "") -> bool:
        value = self.value(name, mechanism)
        assert isinstance(value, bool), name
        return value


class LiveConfig(BrokerConfig):
    """The configuration of a running broker: one object that all parts hold.

    A part that reads a setting when it needs it sees the change; a part that derives something from
    it subscribes.
    """

    __slots__ = ("_subscribers",)

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config.static, config.cluster, config.broker)
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, subscriber: Callable[[BrokerConfig], None]) -> None:
        """`subscriber(config)` is called after each change, in the order of subscribing."""
        self._subscribers.append(subscriber)

    def replace(self, config: BrokerConfig) -> None:
        """The settings are those of `config` from now on."""
        self.static, self.cluster, self.broker = config.static, config.cluster, config.broker
        self._values = config._values
        for subscriber in self._subscribers:
            subscriber(self)


def _check_without_row(name: str, text: str) -> None:
    """Raises ConfigError."""
    if name in REFUSED:
        raise ConfigError(name, text, "", REFUSED[name])
    if name.startswith(LISTENER_PREFIX):
        _check_override(name, text)


def _check_override(name: str, text: str) -> None:
    row = override_row(name)
    if row is not None:
        replace(row, name=name).parse(text)


def obeyed(
    stored: Mapping[str, str], row_of: Callable[[str], Setting | None], refused: list[str]
) -> dict[str, str]:
    """What is obeyed of stored settings; those that are refused as they are go into `refused`."""
    found: dict[str, str] = {}
    for name, text in stored.items():
        row, obeyed = row_of(name), None
        try:
            if row is None:
                _check_without_row(name, text)
            else:
                obeyed = row.nearest(text)
                row.parse(text)
            obeyed = text
        except ConfigError as error:
            instead = "it is left out" if obeyed is None else f"obeyed as {obeyed}"
            # A value of which no row says what it is may be a secret.
            shown = f"setting {name} is refused" if row is None else str(error)
            refused.append(f"{shown}: {instead}")
        if obeyed is not None:
            found[name] = obeyed
    return found
