"""THE API table: which APIs are served, at which versions, on which kind of listener, and by which
function.

What ApiVersions answers, what a connection may ask, the refusals and the compatibility document are
all derived from these rows.

1. A row per API; a version that is not in its row is not served and not advertised.
2. The modules of what a broker serves are imported before it is ready (`load_steps`): a request
   waits for no import, and needs no descriptor for one.
3. A row's request and response are `<Name>Request` and `<Name>Response` of
   `wire/messages/<messages>.py`; its function is the name in snake_case in `api/<module>.py`
   (broker; with `*` before the module, controller too) or in `api/controller.py` (controller). A
   row with `forward` and no module is passed on to the controller as it is (`api/forwarding.py`).

Source: Kafka 4.3.1's message definitions; lower versions as in 3.9. Not here: what an API asks of
the authorizer and of the quotas.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from twisted_broker.wire.schema import VersionRange, version_range

RequestFunction = Callable[[Any, Any], Awaitable[Any]]

_CONTROLLER_MODULE = "twisted_broker.api.controller"


class Route:
    """A row. `forward`: what the controller accepts inside an Envelope. `cluster_action`: only for
    other nodes of the cluster.

    `cancel`: a request that waits is given up when its client goes (it changes nothing).
    """

    __slots__ = (
        "api_key",
        "broker",
        "cancel",
        "cluster_action",
        "controller",
        "forward",
        "messages",
        "module",
        "name",
    )

    def __init__(
        self,
        api_key: int,
        name: str,
        messages: str,
        module: str = "",
        *,
        broker: str | None = None,
        controller: str | None = None,
        forward: bool = False,
        cluster_action: bool = False,
        cancel: bool = False,
    ) -> None:
        self.api_key = api_key
        self.name = name
        self.messages = messages
        self.module = module
        self.broker = version_range(broker)
        self.controller = version_range(controller)
        self.forward = forward
        self.cluster_action = cluster_action
        self.cancel = cancel

    def versions(self, on_controller: bool) -> VersionRange:
        """Empty (max below min) where it is not served."""
        return self.controller if on_controller else self.broker

    def request_class(self) -> Any:
        return getattr(
            import_module(f"twisted_broker.wire.messages.{self.messages}"), f"{self.name}Request"
        )

    def response_class(self) -> Any:
        return getattr(
            import_module(f"twisted_broker.wire.messages.{self.messages}"), f"{self.name}Response"
        )

    def function(self, on_controller: bool) -> RequestFunction:
        if self.forward and not self.module and not on_controller:
            forwarding = import_module("twisted_broker.api.forwarding")
            passed_on: RequestFunction = forwarding.forwarded(self.response_class())
            return passed_on
        module = self.function_module(on_controller)
        found: RequestFunction = getattr(module, snake_case(self.name))
        return found

    def function_module(self, on_controller: bool) -> ModuleType:
        """Of what is not forwarded."""
        shared = self.module.startswith("*")
        return import_module(
            _CONTROLLER_MODULE
            if on_controller and not shared
            else f"twisted_broker.api.{self.module.lstrip('*')}"
        )

    def at_once(self, function: Callable[..., Any]) -> Callable[[Any, Any], Any] | None:
        """Of Produce and Fetch of a broker: beside the function stands one that returns the
        response at once, or a coroutine of it.
        """
        if self.api_key > 1:
            return None
        module, name = import_module(f"twisted_broker.api.{self.module}"), snake_case(self.name)
        return getattr(module, f"{name}_at_once") if getattr(module, name) is function else None


def snake_case(name: str) -> str:
    """`OffsetForLeaderEpoch` -> `offset_for_leader_epoch`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


