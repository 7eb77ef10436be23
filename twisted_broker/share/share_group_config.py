"""The settings of share groups as the leaders of their partitions obey them: the broker's, and a
group's own between the broker's bounds. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareGroupConfig` and `ShareGroupSettings`.

1. A group's own value is clamped when it is read: the broker's bounds may have changed since it was
   set.
2. A group without settings of its own costs a look into an empty mapping.

Source: Apache Kafka 4.3.1 `ShareGroupConfigProvider`, `GroupConfig`; GN 1.25-1.30. Not here: the
check of what is set (`cluster/stored_settings.py`), and of what a broker starts with
(`config_validation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.java_numbers import INT_MAX, parse_whole, trimmed
from twisted_broker.share.share_partition import ShareLimits

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


class ShareGroupSettings(NamedTuple):
    """`reset`: where a group begins that has no offset; `reset_ms`: how long ago, where that is
    BY_DURATION.
    """

    limits: ShareLimits = ShareLimits()
    reads_committed: bool = False
    reset: str = LATEST
    reset_ms: int = 0


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """`bounds` of a group's own value, by the setting's name."""

    defaults: ShareGroupSettings = field(default_factory=ShareGroupSettings)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of_group(self, own: Mapping[str, str]) -> ShareGroupSettings:
        """`own`: the settings of the group itself."""
        if not own:
            return self.defaults
        limits = self.defaults.limits
        for setting, name in _LIMITS.items():
            if setting in own:
                low, high = self.bounds.get(setting, (0, INT_MAX))
                value = parse_whole(trimmed(own[setting]), 0, INT_MAX)
                limits = limits._replace(**{name: min(max(value, low), high)})  # type: ignore[arg-type]
        renew = own.get("share.renew.acknowledge.enable")
        if renew is not None:
            limits = limits._replace(may_renew=trimmed(renew).lower() == "true")
        reset, _, duration = own.get("share.auto.offset.reset", LATEST).partition(":")
        return ShareGroupSettings(
            limits,
            trimmed(own.get("share.isolation.level", "")) == "read_committed",
            reset.lower(),
            duration_ms(duration) if duration else 0,
        )


_LIMITS = {
    "share.delivery.count.limit": "delivery_count_limit",
    "share.record.lock.duration.ms": "record_lock_duration_ms",
    "share.partition.max.record.locks": "max_record_locks",
}


def duration_ms(text: str) -> int:
    """Of an ISO-8601 duration of days to seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration")
    return sum(int(float(value) * _UNITS_MS[unit]) for unit, value in found.groupdict("0").items())


def share_group_config(config: BrokerConfig) -> ShareGroupConfig:
    """Of a broker's configuration."""

    def number(name: str) -> int:
        return config.integer(f"group.share.{name}")

    bounds = {}
    values = {}
    for setting, name in _LIMITS.items():
        kind = setting.removeprefix("share.")
        bounds[setting] = number(f"min.{kind}"), number(f"max.{kind}")
        values[name] = number(kind)
    limits = ShareLimits(**values)  # type: ignore[arg-type]
    return ShareGroupConfig(ShareGroupSettings(limits), bounds)
