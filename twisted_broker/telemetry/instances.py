"""The clients that push metrics to this broker, and the values they pushed.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ClientInstances`: who may ask and push when, and the series kept.

1. A client may ask for its subscription once in an interval, and push once in one; one push right
   after it asked is allowed, and so is the last one before it goes. It may ask again at once after
   a push that did not fit its subscription.
2. An instance goes after max(60 s, three intervals) without a request, with the connection that it
   was met on, for the least recently used one beyond `MOST_INSTANCES`, and where the subscriptions
   changed: the next request makes it anew, as of a client that was not met before. Its values go
   with it; a restart knows none.
3. Memory is bounded for any payload: `MOST_SERIES` of an instance, `MOST_SERIES_IN_ALL` and
   `MOST_CHARACTERS` of all. What finds no room is counted. Names and labels are made of the
   characters that Prometheus allows, and are cut at `LONGEST`.
4. The total of a delta is kept: a sum that is no number is not added, nor is what would make a
   counter fall.

Source: GN 5.3-5.10; Apache Kafka 4.3.1 `ClientMetricsManager`, `ClientMetricsInstance`. Not here:
what is asked for (`subscriptions.py`), what a payload says (`otlp.py`), the lines of a scrape
(`status/client_metrics.py`).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple

from twisted_broker.image.metadata_image import ConfigKey
from twisted_broker.telemetry.otlp import LONGEST, Point
from twisted_broker.telemetry.subscriptions import ALL, Requested, Subscriptions
from twisted_broker.wire.compression import CODEC_NAMES
from twisted_broker.wire.errors import BrokerError, ErrorCode

MOST_INSTANCES = 16_384
MOST_SERIES, MOST_SERIES_IN_ALL, MOST_CHARACTERS = 1_000, 50_000, 8_000_000
LEAST_EXPIRY_MS = 60_000
MOST_BYTES = 4 * 1024 * 1024
"""The most bytes of an inflated payload, also where `telemetry.max.bytes` is more: the reactor
waits.
"""
_SWEEP_MS = 10_000
# The zero id, and that of the metadata topic.
_RESERVED = (bytes(16), bytes(15) + b"\x01")
_ASKS_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
LABELS = ("client_id", "client_software_name", "client_software_version")


class Series(NamedTuple):
    """As Prometheus has it; `labels`: besides those of the client."""

    name: str
    is_counter: bool
    labels: tuple[tuple[str, str], ...]


class ClientInstance:
    """One client. `client`: the values of `LABELS`; `last_error`: of its last request."""

    __slots__ = (
        "characters",
        "client",
        "connection",
        "got_ms",
        "last_error",
        "pushed_ms",
        "requested",
        "seen_ms",
        "series",
        "subscription_id",
        "terminating",
        "version",
    )

    def __init__(
        self,
        instance_id: bytes,
        client: tuple[str, ...],
        requested: Requested,
        version: int,
        connection: Hashable,
        now_ms: float,
    ) -> None:
        self.client = tuple(each[:LONGEST] for each in client)
        self.requested, self.version, self.connection = requested, version, connection
        self.subscription_id = requested.subscription_id(instance_id)
        self.seen_ms = now_ms
        self.got_ms = self.pushed_ms = float("-inf")
        self.terminating = False
        self.last_error = ErrorCode.NONE
        self.series: dict[Series, float] = {}
        self.characters = 0

    @property
    def expires_ms(self) -> float:
        return self.seen_ms + max(LEAST_EXPIRY_MS, 3 * self.requested.interval_ms)

    def is_asked_for(self, name: str) -> bool:
        """Whether its subscription names the metric."""
        return self.requested.metrics == (ALL,) or name.startswith(self.requested.metrics)

    def may_get(self, now_ms: float) -> bool:
        """Notes that it asked, where it may."""
        if now_ms - max(self.got_ms, self.pushed_ms) >= self.requested.interval_ms:
            self.got_ms = now_ms
            return True
        return self.last_error in _ASKS_AGAIN

    def may_push(self, now_ms: float) -> bool:
        """Notes that it pushed, where it may."""
        may = self.got_ms > self.pushed_ms or now_ms - self.pushed_ms >= self.requested.interval_ms
        if may:
            self.pushed_ms = now_ms
        return may


class ClientInstances:
    """All of a broker, least recently used first. Counters count from the start."""

    def __init__(self) -> None:
        self.unknown_subscriptions = self.throttled = self.exported = self.failed = 0
        self.left_out = 0
        """points that found no room, as far as they were counted"""
        self.export_seconds = 0.0
        self.series_in_all = self.characters = 0
        self._instances: dict[bytes, ClientInstance] = {}
        self._of_connection: dict[Hashable, set[bytes]] = {}
        self._configs: Mapping[ConfigKey, Mapping[str, str]] | None = None
        self._subscriptions = Subscriptions(0)
        self._swept_ms = float("-inf")

    def __len__(self) -> int:
        return len(self._instances)

    def subscriptions(self, configs: Mapping[ConfigKey, Mapping[str, str]]) -> Subscriptions:
        """Those of the image's `configs`, which is another object once one is changed."""
        if configs is not self._configs:
            self._configs = configs
            self._subscriptions = Subscriptions(self._subscriptions.version + 1, configs)
        return self._subscriptions

    # instances

    def find(self, instance_id: bytes, version: int, now_ms: float) -> ClientInstance | None:
        """The instance, if it knows the subscriptions of `version`; used now."""
        self.expire(now_ms)
        found = self._instances.pop(instance_id, None)
        if found is None:
            return None
        self._instances[instance_id] = found
        if found.version != version or found.expires_ms <= now_ms:
            self._forget(instance_id)
            return None
        found.seen_ms = now_ms
        return found

    def add(self, instance_id: bytes, instance: ClientInstance) -> None:
        """One that `find` did not find."""
        while len(self._instances) >= MOST_INSTANCES:
            self._forget(next(iter(self._instances)))
        self._instances[instance_id] = instance
        self._of_connection.setdefault(instance.connection, set()).add(instance_id)

    def connection_lost(self, connection: Hashable) -> None:
        """Forgets the instances that were met on it."""
        for instance_id in self._of_connection.pop(connection, ()):
            self._forget(instance_id)

    def expire(self, now_ms: float) -> None:
        """Forgets those that were not seen for long; looks every `_SWEEP_MS`."""
        if now_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        for key in [key for key, each in self._instances.items() if each.expires_ms <= now_ms]:
            self._forget(key)

    def _forget(self, instance_id: bytes) -> None:
        gone = self._instances.pop(instance_id)
        self.series_in_all -= len(gone.series)
        self.characters -= gone.characters
        others = self._of_connection.get(gone.connection)
        if others is not None:
            others.discard(instance_id)
            if not others:
                del self._of_connection[gone.connection]

    # requests

    def check_get(self, instance: ClientInstance, now_ms: float) -> None:
        """Raises THROTTLING_QUOTA_EXCEEDED for one that asks too early."""
        if not instance.may_get(now_ms):
            self.throttled += 1
            raise BrokerError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.last_error = ErrorCode.NONE

    def check_push(
        self,
        instance: ClientInstance,
        subscription_id: int,
        terminating: bool,
        codec: int,
        size: int,
        most_bytes: int,
        now_ms: float,
    ) -> None:
        """Raises the first reason against a push, in Kafka's order."""
        was_terminating, instance.terminating = instance.terminating, terminating
        code = ErrorCode.NONE
        if was_terminating:
            code = ErrorCode.INVALID_REQUEST
        elif not instance.may_push(now_ms) and not terminating:
            self.throttled += 1
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        elif subscription_id != instance.subscription_id:
            self.unknown_subscriptions += 1
            code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        elif not 0 <= codec < len(CODEC_NAMES):
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif size > most_bytes:
            code = ErrorCode.TELEMETRY_TOO_LARGE
        instance.last_error = code
        if code:
            raise BrokerError(code)

    def fail(self, instance: ClientInstance, code: ErrorCode) -> BrokerError:
        """The payload cannot be read."""
        self.failed += 1
        instance.last_error = code
        return BrokerError(code)

    # values

    def take(self, instance_id: bytes, instance: ClientInstance, points: Iterable[Point]) -> None:
        """Keeps the pushed series, unless the instance is gone meanwhile."""
        if self._instances.get(instance_id) is not instance:
            return
        for point in points:
            series = Series(
                "client_" + _NOT_IN_NAMES.sub("_", point.name),
                point.is_monotonic,
                _labels(point.attributes),
            )
            before = instance.series.get(series)
            if before is None and not self._has_room(instance, series):
                self.left_out += 1
                continue
            value = point.value
            if point.is_delta:
                if not isfinite(value) or (point.is_monotonic and value < 0):
                    value = 0
                value += before or 0
            instance.series[series] = value

    def _has_room(self, instance: ClientInstance, series: Series) -> bool:
        """Whether one more may be kept; it is counted then."""
        characters = len(series.name) + sum(len(key) + len(text) for key, text in series.labels)
        if (
            len(instance.series) >= MOST_SERIES
            or self.series_in_all >= MOST_SERIES_IN_ALL
            or self.characters + characters > MOST_CHARACTERS
        ):
            return False
        self.series_in_all += 1
        self.characters += characters
        instance.characters += characters
        return True

    def values(self) -> Iterator[tuple[tuple[str, ...], list[tuple[Series, float]]]]:
        """Of each instance that has some: its labels, and its series; the one that was used last
        comes last. Instances may come and go meanwhile.
        """
        for each in list(self._instances.values()):
            if each.series:
                yield each.client, list(each.series.items())


def is_reserved(instance_id: bytes) -> bool:
    """Whether no client has this id."""
    return instance_id in _RESERVED


def _labels(attributes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Each name once, none of them Prometheus' own or one of `LABELS`."""
    found: dict[str, str] = {}
    for key, value in attributes:
        name = _NOT_IN_NAMES.sub("_", key).lstrip("_0123456789")
        if name and name not in LABELS:
            found.setdefault(name, value)
    return tuple(found.items())
