"""Which metrics a client is asked for, and how often. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Subscriptions`: the client-metrics resources of one state of the metadata.

1. A client pushes the union of the metrics of all subscriptions that match it, at the smallest of
   their intervals, which `DEFAULT_INTERVAL_MS` bounds as in Kafka. `*` stands for all.
2. A subscription matches where each of its patterns matches the whole of its property. One whose
   pattern is beyond the bounds of `linear_pattern.py` matches nobody.
3. The subscription id depends on the metrics, the interval and the client's id alone: every broker
   finds the same one, and so does this one after a restart.
4. Patterns are compiled and matched in steps. The result for a set of subscriptions is shared
   by all clients that they match (`MOST_SHARED`).

Source: GN 5.1, 5.3, 5.4; Apache Kafka 4.3.1 `ClientMetricsManager.createClientInstance`. Not here:
what may be stored (`cluster/stored_settings.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import NamedTuple

from crc32c import crc32c

from twisted_broker.image.metadata_image import CLIENT_METRICS_RESOURCE, ConfigKey
from twisted_broker.known_settings import client_metrics_settings
from twisted_broker.linear_pattern import LinearPattern
from twisted_broker.settings import ConfigError

ALL = "*"
DEFAULT_INTERVAL_MS = 300_000
MOST_SHARED = 1_000
_PER_STEP = 50


class Requested(NamedTuple):
    """What one client pushes: prefixes of names, in order."""

    metrics: tuple[str, ...]
    interval_ms: int

    def subscription_id(self, instance_id: bytes) -> int:
        """Of 32 bits, with a sign."""
        text = ",".join(self.metrics) + str(self.interval_ms)
        number = crc32c(text.encode("utf-8", "surrogatepass")) ^ crc32c(instance_id)
        return number - (1 << 32) if number >> 31 else number


class _Subscription:
    """One resource. `match`: the patterns' texts, compiled at their first use."""

    __slots__ = ("_match", "_patterns", "interval_ms", "metrics")

    def __init__(
        self, metrics: tuple[str, ...], interval_ms: int, match: Mapping[str, str]
    ) -> None:
        self.metrics, self.interval_ms, self._match = metrics, interval_ms, match
        self._patterns: list[tuple[str, LinearPattern]] | None = None

    def matches(self, properties: Mapping[str, str]) -> Generator[None, None, bool]:
        if self._patterns is None:
            compiled = []
            for name, text in self._match.items():
                try:
                    compiled.append((name, LinearPattern(text)))
                except ValueError:  # stored by an Apache Kafka controller
                    return False
                yield
            self._patterns = compiled
        for name, pattern in self._patterns:
            if not (yield from pattern.steps(properties.get(name, ""))):
                return False
        return True


class Subscriptions:
    """Those of one state of the metadata. `version`: another one for each state."""

    def __init__(
        self, version: int, configs: Mapping[ConfigKey, Mapping[str, str]] | None = None
    ) -> None:
        self.version = version
        self._all = list(_parsed(configs or {}))
        self._shared: dict[tuple[int, ...], Requested] = {}

    def __len__(self) -> int:
        return len(self._all)

    def requested(self, properties: Mapping[str, str]) -> Generator[None, None, Requested]:
        """The metrics that a client of these properties is asked for; pauses."""
        found = []
        for number, each in enumerate(self._all):
            if (yield from each.matches(properties)):
                found.append(number)
            if number % _PER_STEP == _PER_STEP - 1:
                yield
        key = tuple(found)
        requested = self._shared.get(key)
        if requested is None:
            requested = _union([self._all[number] for number in found])
            if len(self._shared) < MOST_SHARED:
                self._shared[key] = requested
        return requested


def _union(matching: Iterable[_Subscription]) -> Requested:
    metrics: set[str] = set()
    interval_ms = DEFAULT_INTERVAL_MS
    for each in matching:
        metrics.update(each.metrics)
        interval_ms = min(interval_ms, each.interval_ms)
    return Requested((ALL,) if ALL in metrics else tuple(sorted(metrics)), interval_ms)


def _parsed(configs: Mapping[ConfigKey, Mapping[str, str]]) -> Iterable[_Subscription]:
    rows = client_metrics_settings()
    for (kind, _), values in configs.items():
        if kind != CLIENT_METRICS_RESOURCE:
            continue
        try:
            metrics, interval_ms, match = (
                rows[name].parse(values[name]) if name in values else rows[name].default
                for name in ("metrics", "interval.ms", "match")
            )
        except ConfigError:  # nothing that may be stored: it asks for nothing
            continue
        assert isinstance(metrics, tuple) and isinstance(interval_ms, int)
        assert isinstance(match, tuple)
        pairs = (each.partition("=") for each in match)
        patterns = {name.strip(): pattern.strip() for name, _, pattern in pairs}
        yield _Subscription(metrics, interval_ms, patterns)
