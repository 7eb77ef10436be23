"""A request function's surroundings: the client, the listener, and the parts of
the broker.

1. One context per request, gone with its answer.
2. A loop over what a client named, or over what the cluster holds, takes its elements off
   `elements_left`, and awaits `next_turn()` when none is left: no client waits for another's long
   request. That waits only when the time of the slice is over.
3. `metered`, the costs of the request, is there while the node has client quotas, unless the client
   has yet to authenticate.
4. `appended` is set by Produce, and by AppendMirrored, once its records are in the logs: from then
   on, and only then, the connection may start the next of them.

Not here: everything that decides; the parts do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import DeferredLock

from twisted_broker.api.audit import audit_lines
from twisted_broker.api.each import each
from twisted_broker.api.topic_answers import TopicAnswers
from twisted_broker.event_lines import NAMED
from twisted_broker.net.listeners import ListenerName
from twisted_broker.security.acl import (
    CLUSTER_NAME,
    Authorizer,
    Operation,
    ResourceType,
    authorized_operations,
)
from twisted_broker.security.principal import ANONYMOUS, Principal
from twisted_broker.security.quota.quotas import Quotas
from twisted_broker.turns import LOOK_ELEMENTS, SECONDS_PER_TURN, SLICE_ELEMENTS, Turns
from twisted_broker.wire.schema import encode_in_slices, join_bytes

__all__ = ["BrokerParts", "ListenerName", "RequestContext"]

if TYPE_CHECKING:
    from twisted_broker.api.dispatch import Dispatcher
    from twisted_broker.api.throttling import Metered
    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.cluster.controller import Controller
    from twisted_broker.cluster.forwarding_manager import ForwardingManager
    from twisted_broker.cluster.membership import ILifecycle
    from twisted_broker.cluster.token_changes import TokenSettings
    from twisted_broker.coordinator.add_partitions_to_txn_manager import (
        AddPartitionsToTxnManager,
    )
    from twisted_broker.coordinator.group_coordinator import GroupCoordinator
    from twisted_broker.coordinator.offsets_topic import CoordinatorTopic, OffsetsTopic
    from twisted_broker.coordinator.share_state.share_coordinator import ShareCoordinator
    from twisted_broker.coordinator.transaction.transaction_coordinator import (
        TransactionCoordinator,
    )
    from twisted_broker.event_lines import EventLines
    from twisted_broker.interfaces import Runtime
    from twisted_broker.log.log_manager import LogManager
    from twisted_broker.net.connection import KafkaConnection
    from twisted_broker.net.connection_limits import ConnectionFactory
    from twisted_broker.net.dynamic_listener_config import DynamicListenerConfig
    from twisted_broker.replication.live_brokers import ImageSource
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.share.share_partition_manager import SharePartitionManager
    from twisted_broker.telemetry.instances import ClientInstances
    from twisted_broker.zookeeper.control_requests import ControlRequests


Denials = dict[tuple[Operation, ResourceType], tuple[tuple[str, ...], int]]
"""What was denied: the first few names, and how many there were."""
REFUSAL_ELEMENTS = 4
"""What mirroring one element of a request into its refusal costs."""

T = TypeVar("T")
E = TypeVar("E")
_WITHOUT_BROKER = "a request for a broker reached a controller"
# Waits up to the first need no look at the settings; the second is the default of
# connections.max.idle.ms.
_USUAL_WAIT_MS, _LONGEST_WAIT_MS = 30_000, 600_000


class BrokerParts:
    """The parts of one node, joined in `kafka_server.py`; they do not change.

    A part is None where the process lacks its role: `replica_manager`, `metadata`, `forwarding`,
    `groups`, `transactions`, `add_partitions_to_txn`, `telemetry` and `lifecycle` are a broker's,
    `controller` to a controller, `control_requests` to a member of a ZooKeeper cluster.
    `listening`: the factories of its listeners. Either role has quotas of its own. `exports`: held
    by the one payload of client metrics that is inflated.
    """

    __slots__ = (
        "_tokens",
        "add_partitions_to_txn",
        "audit",
        "authorizer",
        "cluster_id",
        "config",
        "control_requests",
        "controller",
        "controller_quotas",
        "dynamic_listeners",
        "exports",
        "features",
        "forwarding",
        "groups",
        "lifecycle",
        "listening",
        "log_manager",
        "metadata",
        "node_id",
        "quotas",
        "replica_manager",
        "runtime",
        "share_partitions",
        "share_state",
        "telemetry",
        "topic_answers",
        "transactions",
        "turns",
    )

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        config: BrokerConfig,
        runtime: Runtime,
        authorizer: Authorizer,
        features: Mapping[str, tuple[int, int]] | None = None,
        log_manager: LogManager | None = None,
        replica_manager: ReplicaManager | None = None,
        metadata: ImageSource | None = None,
        forwarding: ForwardingManager | None = None,
        groups: GroupCoordinator | None = None,
        transactions: TransactionCoordinator | None = None,
        share_state: ShareCoordinator | None = None,
        share_partitions: SharePartitionManager | None = None,
        telemetry: ClientInstances | None = None,
        controller: Controller | None = None,
        turns: Turns | None = None,
        lifecycle: ILifecycle | None = None,
        listening: Sequence[ConnectionFactory] = (),
        audit: EventLines | None = None,
        control_requests: ControlRequests | None = None,
        add_partitions_to_txn: AddPartitionsToTxnManager | None = None,
        quotas: Quotas | None = None,
        controller_quotas: Quotas | None = None,
        dynamic_listeners: DynamicListenerConfig | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.config = config
        self.runtime = runtime
        self.authorizer = authorizer
        self.features = features or {}
        self.log_manager = log_manager
        self.replica_manager = replica_manager
        self.metadata = metadata
        self.forwarding = forwarding
        self.groups = groups
        self.transactions = transactions
        self.share_state = share_state
        self.share_partitions = share_partitions
        self.telemetry = telemetry
        self.controller = controller
        self.turns = turns or Turns(runtime.clock, runtime.marks)
        self.lifecycle = lifecycle
        self.listening = listening
        self.add_partitions_to_txn = add_partitions_to_txn
        self.audit = audit or audit_lines(runtime.clock, node_id)
        self.control_requests = control_requests
        self.quotas = quotas or Quotas()
        self.controller_quotas = controller_quotas or Quotas()
        self.dynamic_listeners = dynamic_listeners
        self.topic_answers = TopicAnswers()
        self.exports = DeferredLock()
        self._tokens: TokenSettings | None = None

    @property
    def tokens(self) -> TokenSettings:
        """The settings of delegation tokens; read at the first use."""
        if self._tokens is None:
            from twisted_broker.cluster.token_changes import token_settings

            self._tokens = token_settings(self.config)
        return self._tokens


class Encoded:
    """An answer whose body was encoded by the function itself, in slices: `parts` one after the
    other.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class RequestContext:
    """One request. `is_forwarded`: it came to a controller inside an Envelope.

    Times are the runtime's; names come from the client and are quoted before they are logged.
    """

    __slots__ = (
        "_dispatcher",
        "_slice_ends",
        "_used",
        "api_key",
        "appended",
        "broker",
        "client_host",
        "client_id",
        "connection",
        "correlation_id",
        "denials",
        "elements_left",
        "listener",
        "metered",
        "principal",
        "raw_request",
        "sliced",
        "version",
    )

    is_forwarded = False

    def __init__(
        self,
        broker: BrokerParts,
        listener: ListenerName,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str = "",
        principal: Principal = ANONYMOUS,
        connection: KafkaConnection | None = None,
        raw_request: bytes | memoryview = b"",
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self.broker = broker
        self.listener = listener
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.principal = principal
        self.connection = connection
        self.raw_request = raw_request
        self._dispatcher = dispatcher
        self.appended = self.sliced = False
        self.metered: Metered | None = None
        self.denials: Denials | None = None
        self.elements_left = LOOK_ELEMENTS
        self._slice_ends = 0.0

    def turn_is_over(self, cost: int = 1) -> bool:
        """Counts `cost` more elements. True: others are served first, await `next_turn`."""
        self.elements_left -= cost
        return self.elements_left < 0

    async def next_turn(self) -> None:
        """Lets other requests be served, unless the elements were used up while time of the slice
        is left. Afterwards `elements_left` is full again.

        What was looked up before may have changed.
        """
        seconds = self.broker.runtime.clock.seconds
        if self.elements_left < 0:
            if not self._slice_ends:
                self._slice_ends, self._used = seconds() + SECONDS_PER_TURN, 0
            self._used += LOOK_ELEMENTS - self.elements_left
            if self._used < SLICE_ELEMENTS and seconds() < self._slice_ends:
                self.elements_left = LOOK_ELEMENTS
                return
        self.sliced = True
        await self.broker.turns.next_turn()
        self.elements_left, self._used = LOOK_ELEMENTS, 0
        self._slice_ends = seconds() + SECONDS_PER_TURN

    async def in_slices(self, work: Generator[None, None, T], cost: int = 0) -> T:
        """Returns what `work` returns; others are served where it pauses. `cost`: the elements that
        one step takes off `elements_left`; 0: others are served at every pause.
        """
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.elements_left -= cost
            if not cost or self.elements_left < 0:
                await self.next_turn()

    def each(self, elements: Iterable[E], cost: int = 1) -> AsyncIterator[E]:
        """The elements, each of which takes `cost` off `elements_left`; others are served in
        between.
        """
        return each(self, elements, cost)

    async def encode(self, response: Any, parts: list[Any]) -> None:
        """Appends the message's bytes in slices. Each slice is joined: millions of small pieces
        would take a tenth of a second to join, and another to free.
        """
        piece: list[Any] = []
        try:
            for _ in encode_in_slices(response, self.version, piece):
                parts += join_bytes(piece)
                piece.clear()
                await self.next_turn()
        finally:  # the caller releases the slices of files among them when this fails
            parts += join_bytes(piece)

    @property
    def dispatcher(self) -> Dispatcher:
        """What called the function: which routes this listener serves."""
        assert self._dispatcher is not None
        return self._dispatcher

    @property
    def metadata(self) -> ImageSource:
        """The image source: `.image` is the newest `MetadataImage`."""
        found = self.broker.metadata
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def replica_manager(self) -> ReplicaManager:
        found = self.broker.replica_manager
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def log_manager(self) -> LogManager:
        found = self.broker.log_manager
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def groups(self) -> GroupCoordinator:
        found = self.broker.groups
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def add_partitions_to_txn(self) -> AddPartitionsToTxnManager:
        found = self.broker.add_partitions_to_txn
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def offsets_topic(self) -> OffsetsTopic:
        found = self.groups.offsets_topic
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def transactions(self) -> TransactionCoordinator:
        found = self.broker.transactions
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def transactions_topic(self) -> CoordinatorTopic:
        found = self.transactions.topic
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def share_state(self) -> ShareCoordinator:
        found = self.broker.share_state
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def share_partitions(self) -> SharePartitionManager:
        found = self.broker.share_partitions
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def telemetry(self) -> ClientInstances:
        found = self.broker.telemetry
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def share_state_topic(self) -> CoordinatorTopic:
        found = self.share_state.topic
        assert found is not None, _WITHOUT_BROKER
        return found

    @property
    def forwarding(self) -> ForwardingManager:
        found = self.broker.forwarding
        assert found is not None, _WITHOUT_BROKER
        return found

    def bounded_wait(self, wait_ms: int) -> int:
        """How long a request may wait, in ms, that names `wait_ms`: at most
        `connections.max.idle.ms`, but never limited below 30 s; 10 minutes where that setting is
        off. Kafka closes the connection after that time.
        """
        if wait_ms <= _USUAL_WAIT_MS:
            return wait_ms
        idle_ms = self.broker.config.integer("connections.max.idle.ms")
        return min(wait_ms, max(_USUAL_WAIT_MS, idle_ms) if idle_ms > 0 else _LONGEST_WAIT_MS)

    def may(
        self, operation: Operation, resource: ResourceType, name: str, noted: bool = True
    ) -> bool:
        """Whether the asking principal may do it. A denial is noted for the audit, but for
        `noted=False`: another permission may do, or it only decides what is shown.
        """
        if self.broker.authorizer.authorize(
            self.principal, self.client_host, operation, resource, name
        ):
            return True
        if noted:
            self._note_denial(operation, resource, name)
        return False

    def may_on_cluster(self, operation: Operation, noted: bool = True) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, noted)

    def may_on_any(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether it may do it to any resource of the type at all."""
        return self.broker.authorizer.authorize_by_resource_type(
            self.principal, self.client_host, operation, resource
        )

    def _note_denial(self, operation: Operation, resource: ResourceType, name: str) -> None:
        if self.denials is None:
            self.denials = {}
        if operation is Operation.CLUSTER_ACTION and self.metered is not None:
            self.metered.is_no_node = True  # kept: the audit forgets its denials
        names, count = self.denials.get((operation, resource), ((), 0))
        if count < NAMED:
            names = (*names, name)
        self.denials[operation, resource] = names, count + 1

    def cluster_operations(self) -> int:
        """The bit field of what the principal may do with the cluster; 0 where it may not even
        describe it.
        """
        if not self.may_on_cluster(Operation.DESCRIBE):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, resource: ResourceType, name: str) -> int:
        """The bit field of what the principal may do with it."""
        return authorized_operations(
            self.broker.authorizer, self.principal, self.client_host, resource, name
        )


class ForwardedContext(RequestContext):
    """Of a request inside an Envelope."""

    __slots__ = ()
    is_forwarded = True
