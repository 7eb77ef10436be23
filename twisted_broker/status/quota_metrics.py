"""The metrics of quotas: what clients use, and how long they wait; what throttled replicas use.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

1. A client has a series while the quota's kind is measured, so only while there are quotas of it;
   of many clients the `MOST_CLIENTS` that were seen last.
2. Names are Kafka's MBeans `type=Produce`, `Fetch`, `Request` and `ControllerMutation`;
   `LeaderReplication`, `FollowerReplication` and `AlterLogDirsReplication`.

Source: Kafka's `ClientQuotaManager`, `ReplicationQuotaManager`. Unlike there, `throttle-time`
is the average of all waits of the sensor, not of the last minute. Not here: what is measured
(`security/quota`, `replication/replication_quota.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

from twisted_broker.security.quota.client_quota_manager import ClientQuotaManager, ClientSensor
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_text import Exposition

MOST_CLIENTS = 200
_KEYS = ("user", "client-id")


def client_quotas(out: Exposition, parts: Any, now_ms: int) -> Iterator[None]:
    """Of both roles: mutations are the controller's."""
    quotas = parts.quotas
    for kind, attribute, doc, manager in (
        ("Produce", "byte-rate", "Bytes of produce requests a second.", quotas.produce),
        ("Fetch", "byte-rate", "Bytes of a consumer's answers a second.", quotas.fetch),
        ("Request", "request-time", "Per cent of the reactor's time.", quotas.request),
    ):
        _of_clients(out, kind, attribute, doc, manager, now_ms)
        yield
    mutations = parts.controller_quotas.controller_mutation
    doc = "Partitions created and deleted a second."
    found = _of_clients(out, "ControllerMutation", "mutation-rate", doc, mutations, now_ms)
    bean = MBean("server", "ControllerMutation", "tokens", Kind.ATTRIBUTE, _KEYS)
    tokens = [
        (labels, round(sensor.tokens.measure(now_ms), 3))
        for labels, sensor in found
        if sensor.tokens is not None and sensor.bound < float("inf")
    ]
    out.bean(bean, "Partitions that may be created or deleted at once.", tokens)
    throttled = sum(each.throttled for factory in parts.listening for each in factory.connections)
    out.add(
        "replog_throttled_connections",
        "gauge",
        "Connections that are not read from, since their client is over its quota.",
        (),
        [((), throttled)],
    )
    yield


def replication_throttles(out: Exposition, replicas: Any, now_ms: int) -> None:
    """A broker's."""
    for kind, doc, quota in (
        ("LeaderReplication", "sent to followers", replicas.leader_quota),
        ("FollowerReplication", "fetched as a follower", replicas.follower_quota),
        ("AlterLogDirsReplication", "copied between directories", replicas.moves.throttle.quota),
    ):
        bean = MBean("server", kind, "byte-rate", Kind.ATTRIBUTE)
        rate = round(quota.byte_rate(now_ms), 3)
        out.bean(bean, f"Bytes a second of throttled replicas, {doc}.", [((), rate)])


def _of_clients(
    out: Exposition, kind: str, attribute: str, doc: str, manager: ClientQuotaManager, now_ms: int
) -> list[tuple[tuple[str, str], ClientSensor]]:
    manager.expire(now_ms)
    found = [
        ((quote(user), client_id), sensor)
        for (user, client_id), sensor in islice(manager.newest(), MOST_CLIENTS)
    ]
    bean = MBean("server", kind, attribute, Kind.ATTRIBUTE, _KEYS)
    rates = [(labels, round(sensor.rate.measure(now_ms), 3)) for labels, sensor in found]
    out.bean(bean, doc, rates)
    bean = MBean("server", kind, "throttle-time", Kind.ATTRIBUTE, _KEYS)
    waits = [
        (labels, round(sensor.throttled_ms / sensor.throttles, 3) if sensor.throttles else 0.0)
        for labels, sensor in found
    ]
    out.bean(bean, "Average wait of a client that was over its quota, in ms.", waits)
    return found
