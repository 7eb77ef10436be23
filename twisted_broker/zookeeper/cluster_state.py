"""The messages of a ZooKeeper cluster's controller as state: the cluster as an image, and the roles
of this broker as deltas.

Owns the newest image (an `ImageSource`), the controller's id and epoch, and the decisions on
LeaderAndIsr, StopReplica and UpdateMetadata.

1. A request of an older controller epoch, or for an older broker epoch, changes nothing.
2. Images come from UpdateMetadata and from `/config`; roles from LeaderAndIsr and StopReplica
   alone, as deltas between two equal images. What UpdateMetadata says of a partition held here
   is for clients only.
3. A partition's error touches no other partition.
4. Only a higher leader epoch begins a role. An equal one gives a topic its id where it had none:
   the cluster's inter-broker protocol was raised. A stop carries the same epoch or a higher one;
   -2 (the topic is being deleted) and -1 (not said) stop whatever is held.

Source: RL 1.3, 1.5; Kafka 3.9's `ReplicaManager.becomeLeaderOrFollower`, `stopReplicas`,
`ZkMetadataCache`. Not here: taking roles (`replication/role_change.py`), settings' nodes
(`config_watch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from twisted_broker.image.acl_index import AclIndexDraft
from twisted_broker.image.entries import (
    LOST,
    UNASSIGNED,
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import (
    TOPIC_RESOURCE,
    ConfigKey,
    MetadataDelta,
    MetadataImage,
    PartitionDelta,
    QuotaEntity,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.wire.messages import zookeeper_controller as messages
    from twisted_broker.wire.messages.metadata_records import (
        AccessControlEntryRecord,
        UserScramCredentialRecord,
    )

LEADER_DURING_DELETE = -2
EPOCH_DURING_DELETE, NO_EPOCH = -2, -1
_ELEMENTS_A_SLICE = 1000
K = TypeVar("K")
V = TypeVar("V")


class ControllerRequest(Protocol):
    """What the controller's requests have in common."""

    controller_id: int
    is_k_raft_controller: bool
    controller_epoch: int
    broker_epoch: int


class HeldPartition(Protocol):
    """What is looked at of a partition held here (`Partition`)."""

    topic_id: bytes
    leader_epoch: int
    offline: bool


class Held(Protocol):
    """The partitions of this broker (`ReplicaManager.partitions`), and its logs' topic ids."""

    def partition(self, name: TopicPartition) -> HeldPartition | None: ...

    def topic_id_of_log(self, name: TopicPartition) -> bytes | None: ...


class Roles(NamedTuple):
    """What LeaderAndIsr asks for: the partitions that change, each refusal, and the ids of topics
    whose partitions had none and keep their roles.
    """

    delta: MetadataDelta
    errors: dict[TopicPartition, ErrorCode]
    topic_ids: dict[TopicPartition, bytes]


class Stops(NamedTuple):
    """What StopReplica asks for. `stopped`: whether its log is to be deleted."""

    stopped: dict[TopicPartition, bool]
    errors: dict[TopicPartition, ErrorCode]