ROUTES: tuple[Route, ...] = (
    Route(0, "Produce", "produce", "produce", broker="0-13"),
    Route(1, "Fetch", "fetch", "fetch", broker="0-18", controller="12-18", cancel=True),
    Route(2, "ListOffsets", "list_offsets", "list_offsets", broker="0-11", cancel=True),
    Route(3, "Metadata", "metadata", "metadata", broker="0-13"),
    Route(8, "OffsetCommit", "offsets", "offsets", broker="0-10"),
    Route(9, "OffsetFetch", "offsets", "offsets", broker="0-10"),
    Route(10, "FindCoordinator", "offsets", "find_coordinator", broker="0-6"),
    Route(11, "JoinGroup", "groups", "groups", broker="0-9"),
    Route(12, "Heartbeat", "groups", "groups", broker="0-4"),
    Route(13, "LeaveGroup", "groups", "groups", broker="0-5"),
    Route(14, "SyncGroup", "groups", "groups", broker="0-5"),
    Route(15, "DescribeGroups", "groups", "groups", broker="0-6"),
    Route(16, "ListGroups", "groups", "groups", broker="0-5"),
    Route(17, "SaslHandshake", "sasl", "*sasl", broker="0-1", controller="0-1"),
    Route(18, "ApiVersions", "api_versions", "*api_versions", broker="0-4", controller="0-4"),
    Route(19, "CreateTopics", "topics", broker="0-7", controller="0-7", forward=True),
    Route(20, "DeleteTopics", "topics", broker="0-6", controller="0-6", forward=True),
    Route(21, "DeleteRecords", "topics", "delete_records", broker="0-2"),
    Route(22, "InitProducerId", "producer_ids", "producer_ids", broker="0-5"),
    Route(
        23,
        "OffsetForLeaderEpoch",
        "offset_for_leader_epoch",
        "offset_for_leader_epoch",
        broker="0-4",
    ),
    Route(24, "AddPartitionsToTxn", "transactions", "transactions", broker="0-5"),
    Route(25, "AddOffsetsToTxn", "transactions", "transactions", broker="0-4"),
    Route(26, "EndTxn", "transactions", "transactions", broker="0-5"),
    Route(27, "WriteTxnMarkers", "transactions", "write_txn_markers", broker="0-2"),
    Route(28, "TxnOffsetCommit", "transactions", "offsets", broker="0-5"),
    Route(29, "DescribeAcls", "acls", "*acls", broker="0-3", controller="0-3"),
    Route(30, "CreateAcls", "acls", "acls", broker="0-3", controller="0-3", forward=True),
    Route(31, "DeleteAcls", "acls", "acls", broker="0-3", controller="0-3", forward=True),
    Route(32, "DescribeConfigs", "configs", "configs", broker="0-4"),
    Route(33, "AlterConfigs", "configs", "configs", broker="0-2", controller="0-2", forward=True),
    Route(34, "AlterReplicaLogDirs", "log_dirs", "log_dirs", broker="1-2"),
    Route(35, "DescribeLogDirs", "log_dirs", "log_dirs", broker="0-5"),
    Route(36, "SaslAuthenticate", "sasl", "*sasl", broker="0-2", controller="0-2"),
    Route(37, "CreatePartitions", "topics", broker="0-3", controller="0-3", forward=True),
    Route(
        38,
        "CreateDelegationToken",
        "tokens",
        "tokens",
        broker="1-3",
        controller="1-3",
        forward=True,
    ),
    Route(
        39,
        "RenewDelegationToken",
        "tokens",
        "tokens",
        broker="1-2",
        controller="1-2",
        forward=True,
    ),
    Route(
        40,
        "ExpireDelegationToken",
        "tokens",
        "tokens",
        broker="1-2",
        controller="1-2",
        forward=True,
    ),
    Route(41, "DescribeDelegationToken", "tokens", "tokens", broker="1-3"),
    Route(42, "DeleteGroups", "groups", "groups", broker="0-2"),
    Route(
        43,
        "ElectLeaders",
        "reassignment",
        broker="0-2",
        controller="0-2",
        forward=True,
    ),
    Route(
        44,
        "IncrementalAlterConfigs",
        "configs",
        "configs",
        broker="0-1",
        controller="0-1",
        forward=True,
    ),
    Route(
        45,
        "AlterPartitionReassignments",
        "reassignment",
        broker="0-1",
        controller="0-1",
        forward=True,
    ),
    Route(
        46,
        "ListPartitionReassignments",
        "reassignment",
        broker="0",
        controller="0",
        forward=True,
    ),
    Route(47, "OffsetDelete", "offsets", "offsets", broker="0"),
    Route(48, "DescribeClientQuotas", "quotas", "quotas", broker="0-1"),
    Route(49, "AlterClientQuotas", "quotas", broker="0-1", controller="0-1", forward=True),
    Route(50, "DescribeUserScramCredentials", "sasl", "sasl", broker="0"),
    Route(51, "AlterUserScramCredentials", "sasl", broker="0", controller="0", forward=True),
    Route(52, "Vote", "quorum", controller="0-2", cluster_action=True),
    Route(53, "BeginQuorumEpoch", "quorum", controller="0-1", cluster_action=True),
    Route(54, "EndQuorumEpoch", "quorum", controller="0-1", cluster_action=True),
    Route(55, "DescribeQuorum", "cluster", "cluster", broker="0-2", controller="0-2", forward=True),
    Route(56, "AlterPartition", "broker_lifecycle", controller="2-3", cluster_action=True),
    Route(57, "UpdateFeatures", "cluster", broker="0-2", controller="0-2", forward=True),
    Route(58, "Envelope", "broker_lifecycle", "*envelope", controller="0", cluster_action=True),
    Route(59, "FetchSnapshot", "quorum", controller="0-1", cluster_action=True),
    Route(60, "DescribeCluster", "cluster", "cluster", broker="0-2", controller="0-2"),
    Route(61, "DescribeProducers", "producers", "producers", broker="0"),
    Route(62, "BrokerRegistration", "broker_lifecycle", controller="0-4", cluster_action=True),
    Route(63, "BrokerHeartbeat", "broker_lifecycle", controller="0-2", cluster_action=True),
    Route(64, "UnregisterBroker", "cluster", broker="0", controller="0", forward=True),
    Route(65, "DescribeTransactions", "transactions", "transactions", broker="0"),
    Route(66, "ListTransactions", "transactions", "transactions", broker="0-2", cancel=True),
    Route(67, "AllocateProducerIds", "producer_ids", controller="0", cluster_action=True),
    Route(68, "ConsumerGroupHeartbeat", "groups", "consumer_groups", broker="0-1"),
    Route(69, "ConsumerGroupDescribe", "groups", "consumer_groups", broker="0-1"),
    Route(70, "ControllerRegistration", "broker_lifecycle", controller="0", cluster_action=True),
    Route(71, "GetTelemetrySubscriptions", "telemetry", "telemetry", broker="0"),
    Route(72, "PushTelemetry", "telemetry", "telemetry", broker="0"),
    Route(73, "AssignReplicasToDirs", "log_dirs", controller="0", cluster_action=True),
    Route(74, "ListConfigResources", "configs", "configs", broker="0-1"),
    Route(75, "DescribeTopicPartitions", "cluster", "metadata", broker="0"),
    Route(76, "ShareGroupHeartbeat", "share_groups", "share_groups", broker="1"),
    Route(77, "ShareGroupDescribe", "share_groups", "share_groups", broker="1"),
    Route(78, "ShareFetch", "share_fetch", "share_fetch", broker="1-2"),
    Route(79, "ShareAcknowledge", "share_fetch", "share_fetch", broker="1-2"),
    Route(80, "AddRaftVoter", "quorum", broker="0-1", controller="0-1", forward=True),
    Route(81, "RemoveRaftVoter", "quorum", broker="0", controller="0", forward=True),
    Route(82, "UpdateRaftVoter", "quorum", controller="0", cluster_action=True),
    Route(
        83,
        "InitializeShareGroupState",
        "share_state",
        "share_state",
        broker="0",
        cluster_action=True,
    ),
    Route(84, "ReadShareGroupState", "share_state", "share_state", broker="0", cluster_action=True),
    Route(
        85, "WriteShareGroupState", "share_state", "share_state", broker="0-1", cluster_action=True
    ),
    Route(
        86, "DeleteShareGroupState", "share_state", "share_state", broker="0", cluster_action=True
    ),
    Route(
        87,
        "ReadShareGroupStateSummary",
        "share_state",
        "share_state",
        broker="0-1",
        cluster_action=True,
    ),
    Route(88, "StreamsGroupHeartbeat", "streams_groups", "streams_groups", broker="0"),
    Route(89, "StreamsGroupDescribe", "streams_groups", "streams_groups", broker="0"),
    Route(90, "DescribeShareGroupOffsets", "share_groups", "share_groups", broker="0-1"),
    Route(91, "AlterShareGroupOffsets", "share_groups", "share_groups", broker="0"),
    Route(92, "DeleteShareGroupOffsets", "share_groups", "share_groups", broker="0"),
    # Ours, not Kafka's.
    Route(30_000, "AppendMirrored", "mirror", "mirror", broker="0"),
)

