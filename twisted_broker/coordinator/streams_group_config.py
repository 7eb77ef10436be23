"""The settings of streams groups: the broker's, and a group's own between the broker's bounds.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `StreamsGroupConfig`. Invariants: as `consumer_group_config.py`.

Source: Apache Kafka 4.3.1 `GroupCoordinatorConfig`, `GroupConfig.evaluate`. Not here: the check of
what is set (`cluster/stored_settings.py`), and of what a broker starts with
(`config_validation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.consumer_group_config import Bounds, own_values
from twisted_broker.coordinator.rebalance import MOST_MEMBERS
from twisted_broker.coordinator.streams.decision import StreamsGroupSettings

STREAMS_PROTOCOL = "streams"


@dataclass(frozen=True, slots=True)
class StreamsGroupConfig:
    """`bounds` of a group's own value, by the field of `defaults`. `is_served`: the protocol is
    among the broker's.
    """

    defaults: StreamsGroupSettings = field(default_factory=StreamsGroupSettings)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    is_served: bool = True

    def of_group(self, own: Mapping[str, str]) -> StreamsGroupSettings:
        """`own`: the settings of the group itself."""
        if not own:
            return self.defaults
        changes = own_values(own, _OF_GROUPS, self.bounds)
        return replace(self.defaults, **changes)


_BOUNDED = {
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "assignment.interval.ms": "assignment_interval_ms",
}
_REPLICAS = "num_standby_replicas"
_OF_GROUPS = {
    **{f"streams.{setting}": name for setting, name in _BOUNDED.items()},
    "streams.num.standby.replicas": _REPLICAS,
    "streams.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
}


def streams_group_config(config: BrokerConfig) -> StreamsGroupConfig:
    """Of a broker's configuration."""

    def number(name: str) -> int:
        return config.integer(f"group.streams.{name}")

    bounds: dict[str, Bounds] = {
        name: (number(f"min.{setting}"), number(f"max.{setting}"))
        for setting, name in _BOUNDED.items()
    }
    bounds[_REPLICAS] = 0, number("max.standby.replicas")
    protocols = config["group.coordinator.rebalance.protocols"]
    assert isinstance(protocols, tuple)
    return StreamsGroupConfig(
        StreamsGroupSettings(
            **{name: number(setting) for setting, name in _BOUNDED.items()},
            initial_rebalance_delay_ms=number("initial.rebalance.delay.ms"),
            num_standby_replicas=number("num.standby.replicas"),
            max_size=min(number("max.size"), MOST_MEMBERS),
        ),
        bounds,
        STREAMS_PROTOCOL in protocols,
    )