class ClusterState:
    """`listener`: the name of the inter-broker listener, by which the controller is reached."""

    def __init__(self, node_id: int, listener: str) -> None:
        self.image = MetadataImage(offset=0)
        self.controller_id = -1
        self.controller_epoch = 0
        self.broker_epoch = -1
        self.roles_epoch = -1
        """The broker epoch for which the controller sent the newest roles that are applied."""
        self.controller_epochs: dict[TopicPartition, int] = {}
        """The epoch of the controller that decided on the leader of each partition held here."""
        self.leader_waiters: list[Any] = []  # Deferreds, fired with each UpdateMetadata
        self._node_id, self._listener = node_id, listener
        self._subscribers: list[Callable[[MetadataDelta], None]] = []

    # where the controller is: a `ControllerNodeProvider`

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """Of the controller."""
        broker = self.image.brokers.get(self.controller_id)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    @property
    def unreachable(self) -> bool:
        return False

    @property
    def leader_id(self) -> int:
        return self.controller_id

    def subscribe(self, subscriber: Callable[[MetadataDelta], None]) -> None:
        """`subscriber(delta)` is called after each change of the image."""
        self._subscribers.append(subscriber)

    def _publish(self, delta: MetadataDelta) -> None:
        self.image = delta.after
        for subscriber in self._subscribers:
            subscriber(delta)

    # who may command

    def refusal(self, request: ControllerRequest) -> ErrorCode:
        """Of the request as a whole (any of the three): STALE_BROKER_EPOCH, else
        STALE_CONTROLLER_EPOCH, else NONE. INVALID_REQUEST: KRaft controllers migrate the cluster.
        """
        if request.is_k_raft_controller:
            return ErrorCode.INVALID_REQUEST
        # A higher one: the controller saw our new node before we did.
        if -1 < request.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    def _commanded_by(self, request: ControllerRequest) -> None:
        self.controller_epoch = request.controller_epoch
        self.controller_id = request.controller_id

    # LeaderAndIsr

    def leader_and_isr(self, request: messages.LeaderAndIsrRequest, held: Held) -> Roles:
        """After `refusal` gave NONE."""
        self._commanded_by(request)
        delta = MetadataDelta(self.image, self.image)
        errors: dict[TopicPartition, ErrorCode] = {}
        topic_ids: dict[TopicPartition, bytes] = {}
        for topic in request.topic_states:
            topic_id = bytes(topic.topic_id)
            for state in topic.partition_states:
                name = TopicPartition(topic.topic_name, state.partition_index)
                error = self._role_error(name, topic_id, state, held)
                errors[name] = error
                if error is not ErrorCode.NONE and _gets_its_id(
                    held.partition(name), topic_id, state
                ):
                    topic_ids[name], errors[name] = topic_id, ErrorCode.NONE
                if error is ErrorCode.NONE:
                    self.controller_epochs[name] = state.controller_epoch
                    after = _role(state)
                    # Of a partition that is not new the log may be in a directory that is offline.
                    before = None if state.is_new else after._replace(leader=-1)
                    # Topics of 2.6 have no ids: the name tells them apart.
                    key = (topic_id if topic_id != NULL_UUID else name.topic.encode(), name[1])
                    delta.partitions[key] = PartitionDelta(
                        name.topic, topic_id, name.partition, before, after
                    )
        return Roles(delta, errors, topic_ids)

    def _role_error(
        self,
        name: TopicPartition,
        topic_id: bytes,
        state: messages.LeaderAndIsrPartitionState,
        held: Held,
    ) -> ErrorCode:
        partition = held.partition(name)
        known_id = held.topic_id_of_log(name)
        if partition is not None:
            if partition.offline:
                return ErrorCode.KAFKA_STORAGE_ERROR
            known_id = known_id or partition.topic_id
        if NULL_UUID not in (topic_id, known_id or NULL_UUID) and topic_id != known_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if partition is not None and state.leader_epoch <= partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    # StopReplica

    def stop_replica(self, request: messages.StopReplicaRequest, held: Held) -> Stops:
        """After `refusal` gave NONE."""
        self._commanded_by(request)
        stopped: dict[TopicPartition, bool] = {}
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic in request.topic_states:
            for state in topic.partition_states:
                name = TopicPartition(topic.topic_name, state.partition_index)
                error = _stop_error(state, held.partition(name))
                errors[name] = error
                if error is ErrorCode.NONE:
                    stopped[name] = state.delete_partition
        return Stops(stopped, errors)

    def forget(self, name: TopicPartition) -> None:
        """Its replica here was deleted."""
        self.controller_epochs.pop(name, None)

    # UpdateMetadata

    def update_metadata(
        self, request: messages.UpdateMetadataRequest
    ) -> Generator[None, None, None]:
        """After `refusal` gave NONE: publishes the next image. Yields between slices."""
        self._commanded_by(request)
        by_name: dict[str, TopicImage] = dict(self.image.topics_by_name)
        by_id: dict[bytes, TopicImage] = dict(self.image.topics_by_id)
        count = 0
        for topic in request.topic_states:
            topic_id = bytes(topic.topic_id)
            known = by_name.get(topic.topic_name)
            same = known is not None and known.id == topic_id
            partitions = dict(known.partitions) if known is not None and same else {}
            for state in topic.partition_states:
                if state.leader == LEADER_DURING_DELETE:
                    partitions.pop(state.partition_index, None)
                else:
                    partitions[state.partition_index] = _partition(state)
                count += 1
                if count % _ELEMENTS_A_SLICE == 0:
                    yield
            if known is not None:
                by_id.pop(known.id, None)
            by_name.pop(topic.topic_name, None)
            if partitions:
                made = TopicImage(topic.topic_name, topic_id, partitions)
                by_name[topic.topic_name] = made
                if topic_id != NULL_UUID:
                    by_id[topic_id] = made
        brokers = {each.id: _broker(each) for each in request.live_brokers}
        # A topic that is made again under its name must not inherit settings.
        gone = {
            topic.topic_name: self.image.topics_by_name[topic.topic_name]
            for topic in request.topic_states
            if topic.topic_name not in by_name and topic.topic_name in self.image.topics_by_name
        }
        before = self.image  # settings may have come meanwhile
        configs = dict(before.configs)
        for name in gone:
            configs.pop((TOPIC_RESOURCE, name), None)
        after = replace(
            before,
            offset=before.offset + 1,
            epoch=request.controller_epoch,
            brokers=brokers,
            topics_by_name=by_name,
            topics_by_id=by_id,
            configs=configs,
        )
        changed = {
            node
            for node in before.brokers.keys() | brokers.keys()
            if before.brokers.get(node) != brokers.get(node)
        }
        removed = {topic.name.encode(): topic for topic in gone.values()}
        self._publish(MetadataDelta(before, after, brokers=changed, removed_topics=removed))
        waiters, self.leader_waiters = self.leader_waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    # settings

    def set_configs(
        self,
        configs: Mapping[ConfigKey, Mapping[str, str]],
        quotas: Mapping[QuotaEntity, Mapping[str, float]],
        scram: Mapping[str, Mapping[int, UserScramCredentialRecord]],
    ) -> None:
        """The settings and quotas of these entities and the credentials of these users, as their
        nodes say: publishes the next image.
        """
        before = self.image
        settings, of_settings = _with(before.configs, configs)
        rates, of_rates = _with(before.client_quotas, quotas)
        kept = {key: each for key, each in before.scram.items() if key[1] not in scram}
        users = {(code, name): each for name, of in scram.items() for code, each in of.items()}
        credentials = kept | users
        if of_settings or of_rates or credentials != before.scram:
            after = replace(
                before,
                offset=before.offset + 1,
                configs=settings,
                client_quotas=rates,
                scram=credentials,
            )
            self._publish(MetadataDelta(before, after, configs=of_settings, quotas=of_rates))

    def set_acls(
        self,
        removed: Iterable[AccessControlEntryRecord],
        added: Iterable[AccessControlEntryRecord],
    ) -> None:
        """ACLs as their nodes say: publishes the next image."""
        before = self.image
        acls, index = dict(before.acls), AclIndexDraft(before.acl_index)
        for acl in removed:
            if acls.pop(bytes(acl.id), None) is not None:
                index.remove(acl)
        for acl in added:
            if bytes(acl.id) not in acls:  # a node may say it twice
                acls[bytes(acl.id)] = acl
                index.add(acl)
        after = replace(before, offset=before.offset + 1, acls=acls, acl_index=index.finish())
        self._publish(MetadataDelta(before, after))