ZOOKEEPER_ROUTES: tuple[Route, ...] = (
    Route(
        4, "LeaderAndIsr", "zookeeper_controller", "zookeeper", broker="4-7", cluster_action=True
    ),
    Route(5, "StopReplica", "zookeeper_controller", "zookeeper", broker="3-4", cluster_action=True),
    Route(
        6, "UpdateMetadata", "zookeeper_controller", "zookeeper", broker="6-8", cluster_action=True
    ),
)
"""Served besides, by a member of a ZooKeeper cluster: what its controller sends."""
ZOOKEEPER_CHANGES: tuple[Route, ...] = (
    Route(30, "CreateAcls", "acls", "zookeeper_changes", broker="0-3"),
    Route(31, "DeleteAcls", "acls", "zookeeper_changes", broker="0-3"),
    Route(33, "AlterConfigs", "configs", "zookeeper_changes", broker="0-2"),
    Route(44, "IncrementalAlterConfigs", "configs", "zookeeper_changes", broker="0-1"),
    Route(49, "AlterClientQuotas", "quotas", "zookeeper_changes", broker="0-1"),
)
"""Carried out by any member of a ZooKeeper cluster; elsewhere the controller does."""
# Delegation tokens, DescribeQuorum, UnregisterBroker, AddRaftVoter, RemoveRaftVoter
_OF_A_QUORUM = frozenset({38, 39, 40, 41, 55, 64, 80, 81})


def routes_for(on_controller: bool) -> dict[int, Route]:
    """The rows of one kind of listener, by API key."""
    return {route.api_key: route for route in ROUTES if route.versions(on_controller).max >= 0}


def load_steps(rows: Mapping[int, Route], on_controller: bool) -> Iterator[None]:
    """Imports what these rows need, one row in each step; compressions stay for who uses them."""
    for name in ("reader_source", "writer_source"):
        import_module(f"twisted_broker.wire.{name}")
        yield
    for route in rows.values():
        route.request_class()
        route.response_class()
        route.function(on_controller)
        yield


def served_with_zookeeper() -> dict[int, Route]:
    """The rows of a member of a ZooKeeper cluster, by API key."""
    own = {route.api_key: route for route in (*ZOOKEEPER_ROUTES, *ZOOKEEPER_CHANGES)}
    rows = routes_for(on_controller=False) | own
    return {key: rows[key] for key in sorted(rows) if key not in _OF_A_QUORUM}
