"""Clients' use of one kind of quota, and how long they wait for having used too much.

Owns `ClientQuotaManager` and its two variants: of time (`RequestQuotaManager`) and of mutations of
the metadata (`ControllerMutationQuotaManager`).

1. The quota of a client is the first that is there for: its user and client id, its user and the
   default client id, its user, the default user and its client id, both defaults, the default
   user, its client id, the default client id.
2. Who has a quota in common has one sensor in common: all client ids of a user whose quota is the
   user's.
3. Nothing is measured while this kind has no quota at all. The last one that goes takes all
   sensors with it.
4. A sensor that nobody used for an hour goes; there are never more than `MOST_SENSORS`, the one
   that was not used for the longest time goes first. A name that is long is kept as its start and
   its hash.
5. A changed quota counts from the next use on; what was measured before stays.

Source: Kafka's `ClientQuotaManager`, `ClientRequestQuotaManager`, `ControllerMutationQuotaManager`,
`StrictControllerMutationQuota`, `PermissiveControllerMutationQuota` (4.3.1); KIP-13, KIP-124,
KIP-599. Unlike there, sensors are limited in number. Not here: what a client's wait does to its
connection (`net/connection.py`), addresses (`connection_rates.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from twisted_broker.security.quota.rate import Rate, TokenBucket
from twisted_broker.wire.errors import BrokerError, ErrorCode

MOST_SENSORS = 20_000
EXPIRY_MS = 3_600_000
_LONGEST_NAME = 256
_LEAST = 1e-9
_BY_CLIENT, _BY_USER, _BY_BOTH = 1, 2, 4

Tags = tuple[str, str]
"""User and client id of a sensor; "" where it is for all of them."""


class ClientSensor:
    """What was measured of one user, client id or both. `bound`: its quota, infinite for none."""

    __slots__ = ("bound", "generation", "last_ms", "rate", "throttled_ms", "throttles", "tokens")

    def __init__(self, rate: Rate, tokens: TokenBucket | None) -> None:
        self.rate = rate
        self.tokens = tokens
        self.bound = math.inf
        self.generation = -1
        self.last_ms = 0
        self.throttles = self.throttled_ms = 0  # since it is there


class ClientQuotaManager:
    """`samples` windows of `window_ms` each. Amounts are bytes, where a subclass says no other."""

    __slots__ = (
        "_both",
        "_clients",
        "_generation",
        "_sensors",
        "_users",
        "enabled",
        "samples",
        "window_ms",
    )

    def __init__(self, samples: int = 11, window_ms: int = 1000) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self.enabled = 0
        """Which levels have a quota, as bits; 0: none, and nothing is measured."""
        # None stands for the default of its kind.
        self._both: dict[tuple[str | None, str | None], float] = {}
        self._users: dict[str | None, float] = {}
        self._clients: dict[str | None, float] = {}
        self._sensors: OrderedDict[Tags, ClientSensor] = OrderedDict()
        self._generation = 0

    def __len__(self) -> int:
        """The sensors that are there."""
        return len(self._sensors)

    def update(
        self,
        bound: float | None,
        *,
        of_user: bool,
        user: str | None,
        of_client: bool,
        client_id: str | None,
    ) -> None:
        """Sets or (None) removes the quota of an entity. `of_user`, `of_client`: of which it is;
        a None name: the default.
        """
        if bound is not None and bound <= 0:
            bound = _LEAST  # no controller writes it; what would be divided by zero waits for ever
        if of_user and of_client:
            _put(self._both, (user, client_id), bound)
        elif of_user:
            _put(self._users, user, bound)
        else:
            _put(self._clients, client_id, bound)
        self._generation += 1
        self.enabled = (
            (_BY_CLIENT if self._clients else 0)
            | (_BY_USER if self._users else 0)
            | (_BY_BOTH if self._both else 0)
        )
        if not self.enabled:
            self._sensors.clear()

    def tags(self, user: str, client_id: str) -> Tags:
        """Whose sensor counts for this client."""
        enabled = self.enabled
        if enabled == _BY_USER:
            return user, ""
        if enabled == _BY_BOTH:
            return user, client_id
        if enabled <= _BY_CLIENT:
            return "", client_id
        both, users = self._both, self._users
        if (user, client_id) in both or (user, None) in both:
            return user, client_id
        if user in users:
            return user, ""
        if (None, client_id) in both or (None, None) in both:
            return user, client_id
        return (user, "") if None in users else ("", client_id)

    def limit(self, tags: Tags) -> float:
        """The quota that holds for a sensor, infinite for none."""
        user, client_id = tags
        if user and client_id:
            both = self._both
            for key in ((user, client_id), (user, None), (None, client_id), (None, None)):
                if key in both:
                    return both[key]
            return math.inf
        of_one, name = (self._users, user) if user else (self._clients, client_id)
        return of_one.get(name, of_one.get(None, math.inf)) if name else math.inf

    def sensor(self, user: str, client_id: str, now_ms: int) -> ClientSensor:
        """Found or made."""
        tags = self.tags(user, client_id)
        key = (_short(tags[0]), _short(tags[1]))
        sensor = self._sensors.get(key)
        if sensor is None:
            self.expire(now_ms)
            if len(self._sensors) >= MOST_SENSORS:
                self._sensors.popitem(last=False)
            sensor = self._sensors[key] = self._new_sensor()
        else:
            self._sensors.move_to_end(key)
        sensor.last_ms = now_ms
        if sensor.generation != self._generation:
            sensor.generation = self._generation
            sensor.bound = self.limit(tags)
            if sensor.tokens is not None:
                sensor.tokens.rate = sensor.bound
        return sensor

    def _new_sensor(self) -> ClientSensor:
        return ClientSensor(Rate(self.samples, self.window_ms), None)

    def expire(self, now_ms: int) -> None:
        """Drops the sensors that nobody used for an hour."""
        sensors = self._sensors
        while sensors:
            first = next(iter(sensors))
            if now_ms - sensors[first].last_ms < EXPIRY_MS:
                return
            del sensors[first]

    def newest(self) -> Iterator[tuple[Tags, ClientSensor]]:
        """By user and client id, those that were used last first."""
        return reversed(self._sensors.items())

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Counts `value`; for how many ms the client is to wait."""
        sensor = self.sensor(user, client_id, now_ms)
        sensor.rate.record(value, now_ms)
        # No quota, the usual case of most clients: nothing to compute.
        if sensor.bound == math.inf:
            return 0
        return sensor.rate.throttle_ms(sensor.bound, now_ms)

    def record_no_throttle(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Counts `value` for the client's next request; below zero it takes back."""
        self.sensor(user, client_id, now_ms).rate.record(value, now_ms)

    def throttled(self, user: str, client_id: str, wait_ms: int, now_ms: int) -> None:
        """The client waits `wait_ms` because of this quota."""
        sensor = self.sensor(user, client_id, now_ms)
        sensor.throttles += 1
        sensor.throttled_ms += wait_ms

    def most_in_window(self, user: str, client_id: str) -> float:
        """The most that may be recorded at once by a client that used nothing: more would always
        be throttled.
        """
        if not self.enabled:
            return math.inf
        return self.limit(self.tags(user, client_id)) * (self.samples - 1) * (self.window_ms / 1000)


class RequestQuotaManager(ClientQuotaManager):
    """Amounts are per cent of the time of the broker's thread, in which requests are served: a
    second of it is recorded as 100. A client waits no longer than one window.
    """

    __slots__ = ()

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        return min(super().record(user, client_id, value, now_ms), self.window_ms)


class MutationQuota:
    """The mutations of one request. `is_strict`: what exceeds the quota is refused, else it is
    only waited for.
    """

    __slots__ = ("_at_ms", "_is_strict", "_sensor", "_wait_ms")

    def __init__(self, sensor: ClientSensor | None, is_strict: bool) -> None:
        self._sensor = sensor
        self._is_strict = is_strict
        self._wait_ms = self._at_ms = 0

    def record(self, mutations: int, now_ms: int) -> None:
        """Raises BrokerError(THROTTLING_QUOTA_EXCEEDED)."""
        sensor = self._sensor
        if sensor is None or sensor.tokens is None or sensor.bound == math.inf:
            return
        tokens = sensor.tokens
        if self._is_strict:
            # As long as a token is left, one operation may take more than there are.
            wait_ms = tokens.throttle_ms(now_ms)
            if tokens.measure(now_ms) < 0:
                self._wait_ms, self._at_ms = wait_ms, now_ms
                raise BrokerError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    "The throttling quota has been exceeded.",
                )
        tokens.record(mutations, now_ms)
        sensor.rate.record(mutations, now_ms)
        if not self._is_strict and tokens.measure(now_ms) < 0:
            self._wait_ms, self._at_ms = tokens.throttle_ms(now_ms), now_ms

    def throttle_ms(self, now_ms: int) -> int:
        """What is left of the wait."""
        return max(0, self._wait_ms - (now_ms - self._at_ms)) if self._wait_ms else 0


NO_MUTATION_QUOTA = MutationQuota(None, False)


class ControllerMutationQuotaManager(ClientQuotaManager):
    """Amounts are partitions that are created or deleted; a token each."""

    __slots__ = ()

    def _new_sensor(self) -> ClientSensor:
        return ClientSensor(
            Rate(self.samples, self.window_ms), TokenBucket(math.inf, self.samples, self.window_ms)
        )

    def quota_for(self, user: str, client_id: str, is_strict: bool, now_ms: int) -> MutationQuota:
        """For one request."""
        if not self.enabled:
            return NO_MUTATION_QUOTA
        return MutationQuota(self.sensor(user, client_id, now_ms), is_strict)


def _put(table: dict[Any, float], key: Any, bound: float | None) -> None:
    if bound is None:
        table.pop(key, None)
    else:
        table[key] = bound


def _short(name: str) -> str:
    """A client chooses up to 32 KiB."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: _LONGEST_NAME - 80]}..{digest}"
