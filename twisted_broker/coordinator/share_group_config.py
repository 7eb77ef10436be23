"""The settings of share groups: the broker's, and a group's own between the broker's bounds.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareGroupConfig`. Invariants: as `consumer_group_config.py`.

Source: Apache Kafka 4.3.1 `ShareGroupConfig`, `GroupConfig.evaluate`. Not here: the check of what
is set (`cluster/stored_settings.py`), and of what a broker starts with (`config_validation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.consumer_group_config import Bounds, own_values
from twisted_broker.coordinator.share.decision import ShareGroupSettings


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """`bounds` of a group's own value, by the field of `defaults`."""

    defaults: ShareGroupSettings = field(default_factory=ShareGroupSettings)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def of_group(self, own: Mapping[str, str]) -> ShareGroupSettings:
        """`own`: the settings of the group itself."""
        if not own:
            return self.defaults
        return replace(self.defaults, **own_values(own, _OF_GROUPS, self.bounds))


_BOUNDED = {
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "assignment.interval.ms": "assignment_interval_ms",
}
_OF_GROUPS = {f"share.{setting}": name for setting, name in _BOUNDED.items()}


def share_group_config(config: BrokerConfig) -> ShareGroupConfig:
    """Of a broker's configuration."""

    def number(name: str) -> int:
        return config.integer(f"group.share.{name}")

    return ShareGroupConfig(
        ShareGroupSettings(
            **{name: number(setting) for setting, name in _BOUNDED.items()},
            max_size=number("max.size"),
            # A retry before the share coordinator may have answered would come on top.
            initialize_retry_ms=max(
                number("initialize.retry.interval.ms"), config.integer("offsets.commit.timeout.ms")
            ),
        ),
        {
            name: (number(f"min.{setting}"), number(f"max.{setting}"))
            for setting, name in _BOUNDED.items()
        },
    )
