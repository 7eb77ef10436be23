"""The settings of consumer groups: the broker's, and a group's own between the broker's bounds.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ConsumerGroupConfig`, `own_values`.

1. A group's own value is clamped when it is read: the broker's bounds may have changed since it was
   set.
2. A group without settings of its own costs a look into an empty mapping.

Source: Apache Kafka 4.3.1 `GroupCoordinatorConfig`, `GroupConfig.evaluate`. Not here: the check of
what is set (`cluster/stored_settings.py`), and of what a broker starts with
(`config_validation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.consumer.decision import ConsumerGroupSettings
from twisted_broker.coordinator.rebalance import MOST_MEMBERS
from twisted_broker.java_numbers import INT_MAX, parse_whole, trimmed

CONSUMER_PROTOCOL = "consumer"
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """`bounds` of a group's own value, by the field of `defaults`. `is_served`: the protocol is
    among the broker's.
    """

    defaults: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    is_served: bool = True

    def of_group(self, own: Mapping[str, str]) -> ConsumerGroupSettings:
        """`own`: the settings of the group itself."""
        if not own:
            return self.defaults
        changes = own_values(own, _OF_GROUPS, self.bounds)
        return replace(self.defaults, **changes)  # type: ignore[arg-type]


def own_values(
    own: Mapping[str, str], fields: Mapping[str, str], bounds: Mapping[str, Bounds]
) -> dict[str, int]:
    """A group's own settings, by the field of each."""
    changes = {}
    for setting, name in fields.items():
        if setting in own:
            low, high = bounds.get(name, (0, INT_MAX))
            changes[name] = min(max(parse_whole(trimmed(own[setting]), 0, INT_MAX), low), high)
    return changes


_OF_GROUPS = {
    "consumer.session.timeout.ms": "session_timeout_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_interval_ms",
    "consumer.assignment.interval.ms": "assignment_interval_ms",
}


def consumer_group_config(config: BrokerConfig) -> ConsumerGroupConfig:
    """Of a broker's configuration."""

    def number(name: str) -> int:
        return config.integer(f"group.consumer.{name}")

    bounds: dict[str, Bounds] = {}
    values: dict[str, int] = {}
    for setting, name in _OF_GROUPS.items():
        kind = setting.removeprefix("consumer.")
        bounds[name] = number(f"min.{kind}"), number(f"max.{kind}")
        values[name] = number(kind)
    assignors, protocols = (
        config["group.consumer.assignors"],
        config["group.coordinator.rebalance.protocols"],
    )
    assert isinstance(assignors, tuple) and isinstance(protocols, tuple)
    policy = str(config["group.consumer.migration.policy"]).lower()
    return ConsumerGroupConfig(
        ConsumerGroupSettings(
            **values,
            max_size=min(number("max.size"), MOST_MEMBERS),
            assignors=assignors,
            pattern_refresh_interval_ms=number("regex.refresh.interval.ms"),
            may_upgrade=policy in ("bidirectional", "upgrade"),
            may_downgrade=policy in ("bidirectional", "downgrade"),
            classic_max_size=min(config.integer("group.max.size"), MOST_MEMBERS),
        ),
        bounds,
        CONSUMER_PROTOCOL in protocols,
    )