def _with(
    before: Mapping[K, Mapping[str, V]], found: Mapping[K, Mapping[str, V]]
) -> tuple[Mapping[K, Mapping[str, V]], set[K]]:
    """The table with what was found, without what is empty now; and whose entries differ."""
    changed = {key for key, value in found.items() if before.get(key, {}) != dict(value)}
    if not changed:
        return before, changed
    after = {key: value for key, value in before.items() if key not in changed}
    return after | {key: dict(found[key]) for key in changed if found[key]}, changed


def _gets_its_id(
    partition: HeldPartition | None,
    topic_id: bytes,
    state: messages.LeaderAndIsrPartitionState,
) -> bool:
    """Its role is the one that is held, and its topic was given an id since."""
    return (
        partition is not None
        and not partition.offline
        and state.leader_epoch == partition.leader_epoch
        and partition.topic_id == NULL_UUID != topic_id
    )


def _stop_error(
    state: messages.StopReplicaPartitionState, partition: HeldPartition | None
) -> ErrorCode:
    if partition is None:
        return ErrorCode.NONE  # its log may be there
    if partition.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    epoch = state.leader_epoch
    if epoch not in (EPOCH_DURING_DELETE, NO_EPOCH) and epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE


def _role(state: messages.LeaderAndIsrPartitionState) -> PartitionRegistration:
    replicas = tuple(state.replicas)
    return PartitionRegistration(
        replicas,
        (UNASSIGNED,) * len(replicas),
        tuple(state.isr),
        tuple(state.removing_replicas),
        tuple(state.adding_replicas),
        (),
        (),
        state.leader,
        state.leader_recovery_state,
        state.leader_epoch,
        state.partition_epoch,
    )


def _partition(state: messages.UpdateMetadataPartitionState) -> PartitionRegistration:
    replicas, offline = tuple(state.replicas), state.offline_replicas
    return PartitionRegistration(
        replicas,
        tuple(LOST if replica in offline else UNASSIGNED for replica in replicas),
        tuple(state.isr),
        (),
        (),
        (),
        (),
        state.leader,
        0,
        state.leader_epoch,
        state.zk_version,
    )


def _broker(broker: messages.UpdateMetadataBroker) -> BrokerRegistration:
    """Alive; its epoch is not said."""
    return BrokerRegistration(
        broker.id,
        -1,
        NULL_UUID,
        {
            each.listener: Endpoint(each.listener, each.host, each.port, each.security_protocol)
            for each in broker.endpoints
        },
        {},
        broker.rack,
        False,
        False,
        (),
    )
