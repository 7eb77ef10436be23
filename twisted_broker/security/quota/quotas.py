"""The client quotas of one node, as its metadata has them.

Owns `Quotas`: the four managers, and the rates of addresses.

1. An entity and its key reach the manager of that key; one that is not known is left out, since a
   newer controller may have more of them.
2. `active` is false while there is no quota of clients at all: then a request pays one look at it.

Source: Kafka's `ClientQuotaMetadataManager`, `QuotaFactory`. Not here: which quotas the controller
accepts (`cluster/quota_changes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from twisted_broker.security.quota.client_quota_manager import (
    ClientQuotaManager,
    ControllerMutationQuotaManager,
    RequestQuotaManager,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

QUOTA_KEYS = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
    CONNECTION_CREATION_RATE,
)

Entity = tuple[tuple[str, str | None], ...]
Table = Mapping[Entity, Mapping[str, float]]


class QuotaSettings(Protocol):
    """Of a node (`BrokerConfig`)."""

    def integer(self, name: str) -> int: ...


def quotas_of(
    settings: QuotaSettings, on_ip_rate: Callable[[str | None, float | None], None] | None = None
) -> Quotas:
    """With the windows that the settings give."""
    return Quotas(
        settings.integer("quota.window.num"),
        settings.integer("quota.window.size.seconds") * 1000,
        settings.integer("controller.quota.window.num"),
        settings.integer("controller.quota.window.size.seconds") * 1000,
        on_ip_rate,
    )


class Quotas:
    """`on_ip_rate(address, rate)` is called for a changed rate of connections from an address;
    None: the default address, or no rate.
    """

    __slots__ = (
        "_by_key",
        "active",
        "controller_mutation",
        "fetch",
        "on_ip_rate",
        "produce",
        "request",
    )

    def __init__(
        self,
        samples: int = 11,
        window_ms: int = 1000,
        controller_samples: int = 11,
        controller_window_ms: int = 1000,
        on_ip_rate: Callable[[str | None, float | None], None] | None = None,
    ) -> None:
        self.produce = ClientQuotaManager(samples, window_ms)
        self.fetch = ClientQuotaManager(samples, window_ms)
        self.request = RequestQuotaManager(samples, window_ms)
        self.controller_mutation = ControllerMutationQuotaManager(
            controller_samples, controller_window_ms
        )
        self.on_ip_rate = on_ip_rate
        self.active = False
        self._by_key: dict[str, ClientQuotaManager] = {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.controller_mutation,
        }

    def apply(self, entities: Collection[Entity], before: Table, after: Table) -> None:
        """Takes over what changed for `entities` from one table to the next."""
        if not entities:
            return
        for entity in entities:
            was, now = before.get(entity, {}), after.get(entity, {})
            for key in was.keys() | now.keys():
                if was.get(key) != now.get(key):
                    self._set(dict(entity), key, now.get(key))
        self.active = any(manager.enabled for manager in self._by_key.values())

    def _set(self, entity: dict[str, str | None], key: str, bound: float | None) -> None:
        if IP in entity:
            if key == CONNECTION_CREATION_RATE and self.on_ip_rate is not None:
                self.on_ip_rate(entity[IP], bound)
            return
        manager = self._by_key.get(key)
        if manager is not None and (USER in entity or CLIENT_ID in entity):
            manager.update(
                bound,
                of_user=USER in entity,
                user=entity.get(USER),
                of_client=CLIENT_ID in entity,
                client_id=entity.get(CLIENT_ID),
            )
