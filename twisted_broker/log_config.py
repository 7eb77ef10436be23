"""The settings of a topic's logs, typed: the topic's own over the broker's.

Owns `LogConfig` and the values of a topic's settings.

1. A topic's value comes from the topic, else from the broker's setting of the same meaning (changed
   while running before the file's), else from the row.

Source: Kafka 4.3.1's `LogConfig`. Not here: rows, ranges and defaults (`config.py`), a broker's own
settings (`broker_config.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twisted_broker.broker_config import BrokerConfig, obeyed
from twisted_broker.config import (
    MESSAGE_FORMAT,
    THROTTLED_REPLICAS,
    TIERED_SETTINGS,
    TIME_DIFFERENCE,
)
from twisted_broker.settings import LONG_MAX, ConfigError, Setting, Value

_COMPACTION_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_THROTTLED_REPLICA = re.compile("[0-9]+:[0-9]+")


def _broker_value(row: Setting, config: BrokerConfig) -> Value:
    """A topic setting's value as the broker gives it: the most specific name that is set, else
    the coarsest one's default.
    """
    value = row.default
    for name, factor in row.broker:
        found = config[name]
        if found is not None and (config.is_set(name) or name == row.broker[-1][0]):
            return _scaled(found, factor)
    return value


def _scaled(value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int) or value < 0:
        return value
    return value * factor


def own_or_broker_value(row: Setting, config: BrokerConfig, overrides: Mapping[str, str]) -> Value:
    """The typed value of a setting of a topic or group; raises ConfigError."""
    if row.name in overrides:
        return row.parse(overrides[row.name])
    return _broker_value(row, config)


def topic_value(name: str, config: BrokerConfig, overrides: Mapping[str, str]) -> Value:
    """The typed value of one topic setting; raises ConfigError, KeyError for an unknown name."""
    return own_or_broker_value(config.topic_rows[name], config, overrides)


def obeyed_topic_settings(
    config: BrokerConfig, stored: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What is obeyed of a topic's settings in the metadata, and a line for each that is refused as
    it is: see `BrokerConfig.with_stored`.
    """
    refused: list[str] = []
    return obeyed(stored, config.topic_rows.get, refused), refused


def stored_topic_value(name: str, config: BrokerConfig, stored: Mapping[str, str]) -> Value:
    """As `topic_value`, of settings in the metadata. Raises nothing for those."""
    row = config.topic_rows[name]
    obeyed = None if name not in stored else row.nearest(stored[name])
    return own_or_broker_value(row, config, {} if obeyed is None else {name: obeyed})


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one partition's log, typed; field `x_y` is Kafka's topic setting `x.y`."""

    segment_bytes: int = 1073741824
    segment_ms: int = 604800000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10485760
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    retention_bytes: int = -1
    retention_ms: int = 604800000
    max_message_bytes: int = 1048588
    index_interval_bytes: int = 4096
    delete_retention_ms: int = 86400000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60000
    min_cleanable_dirty_ratio: float = 0.5
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    preallocate: bool = False
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3600000
    message_downconversion_enable: bool = True
    replog_mirror_source: str = ""
    producer_id_expiration_ms: int = 86400000
    validate_records: bool = False

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """How old a segment becomes: records of the active one are never cleaned, so that
        `max.compaction.lag.ms` bounds its age too (KIP-354).
        """
        lag_ms = self.max_compaction_lag_ms
        return lag_ms if lag_ms < self.segment_ms and self.compact else self.segment_ms


def topic_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The log settings of a topic: its own values, as far as they are obeyed
    (`obeyed_topic_settings`), over the broker's. Unknown names are passed over.
    """
    rows = [
        row
        for row in config.topic_rows.values()
        if not row.internal
        and row.name not in TIERED_SETTINGS | THROTTLED_REPLICAS | {MESSAGE_FORMAT}
    ]
    values: dict[str, Any] = {
        row.name.replace(".", "_"): stored_topic_value(row.name, config, overrides) for row in rows
    }
    difference = values.pop(TIME_DIFFERENCE.replace(".", "_"), LONG_MAX)
    for bound in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
        if values[bound] == LONG_MAX:
            values[bound] = difference
    policy = values["cleanup_policy"]
    assert isinstance(policy, tuple)
    values["cleanup_policy"] = frozenset(policy)
    if "internal.segment.bytes" in overrides:
        values["segment_bytes"] = stored_topic_value("internal.segment.bytes", config, overrides)
    return LogConfig(
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        validate_records=config.boolean("replog.validate.records"),
        **values,
    )


def check_topic_overrides(overrides: Mapping[str, str], config: BrokerConfig) -> None:
    """Raises ConfigError for a name that is no topic setting, a value outside its range, or values
    that do not fit each other or what `config` gives to the rest (CreateTopics, AlterConfigs).
    """
    for name, value in overrides.items():
        row = config.topic_rows.get(name)
        if row is None:
            raise ConfigError(name, value, "", "there is no such topic setting")
        parsed = row.parse(value)
        if name in THROTTLED_REPLICAS and isinstance(parsed, tuple):
            _check_throttled_replicas(name, value, parsed)
    if topic_value("remote.storage.enable", config, overrides):
        raise ConfigError(
            "remote.storage.enable", "true", "", "tiered storage is not served by these brokers"
        )
    check_compaction_lags(config, overrides)


def _check_throttled_replicas(name: str, value: str, entries: tuple[str, ...]) -> None:
    if entries != ("*",) and not all(map(_THROTTLED_REPLICA.fullmatch, entries)):
        raise ConfigError(name, value, "* alone, or a list partition:broker,partition:broker,...")


def check_compaction_lags(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raises ConfigError where no time would be left for compaction."""
    low, high = (topic_value(name, config, overrides) for name in _COMPACTION_LAGS)
    assert isinstance(low, int) and isinstance(high, int)
    if low > high:
        raise ConfigError(_COMPACTION_LAGS[0], low, f"at most {_COMPACTION_LAGS[1]}, {high}")
