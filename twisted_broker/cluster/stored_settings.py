"""Settings of groups and of client metrics: what may be stored.

1. A value is stored only when it fits its own range, the broker's bounds of the same meaning, and
   the others of the resource.

Source: Kafka's `GroupConfig.validate`, `ClientMetricsConfigs.validate`; KIP-848, KIP-714. Not here:
what obeys them (`coordinator`, `share`, `telemetry`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.java_numbers import INT_MAX, INT_MIN, parse_whole, trimmed
from twisted_broker.known_settings import client_metrics_settings, group_settings
from twisted_broker.linear_pattern import LinearPattern
from twisted_broker.log_config import own_or_broker_value
from twisted_broker.settings import ConfigError, Setting
from twisted_broker.wire.errors import BrokerError, ErrorCode

_MATCHED = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_RESETS = re.compile(
    r"latest|earliest|by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
    re.IGNORECASE | re.ASCII,
)


def check_group(name: str, values: Mapping[str, str], config: BrokerConfig) -> None:
    """Raises BrokerError or ConfigError for values that group `name` cannot have."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a group needs a name")
    rows = group_settings()
    for key, value in values.items():
        if key not in rows:
            raise ConfigError(key, value, "", "groups have no such setting")
        rows[key].parse(value)
        _check_bounds(rows[key], value, config)
    reset = values.get("share.auto.offset.reset", "latest")
    if _RESETS.fullmatch(reset) is None:
        raise ConfigError(
            "share.auto.offset.reset", reset, "latest, earliest or by_duration:PnDTnHnMn.nS"
        )
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = (
            own_or_broker_value(rows[f"{kind}.{each}"], config, values)
            for each in ("session.timeout.ms", "heartbeat.interval.ms")
        )
        assert isinstance(session, int) and isinstance(heartbeat, int)
        if session <= heartbeat:
            raise ConfigError(
                f"{kind}.session.timeout.ms", session, f"more than the heartbeat, {heartbeat}"
            )


def _check_bounds(row: Setting, value: str, config: BrokerConfig) -> None:
    """The broker's least and most, where it has them: `group.KIND.min.REST`, `.max.REST`."""
    kind, _, rest = row.name.partition(".")
    number = row.parse(value)
    if not isinstance(number, int) or isinstance(number, bool):
        return
    rest = rest.removeprefix("num.") if rest == "num.standby.replicas" else rest
    for word, sign in (("min", 1), ("max", -1)):
        bound = f"group.{kind}.{word}.{rest}"
        try:
            limit = config[bound]
        except KeyError:
            continue
        if isinstance(limit, int) and (limit - number) * sign > 0:
            raise ConfigError(row.name, value, f"what {bound} allows, {limit}")


def check_client_metrics(name: str, values: Mapping[str, str]) -> None:
    """Raises BrokerError or ConfigError for values that a subscription cannot have."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a subscription needs a name")
    rows = client_metrics_settings()
    for key in values:
        if key not in rows:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"client metrics have no setting {key}")
    for key, value in values.items():
        try:
            parsed = rows[key].parse(value)
        except ConfigError as error:
            if key == "interval.ms" and _is_int(value):
                raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from None
            raise
        if key == "match":
            assert isinstance(parsed, tuple)
            for entry in parsed:
                _check_match(entry)


def _is_int(text: str) -> bool:
    try:
        parse_whole(trimmed(text), INT_MIN, INT_MAX)
    except ValueError:
        return False
    return True


def _check_match(entry: str) -> None:
    """A client's property and a pattern, `NAME=PATTERN`."""
    name, _, pattern = entry.partition("=")
    accepted = "NAME=PATTERN, NAME one of " + ", ".join(sorted(_MATCHED))
    if name.strip() not in _MATCHED or not pattern or "=" in pattern:
        raise ConfigError("match", entry, accepted)
    try:
        LinearPattern(pattern.strip())
    except ValueError as error:
        raise ConfigError("match", entry, f"{accepted}; the pattern: {error}") from None
