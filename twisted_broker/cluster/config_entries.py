"""A setting as administrators see it: its value in force, where it comes from, and which values
would replace it.

Owns the entries of DescribeConfigs and of CreateTopics' answer, derived from the settings table for
topics and brokers.

1. The first synonym is the value in force; the others follow in the order in which they would take
   its place.
2. A setting is read-only when a change needs a restart.

Source: Kafka's `ConfigHelper`, `ConfigurationControlManager.describe`, KIP-226, KIP-569. Not here:
secrets (none is served yet).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from twisted_broker.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    text_of,
    topic_value,
)
from twisted_broker.settings import Setting

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
    documentation: str


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
    row = BROKER_SETTINGS[name]
    if row.default is not None or not found:
        found.append(Synonym(name, text_of(row.default), DEFAULT_SOURCE))
    return found


def broker_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Every setting of a broker."""
    for row in BROKER_SETTINGS.values():
        synonyms = _broker_synonyms(config, row.name)
        yield ConfigEntry(
            row.name,
            text_of(config[row.name]),
            not row.live,
            synonyms[0].source,
            synonyms,
            row.type.value,
            row.doc,
        )


def topic_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every setting of a topic with these values of its own."""
    for row in TOPIC_SETTINGS.values():
        if not row.internal or row.name in overrides:
            yield _topic_entry(row, config, overrides)


def _topic_entry(row: Setting, config: BrokerConfig, overrides: Mapping[str, str]) -> ConfigEntry:
    synonyms = (
        [Synonym(row.name, overrides[row.name], TOPIC_SOURCE)] if row.name in overrides else []
    )
    for name, _ in row.broker:
        synonyms += [
            synonym for synonym in _broker_synonyms(config, name) if synonym.value is not None
        ]
    synonyms.sort(key=lambda synonym: synonym.source == DEFAULT_SOURCE)
    value = text_of(topic_value(row.name, config, overrides))
    source = synonyms[0].source if synonyms else DEFAULT_SOURCE
    return ConfigEntry(row.name, value, False, source, synonyms, row.type.value, row.doc)


def default_entries(values: Mapping[str, str], source: int) -> list[ConfigEntry]:
    """Entries of a resource that has only what was set (cluster-wide broker defaults, client
    metrics, groups).
    """
    found = []
    for name in sorted(values):
        row = BROKER_SETTINGS.get(name)
        kind, doc = (row.type.value, row.doc) if row is not None else (2, "")
        found.append(
            ConfigEntry(
                name, values[name], False, source, [Synonym(name, values[name], source)], kind, doc
            )
        )
    return found
