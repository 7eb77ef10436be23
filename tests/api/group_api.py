"""Requests of groups and offsets through their codecs: encoded, decoded, answered on a real
coordinator, and the answer the same way back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from tests.coordinator.broker_run import BrokerRun
from twisted_broker.api import audit
from twisted_broker.api.context import BrokerParts, Encoded, ListenerName, RequestContext
from twisted_broker.api.refusals import refusal
from twisted_broker.api.routes import ROUTES
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.offsets_topic import OffsetsTopic
from twisted_broker.image.entries import (
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import Marks
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.schema import decode, encode

LISTENER = ListenerName("PLAINTEXT")
ROWS = {route.name: route for route in ROUTES}
TOPIC_IDS = {"t": b"T" * 16, "u": b"U" * 16}


def partition(leader: int = 1) -> PartitionRegistration:
    return PartitionRegistration((1,), (bytes(16),), (1,), (), (), (), (), leader, 0, 0, 0)


def topic(name: str, topic_id: bytes, count: int = 3, leader: int = 1) -> TopicImage:
    return TopicImage(name, topic_id, {i: partition(leader) for i in range(count)})


def broker(node_id: int = 1, fenced: bool = False) -> BrokerRegistration:
    listeners = {"PLAINTEXT": Endpoint("PLAINTEXT", f"host-{node_id}", 9090 + node_id)}
    return BrokerRegistration(node_id, 5, bytes(16), listeners, {}, None, fenced, False, ())


def image(*topics: TopicImage, brokers: tuple[BrokerRegistration, ...] = ()) -> MetadataImage:
    return MetadataImage(
        topics_by_name={t.name: t for t in topics},
        topics_by_id={t.id: t for t in topics},
        brokers={b.id: b for b in brokers or (broker(),)},
    )


class Denying:
    """An authorizer that refuses what it was told to refuse."""

    def __init__(self) -> None:
        self.denied: set[tuple[Operation, ResourceType, str]] = set()

    def authorize(
        self, principal: Any, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        return (operation, resource, name) not in self.denied and (
            operation,
            resource,
            "*",
        ) not in self.denied

    def authorize_by_resource_type(
        self, principal: Any, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        return (operation, resource, "*") not in self.denied


class ApiRun(BrokerRun):
    """`ask` gives the decoded answer, or a Deferred of it while it waits."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.acl, self.source = (
            Denying(),
            SimpleNamespace(image=image(*(topic(n, i) for n, i in TOPIC_IDS.items()))),
        )
        self.created: list[tuple[Any, Deferred[Any]]] = []
        self.coordinator.offsets_topic = OffsetsTopic(
            self.source, BrokerConfig({"node.id": "99"}), self._create, self.clock
        )
        self.parts = BrokerParts(
            node_id=1,
            cluster_id="c",
            config=BrokerConfig({}),
            runtime=SimpleNamespace(clock=self.clock, marks=Marks()),
            authorizer=self.acl,
            groups=self.coordinator,
            metadata=self.source,
            turns=self.coordinator.context.turns,
        )

    def _create(self, request: Any) -> Deferred[Any]:
        self.created.append((request, Deferred()))
        return self.created[-1][1]

    def start(self, request: Any, version: int, client_id: str | None = "client") -> Any:
        row = ROWS[type(request).__name__.removesuffix("Request")]
        asked = decode(type(request), encode(request, version), version)
        context = RequestContext(
            self.parts, LISTENER, row.api_key, version, 1, client_id, "10.0.0.9"
        )
        answered: Deferred[Any] = ensureDeferred(row.function(False)(context, asked))

        def refuse(failure: Failure) -> Any:
            failure.trap(BrokerError)
            return refusal(
                asked, row.response_class(), version, failure.value.code, failure.value.message
            )

        answered.addErrback(refuse)
        if answered.called:  # as the dispatcher does with each answer
            audit.denied(context)

        def encoded(response: Any) -> bytes:
            return (
                b"".join(response.parts)
                if isinstance(response, Encoded)
                else encode(response, version)
            )

        return answered.addCallback(
            lambda response: decode(row.response_class(), encoded(response), version)
        )

    def ask(self, request: Any, version: int) -> Any:
        waiting = self.start(request, version)
        self.settle()
        assert waiting.called, "not answered yet"
        if isinstance(waiting.result, Failure):
            waiting.result.raiseException()
        return waiting.result


def each_version(name: str) -> Callable[[Any], Any]:
    """Runs a test at every version that is served."""
    import pytest

    served = ROWS[name].broker
    return pytest.mark.parametrize("version", range(served.min, served.max + 1))
