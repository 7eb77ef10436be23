"""docs/PERMISSIONS.md is what the code asks; and what the code is read to ask, it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.api.permissions import Check, checks, page
from twisted_broker.api.routes import ROUTES
from twisted_broker.security.acl import AllowAll
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.groups import DescribeGroupsRequest, HeartbeatRequest
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest

PAGE = Path(__file__).parents[2] / "docs" / "PERMISSIONS.md"
BY_NAME = {route.name: route for route in ROUTES}
# they show nothing of topics, groups or the cluster's state
FREE = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
ON_BROKERS = {"DescribeCluster", "GetTelemetrySubscriptions", "PushTelemetry"}
# the token itself says who may
BY_THE_TOKEN = {"RenewDelegationToken", "ExpireDelegationToken"}


def test_the_page_is_made_from_the_code() -> None:
    """`python -m twisted_broker.api.permissions > docs/PERMISSIONS.md`."""
    assert PAGE.read_text().rstrip("\n").split("\n") == "\n".join(page()).split("\n")


@pytest.mark.parametrize("on_controller", [False, True])
def test_every_api_asks_for_something(on_controller: bool) -> None:
    """Or is passed on to the controller, which asks; but for the few that are free."""
    free = set()
    for route in ROUTES:
        if route.versions(on_controller).max < 0 or checks(route, on_controller):
            continue
        if on_controller or not route.forward:
            free.add(route.name)
    assert free == FREE | (BY_THE_TOKEN if on_controller else ON_BROKERS)


class Noting(AllowAll):
    """Allows nothing, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def authorize(
        self, principal: Any, host: str, operation: Any, resource: Any, name: str
    ) -> bool:
        self.asked.append((operation.name, resource.name))
        return False

    def authorize_by_resource_type(
        self, principal: Any, host: str, operation: Any, resource: Any
    ) -> bool:
        self.asked.append((operation.name, f"any {resource.name}"))
        return False


@pytest.fixture(scope="module")
def broker() -> MemoryBroker:
    return MemoryBroker().start()


@pytest.mark.parametrize(
    ("request_", "version", "first"),
    [
        (FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()])]), 4, 1),
        (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9, 0),
        (HeartbeatRequest(group_id="g"), 4, 0),
        (DescribeGroupsRequest(groups=["g"]), 5, 0),
        (InitProducerIdRequest(transactional_id=None), 4, 1),
        (InitProducerIdRequest(transactional_id="x"), 4, 0),
    ],
)
def test_what_is_read_is_what_is_asked(
    broker: MemoryBroker, request_: Any, version: int, first: int
) -> None:
    """A sample: the checks of a request that is refused, in their order."""
    noting = Noting()
    parts = broker.broker.parts
    before, parts.authorizer = parts.authorizer, noting
    try:
        broker.ask(request_, version)
    finally:
        parts.authorizer = before
    route = BY_NAME[type(request_).__name__.removesuffix("Request")]
    read = [(each.operation, each.resource) for each in checks(route, on_controller=False)]
    assert noting.asked
    assert noting.asked == read[first : first + len(noting.asked)]


def test_checks_that_another_may_replace_are_in_brackets() -> None:
    found = checks(BY_NAME["CreateTopics"], on_controller=True)
    assert found[:2] == [Check("CREATE", "CLUSTER", noted=False), Check("CREATE", "TOPIC")]
    assert str(found[0]) == "(CREATE CLUSTER)"


def test_a_client_that_may_nothing_creates_nothing(broker: MemoryBroker) -> None:
    """A topic that it names is not created for it either."""
    parts = broker.broker.parts
    before, parts.authorizer = parts.authorizer, Noting()
    try:
        broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="made")]), 9)
    finally:
        parts.authorizer = before
    broker.pass_time(2)
    assert parts.metadata is not None and "made" not in parts.metadata.image.topics_by_name
