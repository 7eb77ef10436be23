"""Instances of clients, and requests of theirs at a time that the test says."""

from __future__ import annotations

from typing import Any

from twisted_broker.telemetry.instances import ClientInstance, ClientInstances
from twisted_broker.telemetry.otlp import Point
from twisted_broker.telemetry.subscriptions import Requested
from twisted_broker.wire.errors import BrokerError

INTERVAL_MS = 1000
MOST_BYTES = 100
TOO_EARLY, INVALID = "THROTTLING_QUOTA_EXCEEDED", "INVALID_REQUEST"


class Clients:
    """All ask for `*` at the same interval."""

    def __init__(self, interval_ms: int = INTERVAL_MS) -> None:
        self.all = ClientInstances()
        self.requested = Requested(("*",), interval_ms)
        self.version = 1

    def instance(self, number: int, now_ms: float, connection: str = "c") -> ClientInstance:
        instance_id = number.to_bytes(16, "big")
        found = self.all.find(instance_id, self.version, now_ms)
        if found is None:
            labels = (f"client-{number}", "java", "4.3.1")
            found = ClientInstance(
                instance_id, labels, self.requested, self.version, connection, now_ms
            )
            self.all.add(instance_id, found)
        return found

    def get(self, now_ms: float, number: int = 5) -> str:
        """NONE, or the name of the error."""
        try:
            self.all.check_get(self.instance(number, now_ms), now_ms)
        except BrokerError as refusal:
            return refusal.code.name
        return "NONE"

    def push(
        self,
        now_ms: float,
        number: int = 5,
        other_id: bool = False,
        terminating: bool = False,
        codec: int = 0,
        size: int = 10,
    ) -> str:
        instance = self.instance(number, now_ms)
        subscription_id = instance.subscription_id + other_id
        try:
            self.all.check_push(
                instance, subscription_id, terminating, codec, size, MOST_BYTES, now_ms
            )
        except BrokerError as refusal:
            return refusal.code.name
        return "NONE"

    def take(self, number: int, *points: Point, now_ms: float = 0.0) -> None:
        self.all.take(number.to_bytes(16, "big"), self.instance(number, now_ms), points)

    def shown(self) -> dict[str, float]:
        """Values by client and series."""
        return {
            f"{client[0]} {series.name} {dict(series.labels) or ''}".strip(): value
            for client, rows in self.all.values()
            for series, value in rows
        }


def counter(name: str, value: float, is_delta: bool = True, **labels: Any) -> Point:
    return Point(name, tuple(labels.items()), value, True, is_delta)


def level(name: str, value: float, is_delta: bool = False, **labels: Any) -> Point:
    return Point(name, tuple(labels.items()), value, False, is_delta)
