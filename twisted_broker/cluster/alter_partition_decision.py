"""A leader proposes another ISR: what the controller decides. Also in which directories replicas
lie.

Owns the decisions on AlterPartition and AssignReplicasToDirs.

1. Only the leader, under the current leader epoch and partition epoch, may change its ISR.
2. Every member of the proposed ISR, not only one that joins, must be unfenced, not shutting down,
   and registered under the broker epoch that the leader saw (-1: not checked).
3. A proposal of the state that is there already is granted and writes nothing.
4. When an expansion is refused for a member, the partition epoch rises: no earlier copy of the
   request is granted later. Ours, not Kafka's.
5. A leader of a mirrored topic (`replog.mirror.source`) that must truncate its log as its source
   did proposes itself alone, RECOVERING: granted with a new leader epoch, and recorded as unclean.
   Ours, not Kafka's.

Source: Kafka's `ReplicationControlManager.alterPartition`, KIP-903, KIP-858; `RL 8.4`. Not here:
how a proposal gets here (`alter_partition_manager.py`, the broker's side), completion of
reassignments.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from twisted_broker.cluster.broker_registry import check_epoch
from twisted_broker.cluster.cluster_view import PARTITIONS_PER_STEP, ClusterView
from twisted_broker.cluster.partition_change import change_partition
from twisted_broker.cluster.records import DIRECTORIES_LEVEL
from twisted_broker.image.entries import (
    RECOVERED,
    RECOVERING,
    BrokerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages
from twisted_broker.wire.messages import log_dirs
from twisted_broker.wire.messages.metadata_records import PartitionChangeRecord
from twisted_broker.wire.schema import Record

Members = Sequence[tuple[int, int]]
"""(broker id, broker epoch or -1)."""


def alter_partition(
    view: ClusterView, request: broker_lifecycle_messages.AlterPartitionRequest, version: int
) -> Generator[None, None, tuple[list[Record], broker_lifecycle_messages.AlterPartitionResponse]]:
    """The records of all changes that are granted, and the answer. A change that makes another
    broker the leader is granted, too, and answered with NEW_LEADER_ELECTED. Pauses after every
    `PARTITIONS_PER_STEP`.

    Raises BrokerError(STALE_BROKER_EPOCH).
    """
    check_epoch(view.image, request.broker_id, request.broker_epoch)
    found: list[Record] = []
    topics = []
    count = 0
    for topic_request in request.topics:
        topic = view.image.topics_by_id.get(bytes(topic_request.topic_id))
        answers = []
        for requested in topic_request.partitions:
            count += 1
            if count % PARTITIONS_PER_STEP == 0:
                yield
            answers.append(_answer(view, request.broker_id, topic, requested, version, found))
        topics.append(
            broker_lifecycle_messages.AlterPartitionResponseTopicData(
                topic_id=topic_request.topic_id, partitions=answers
            )
        )
    return found, broker_lifecycle_messages.AlterPartitionResponse(topics=topics)


def _answer(
    view: ClusterView,
    sender: int,
    topic: TopicImage | None,
    requested: broker_lifecycle_messages.AlterPartitionRequestPartitionData,
    version: int,
    found: list[Record],
) -> broker_lifecycle_messages.AlterPartitionResponsePartitionData:
    answer = broker_lifecycle_messages.AlterPartitionResponsePartitionData(
        partition_index=requested.partition_index
    )
    if version >= 3:
        members: Members = [
            (member.broker_id, member.broker_epoch) for member in requested.new_isr_with_epochs
        ]
    else:
        members = [(member, -1) for member in requested.new_isr]
    try:
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = _decide(view, sender, topic, requested, members, found)
    except BrokerError as error:
        answer.error_code = error.code
        return answer
    answer.leader_id, answer.leader_epoch, answer.isr = (
        partition.leader,
        partition.leader_epoch,
        list(partition.isr),
    )
    answer.leader_recovery_state, answer.partition_epoch = (
        partition.leader_recovery_state,
        partition.partition_epoch,
    )
    return answer


def _decide(
    view: ClusterView,
    sender: int,
    topic: TopicImage,
    requested: broker_lifecycle_messages.AlterPartitionRequestPartitionData,
    members: Members,
    found: list[Record],
) -> PartitionRegistration:
    """The partition after the change, whose record goes to `found`.

    Raises BrokerError; nothing is written then, except with NEW_LEADER_ELECTED, and with
    INELIGIBLE_REPLICA for an expansion: the record is in `found` already.
    """
    partition = topic.partitions.get(requested.partition_index)
    if partition is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    isr = [member for member, _ in members]
    _check_epochs(partition, sender, requested)
    truncates = requested.leader_recovery_state == RECOVERING and bool(
        view.topic_setting(topic.name, "replog.mirror.source")
    )
    _check_isr(partition, isr, requested.leader_recovery_state, truncates)
    if not all(_is_isr_eligible(view, member, epoch) for member, epoch in members):
        if not set(isr) <= set(partition.isr):
            # The leader goes back to the ISR that it had, and commits without who was to join. If a
            # connection died, an earlier copy of this request may still be on its way, and come
            # when nothing else speaks against it. The fence of a broker changes no partition that
            # it is not in sync for, so the record must. A shrink that is granted late does no harm:
            # its leader waits for more members than there are.
            found.append(_unchanged(partition, topic, requested.partition_index))
        raise BrokerError(ErrorCode.INELIGIBLE_REPLICA)
    rules = view.rules(topic.name, partition)
    change = change_partition(
        partition,
        topic.id,
        requested.partition_index,
        rules,
        isr=isr,
        recovery_state=requested.leader_recovery_state,
        # Nobody else may lead: what they hold from the offset on is not the source's.
        unclean_shutdown=partition.replicas if truncates else (),
        begins_epoch=truncates,
    )
    if change is None:
        return partition
    found.append(change)
    changed = partition.changed(change)
    # This ISR completed a reassignment that removes the sender: the change is written, but the
    # sender must not apply it as the leader. This error makes it wait for the metadata log.
    if changed.leader != sender:
        raise BrokerError(ErrorCode.NEW_LEADER_ELECTED)
    return changed


def _unchanged(
    partition: PartitionRegistration, topic: TopicImage, number: int
) -> PartitionChangeRecord:
    """A record that raises the partition epoch, and changes nothing else."""
    return PartitionChangeRecord(partition_id=number, topic_id=topic.id, isr=list(partition.isr))


def _check_epochs(
    partition: PartitionRegistration,
    sender: int,
    requested: broker_lifecycle_messages.AlterPartitionRequestPartitionData,
) -> None:
    if (
        requested.leader_epoch > partition.leader_epoch
        or requested.partition_epoch > partition.partition_epoch
    ):
        raise BrokerError(ErrorCode.NOT_CONTROLLER)
    if requested.leader_epoch < partition.leader_epoch:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
    if sender != partition.leader:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if requested.partition_epoch < partition.partition_epoch:
        raise BrokerError(ErrorCode.INVALID_UPDATE_VERSION)


def _check_isr(
    partition: PartitionRegistration, isr: list[int], recovery_state: int, truncates: bool
) -> None:
    good = (
        isr
        and len(set(isr)) == len(isr)
        and set(isr) <= set(partition.replicas)
        and partition.leader in isr
    )
    if not good or recovery_state not in (RECOVERED, RECOVERING):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if recovery_state == RECOVERING and (
        len(isr) > 1 or (partition.leader_recovery_state == RECOVERED and not truncates)
    ):
        raise BrokerError(ErrorCode.INVALID_REQUEST)


def _is_isr_eligible(view: ClusterView, broker_id: int, epoch: int) -> bool:
    broker = view.image.brokers.get(broker_id)
    return broker is not None and broker.may_be_in_isr and epoch in (-1, broker.epoch)


def assign_replicas(
    view: ClusterView, request: log_dirs.AssignReplicasToDirsRequest
) -> Generator[None, None, tuple[list[Record], log_dirs.AssignReplicasToDirsResponse]]:
    """Records in which directory a broker's replicas lie. Pauses after every
    `PARTITIONS_PER_STEP`.

    Raises BrokerError: UNSUPPORTED_VERSION below 3.7-IV2, STALE_BROKER_EPOCH.
    """
    if view.image.metadata_version < DIRECTORIES_LEVEL:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION, "metadata.version does not include log directories"
        )
    broker = check_epoch(view.image, request.broker_id, request.broker_epoch)
    found: list[Record] = []
    directories = []
    count = 0
    for directory in request.directories:
        directory_id = bytes(directory.id)
        topics = []
        for topic_request in directory.topics:
            topic = view.image.topics_by_id.get(bytes(topic_request.topic_id))
            answers = []
            for requested in topic_request.partitions:
                count += 1
                if count % PARTITIONS_PER_STEP == 0:
                    yield
                answer = log_dirs.AssignReplicasToDirsResponsePartitionData(
                    partition_index=requested.partition_index
                )
                answer.error_code = _assign(
                    view, broker, directory_id, topic, requested.partition_index, found
                )
                answers.append(answer)
            topics.append(
                log_dirs.AssignReplicasToDirsResponseTopicData(
                    topic_id=topic_request.topic_id, partitions=answers
                )
            )
        directories.append(
            log_dirs.AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics)
        )
    return found, log_dirs.AssignReplicasToDirsResponse(directories=directories)


def _assign(
    view: ClusterView,
    broker: BrokerRegistration,
    directory: bytes,
    topic: TopicImage | None,
    number: int,
    found: list[Record],
) -> ErrorCode:
    """A replica in a directory that failed (or in none: LOST) leaves the ISR. It is no eligible
    leader replica, and neither is one whose former directory is gone.
    """
    partition = None if topic is None else topic.partitions.get(number)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    directories = [
        directory if replica == broker.id else known
        for replica, known in zip(partition.replicas, partition.directories, strict=True)
    ]
    # A broker that registered below 3.7-IV2 named no directories, and may report this first.
    online = broker.has_online_directory(directory)
    isr = partition.isr if online else [member for member in partition.isr if member != broker.id]
    begins_empty = not online or not broker.has_online_directory(partition.directory_of(broker.id))
    rules = view.rules(topic.name, partition._replace(directories=tuple(directories)))
    gone = (broker.id,) if begins_empty else ()
    change = change_partition(
        partition, topic.id, number, rules, isr=isr, directories=directories, unclean_shutdown=gone
    )
    if change is not None:
        found.append(change)
    return ErrorCode.NONE
