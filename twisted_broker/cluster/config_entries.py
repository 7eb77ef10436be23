"""A setting as administrators see it: its value in force, where it comes from, and which values
would replace it.

Owns the entries of DescribeConfigs and of CreateTopics' answer, derived from the settings tables:
those obeyed here (`config.py`) and those that Kafka knows beside them (`known_settings.py`).

1. The first synonym is the value in force; the others follow in the order in which they would take
   its place.
2. A setting is read-only when a change needs a restart.
3. A value is described in its typed form; as it was given, it is in synonyms, among the defaults
   of the cluster, and in CreateTopics' answer. A secret, and what no table knows, is never shown.

Source: Kafka's `ConfigHelper`, `ConfigurationControlManager.describe`, KIP-226, KIP-569. Not here:
what is a secret (`settings.Type.PASSWORD`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from twisted_broker import known_settings
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import BROKER_SETTINGS, BROKER_SETTINGS_39, LISTENER_PREFIX, override_row
from twisted_broker.log_config import own_or_broker_value
from twisted_broker.settings import ConfigError, Setting, Type, text_of

(
    TOPIC_SOURCE,
    BROKER_SOURCE,
    CLUSTER_SOURCE,
    STATIC_SOURCE,
    DEFAULT_SOURCE,
    LOGGER_SOURCE,
    CLIENT_METRICS_SOURCE,
    GROUP_SOURCE,
) = range(1, 9)


_SOURCES = (TOPIC_SOURCE, BROKER_SOURCE, CLUSTER_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE)
_UNKNOWN_TYPE = 0
_BEHIND = {
    name: names
    for names in (
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    for name in names
} | {"log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")}
"""Settings of one meaning, finest unit first."""


class Synonym(NamedTuple):
    """One place from which a setting's value may come."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One setting of a resource. `type` is DescribeConfigs' number."""

    name: str
    value: str | None
    read_only: bool
    source: int
    synonyms: list[Synonym]
    type: int
    documentation: str | None
    sensitive: bool = False


def _broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """Where a broker setting's value may come from, the one in force first."""
    found = [
        Synonym(name, layer[name], source)
        for layer, source in (
            (config.broker, BROKER_SOURCE),
            (config.cluster, CLUSTER_SOURCE),
            (config.static, STATIC_SOURCE),
        )
        if name in layer
    ]
    row = override_row(name)
    default = None
    if row is None:
        row = _broker_rows(config)[name]
        default = row.default
    if row.type is Type.PASSWORD:
        found = [Synonym(name, None, synonym.source) for synonym in found]
    elif default is not None:
        found.append(Synonym(name, text_of(default), DEFAULT_SOURCE))
    return found


def _broker_rows(config: BrokerConfig) -> Mapping[str, Setting]:
    is_member = known_settings.ZOOKEEPER_CONNECT in config.static
    return _rows_with_zookeeper() if is_member else _rows()


@cache
def _rows() -> Mapping[str, Setting]:
    return known_settings.broker_settings() | BROKER_SETTINGS


@cache
def _rows_with_zookeeper() -> Mapping[str, Setting]:
    return {**_rows(), **BROKER_SETTINGS_39, **known_settings.zookeeper_settings()}


def broker_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Every setting of a broker, also those that it does not obey; internal ones only if they are
    set, ZooKeeper's only for a member of a ZooKeeper cluster.
    """
    for row in _broker_rows(config).values():
        if row.internal and not config.is_set(row.name):
            continue
        synonyms = [
            synonym
            for name in _BEHIND.get(row.name, (row.name,))
            for synonym in _broker_synonyms(config, name)
        ]
        synonyms.sort(key=lambda synonym: _SOURCES.index(synonym.source))
        while synonyms and synonyms[0].name != row.name:
            del synonyms[0]
        secret = row.type is Type.PASSWORD
        yield ConfigEntry(
            row.name,
            None if secret else text_of(config[row.name]),
            not row.live,
            synonyms[0].source if synonyms else DEFAULT_SOURCE,
            synonyms,
            row.type.value,
            row.doc,
            secret,
        )
    yield from _listener_entries(config)


def _listener_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """What was given for single listeners."""
    for name in sorted({*config.static, *config.cluster, *config.broker}):
        row = override_row(name)
        if row is None:
            continue
        synonyms = _broker_synonyms(config, name)
        setting = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
        behind = _broker_synonyms(config, row.name) if setting == row.name else []
        yield ConfigEntry(
            name,
            synonyms[0].value,
            not row.live,
            synonyms[0].source,
            synonyms + behind,
            row.type.value,
            row.doc,
            row.type is Type.PASSWORD,
        )


def topic_entries(
    config: BrokerConfig, overrides: Mapping[str, str], as_given: bool = False
) -> Iterator[ConfigEntry]:
    """Every setting of a topic with these values of its own. `as_given`: in the text they have."""
    for row in config.topic_rows.values():
        if not row.internal or row.name in overrides:
            entry = _own_entry(row, config, overrides, TOPIC_SOURCE)
            if as_given and row.name in overrides:
                entry = entry._replace(value=overrides[row.name])
            yield entry


def group_entries(config: BrokerConfig, values: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every setting of a group with these values of its own."""
    for row in known_settings.group_settings().values():
        entry = _own_entry(row, config, values, GROUP_SOURCE)
        if not row.broker:
            entry.synonyms.append(Synonym(row.name, text_of(row.default), DEFAULT_SOURCE))
        yield entry


def client_metrics_entries(
    config: BrokerConfig, values: Mapping[str, str]
) -> Iterator[ConfigEntry]:
    """Every setting of a subscription of client metrics."""
    for row in known_settings.client_metrics_settings().values():
        yield _own_entry(row, config, values, CLIENT_METRICS_SOURCE)


def _own_entry(
    row: Setting, config: BrokerConfig, overrides: Mapping[str, str], source: int
) -> ConfigEntry:
    try:
        value = text_of(own_or_broker_value(row, config, overrides))
    except ConfigError:  # of another version, which has another range
        value = overrides[row.name]
    synonyms = [Synonym(row.name, value, source)] if row.name in overrides else []
    behind = [
        synonym
        for name, _ in row.broker
        for synonym in _broker_synonyms(config, name)
        if synonym.value is not None
    ]
    behind.sort(key=lambda synonym: _SOURCES.index(synonym.source))
    synonyms += behind
    return ConfigEntry(
        row.name,
        value,
        False,
        synonyms[0].source if synonyms else DEFAULT_SOURCE,
        synonyms,
        row.type.value,
        row.doc,
    )


def default_entries(values: Mapping[str, str], source: int) -> list[ConfigEntry]:
    """Entries of the cluster-wide defaults of brokers: what was set, and no more."""
    found = []
    for name in sorted(values):
        row = (
            override_row(name)
            or BROKER_SETTINGS_39.get(name)
            or known_settings.broker_settings().get(name)
        )
        secret = row is None or row.type is Type.PASSWORD
        value = None if secret else values[name]
        kind, doc = (_UNKNOWN_TYPE, "") if row is None else (row.type.value, row.doc)
        found.append(
            ConfigEntry(
                name,
                value,
                row is None or not row.live,
                source,
                [Synonym(name, value, source)],
                kind,
                doc,
                secret,
            )
        )
    return found
