"""Takes a piece of the metadata log over into the partitions of this broker.

Owns the order in which roles change, and those that are tried again.

1. What goes, goes first (a topic may be deleted and created again under its name in one delta);
   then leaders, then followers, then settings.
2. A partition whose log cannot be opened is held offline; the others go on. Where only descriptors
   are short it has no role yet, and is tried again.
3. Older metadata changes nothing; a delta may skip leader epochs.
4. Coordinators are called last, when all partitions have their new roles.
5. A replica whose log has records of a newer leader epoch than the metadata's does not lead: the
   metadata is older than the log.
6. A partition leaves its fetcher before it is stopped or made leader. Followers with a new leader
   epoch leave their fetchers, and are added again, when all followers have their roles; then moves
   between directories go on under the new epochs.

Source: RL 1.3-1.5; Kafka's `ReplicaManager.applyDelta`, `LocalReplicaChanges`. Not here: fetching
(`fetcher`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.event_lines import some
from twisted_broker.image.entries import PartitionRegistration, is_reserved_directory
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
    PartitionDelta,
    Removals,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.checkpoints import read_partition_metadata
from twisted_broker.log.errors import CheckpointError, LogDirFailure, OutOfDescriptors
from twisted_broker.log.gaps import resolve_gap
from twisted_broker.log_config import LogConfig, obeyed_topic_settings, topic_config
from twisted_broker.replication import directory_moves
from twisted_broker.replication.partition.mirrored_partition import truncate_as_granted
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import older_metadata
from twisted_broker.replication.replication_quota import FOLLOWER_REPLICAS, LEADER_REPLICAS
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.interfaces import IDelayedCall
    from twisted_broker.log.log import Log
    from twisted_broker.replication.replica_manager import ReplicaManager

_logger = Logger()
# Descriptors come free when clients leave.
_AGAIN_SECONDS = 1.0


def apply_delta(replicas: ReplicaManager, delta: MetadataDelta, image: MetadataImage) -> None:
    """Applies a delta; `image` is the image after it. The first one of a start also sets
    strays aside.
    """
    if delta.before.offset < 0 and delta.is_first_piece:
        _set_strays_aside(replicas, image, delta.removals)
    gained: list[tuple[TopicPartition, int]] = []
    lost: list[tuple[TopicPartition, int]] = []
    changes = [
        delta.partitions[key]
        for key in sorted(
            delta.partitions, key=lambda key: (delta.partitions[key].topic, key[1], key[0])
        )
    ]
    for change in changes:
        if (
            change.after is None or replicas.node_id not in change.after.replicas
        ) and not _is_placed_again(replicas, change):
            _stop_replica(replicas, change, lost, keeps_files=delta.by_comparison)
    settings = _TopicConfigs(replicas, image)
    leading = [
        (change, state)
        for change, state in _assigned_here(replicas, changes)
        if state.leader == replicas.node_id
    ]
    replicas.stop_fetching(
        TopicPartition(change.topic, change.partition)
        for change, state in leading
        # The role that is here goes on, with its fetcher.
        if not _is_older(replicas, change, state)
    )
    for change, state in leading:
        _make_leader(replicas, change, state, delta, settings, gained)
    following = [
        _make_follower(replicas, change, state, delta, settings, lost)
        for change, state in _assigned_here(replicas, changes)
        if state.leader != replicas.node_id
    ]
    _start_fetching(
        replicas, [partition for partition in following if partition is not None], image
    )
    directory_moves.go_on(replicas, changes)
    _apply_configs(replicas, delta, image)
    _log_roles(replicas, changes, lost, gained)
    for listener in replicas.leadership_listeners:
        for topic_partition, leader_epoch in lost:
            listener.leadership_lost(topic_partition, leader_epoch)
        for topic_partition, leader_epoch in gained:
            listener.leadership_gained(topic_partition, leader_epoch)


def _log_roles(
    replicas: ReplicaManager,
    changes: Iterable[PartitionDelta],
    lost: list[tuple[TopicPartition, int]],
    gained: list[tuple[TopicPartition, int]],
) -> None:
    """One line for each kind of change that this delta made to the roles here."""
    led = {
        TopicPartition(change.topic, change.partition)
        for change in changes
        if change.before is not None and change.before.leader == replicas.node_id
    }
    removed = [
        TopicPartition(change.topic, change.partition)
        for change in changes
        if change.before is not None
        and replicas.node_id in change.before.replicas
        and (change.after is None or replicas.node_id not in change.after.replicas)
    ]
    for kind, found in (
        ("leadership lost", [name for name, _ in lost if name in led]),
        ("replicas removed", removed),
        ("leadership taken", [name for name, _ in gained]),
    ):
        if found:
            replicas.lines.add(kind, count=len(found), partitions=some(found))


class RoleRetries:
    """Roles that could not be applied, because no file could be opened for them: within a second
    the role that the partition has then is applied. `redeliver(delta)`: to all who apply
    deltas. At most one entry for each partition; a restart applies all roles anyway.
    """

    __slots__ = ("_call", "_redeliver", "_replicas", "_waiting")

    def __init__(
        self,
        replicas: ReplicaManager,
        redeliver: Callable[[MetadataDelta], None],
    ) -> None:
        self._replicas, self._redeliver = replicas, redeliver
        self._waiting: dict[tuple[str, bytes, int], bool] = {}
        self._call: IDelayedCall | None = None

    def later(self, change: PartitionDelta, *, is_new: bool) -> None:
        """`is_new`: whether the partition was new with this change."""
        self.add(change.topic, change.topic_id, change.partition, is_new=is_new)

    def add(self, topic: str, topic_id: bytes, partition: int, *, is_new: bool) -> None:
        """The same, of a partition by its names."""
        self._waiting[topic, topic_id, partition] = is_new
        if self._call is None:
            self._call = self._replicas.runtime.clock.callLater(_AGAIN_SECONDS, self._apply_again)

    def _apply_again(self) -> None:
        self._call = None
        image = self._replicas.image_source.image
        waiting, self._waiting = self._waiting, {}
        self._redeliver(_delta_to_retry(image, waiting, self._replicas.node_id))

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


def _delta_to_retry(
    image: MetadataImage, waiting: Mapping[tuple[str, bytes, int], bool], node_id: int
) -> MetadataDelta:
    """What `image` says of partitions whose logs could not be opened before: topic, its id and
    number, and whether they were new then. A replica that was removed meanwhile goes with the delta
    that says so, which knows whether a record did it.
    """
    changes: dict[tuple[bytes, int], PartitionDelta] = {}
    for (name, topic_id, number), is_new in waiting.items():
        # Topics of an old cluster have no id.
        has_id = topic_id != NULL_UUID
        topic = image.topics_by_id.get(topic_id) if has_id else image.topics_by_name.get(name)
        state = None if topic is None else topic.partitions.get(number)
        if topic is not None and state is not None and node_id in state.replicas:
            changes[topic_id if has_id else name.encode(), number] = PartitionDelta(
                topic.name, topic.id, number, None if is_new else state, state
            )
    return MetadataDelta(image, image, partitions=changes)


def _newest_metadata_reaches(
    replicas: ReplicaManager, leader_epoch: int, change: PartitionDelta
) -> bool:
    """Whether the newest metadata, pieces of which may wait for their turns, has the partition
    at this leader epoch or a newer one, or not at all any more.
    """
    topic = replicas.image_source.image.topics_by_name.get(change.topic)
    state = None if topic is None else topic.partitions.get(change.partition)
    return (
        topic is None
        or topic.id != change.topic_id
        or state is None
        or state.leader_epoch >= leader_epoch
    )


def _is_placed_again(replicas: ReplicaManager, change: PartitionDelta) -> bool:
    """Whether the partition has a role that came after this removal of its replica: it was
    tried again, under the newest metadata, which has the replica here. Its log may count in the
    ISR by now.
    """
    partition = replicas.partitions.get(TopicPartition(change.topic, change.partition))
    topic = replicas.image_source.image.topics_by_id.get(change.topic_id)
    newest = None if topic is None else topic.partitions.get(change.partition)
    return (
        partition is not None
        and newest is not None
        and change.after is not None
        and replicas.node_id in newest.replicas
        and change.after.partition_epoch < partition.partition_epoch <= newest.partition_epoch
    )


class _TopicConfigs:
    """The settings of topics in one image, put together once for all partitions of a topic."""

    __slots__ = ("_by_content", "_config", "_image", "_known", "_lines")

    def __init__(self, replicas: ReplicaManager, image: MetadataImage) -> None:
        self._config, self._lines = replicas.config, replicas.lines
        self._image = image
        self._known: dict[str, LogConfig] = {}
        self._by_content: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, topic: str) -> LogConfig:
        found = self._known.get(topic)
        if found is None:
            stored = self._image.config(TOPIC_RESOURCE, topic)
            obeyed, refused = obeyed_topic_settings(self._config, stored)
            for line in refused:
                self._lines.warn("a stored setting is refused", topic=topic, reason=line)
            # Most topics of a cluster have none, or the same.
            content = frozenset(obeyed.items())
            found = self._by_content.get(content)
            if found is None:
                found = self._by_content[content] = topic_config(self._config, obeyed)
            self._known[topic] = found
        return found


def _set_strays_aside(
    replicas: ReplicaManager, image: MetadataImage, removals: Removals | None
) -> None:
    """Logs that the image does not place here (their topic was deleted meanwhile, or moved) are
    deleted where a record says so, as at a broker that runs. Else they are kept as `-stray`, served
    by nobody.
    """

    def is_removed(log: Log) -> bool:
        number = log.topic_partition.partition
        return removals is not None and removals.has(log.topic_id, number, replicas.node_id, image)

    def topic_id_of(name: TopicPartition) -> bytes | None:
        topic = image.topics_by_name.get(name.topic)
        return None if topic is None else topic.id

    replicas.log_manager.settle_rivals(topic_id_of, is_removed)

    def is_replica(log: Log) -> bool:
        state = image.partition(*log.topic_partition)
        return (
            topic_id_of(log.topic_partition) == log.topic_id
            and state is not None
            and replicas.node_id in state.replicas
        )

    replicas.log_manager.moves.settle(is_replica, is_removed)
    removed = []
    for log in list(replicas.log_manager):
        # The metadata log is no replica of any topic's.
        if log.topic_partition.topic == METADATA_TOPIC:
            continue
        topic = image.topics_by_name.get(log.topic_partition.topic)
        state = None if topic is None else topic.partitions.get(log.topic_partition.partition)
        same_topic = topic is not None and log.topic_id in (None, topic.id)
        if not same_topic or state is None or replicas.node_id not in state.replicas:
            why = "this broker is not one of its replicas"
        elif log.topic_id is None and not _may_get_its_id(replicas, log):
            why = "it has records and no topic id, which an unclean stop may have taken"
        else:
            continue
        if is_removed(log):
            removed.append(log.topic_partition)
            replicas.log_manager.delete(log.topic_partition)
            continue
        replicas.lines.warn(
            f"log renamed to *-stray and kept: {why}", partition=log.topic_partition
        )
        replicas.log_manager.set_stray_aside(log.topic_partition)
    if removed:
        replicas.lines.add(
            "replicas removed while this broker was away",
            count=len(removed),
            partitions=some(removed),
        )


def _may_get_its_id(replicas: ReplicaManager, log: Log) -> bool:
    """Whether a log without a topic id is of the topic that has its name now: records may be those
    of a topic that was deleted meanwhile. As Kafka's `LogManager.isStrayKraftReplica`; but where
    `partition.metadata` is damaged, not lost, it was durable, and the log counts as the topic's.
    """
    if not log.log_end_offset:
        return True
    try:
        return read_partition_metadata(replicas.runtime.files, log.directory) is not None
    except CheckpointError:
        return True
    except OSError as error:
        log.fail(error)
        return False


def _assigned_here(
    replicas: ReplicaManager, changes: Iterable[PartitionDelta]
) -> Iterable[tuple[PartitionDelta, PartitionRegistration]]:
    return [
        (change, change.after)
        for change in changes
        if change.after is not None and replicas.node_id in change.after.replicas
    ]


def _is_older(
    replicas: ReplicaManager, change: PartitionDelta, state: PartitionRegistration
) -> bool:
    """Whether the partition has a newer role than `state` already: it was tried again, under the
    newest metadata, before this piece had its turn.
    """
    partition = replicas.partitions.get(TopicPartition(change.topic, change.partition))
    return partition is not None and state.partition_epoch < partition.partition_epoch


def _stop_replica(
    replicas: ReplicaManager,
    change: PartitionDelta,
    lost: list[tuple[TopicPartition, int]],
    *,
    keeps_files: bool,
) -> None:
    topic_partition = TopicPartition(change.topic, change.partition)
    partition = replicas.partitions.get(topic_partition)
    if partition is None or partition.topic_id != change.topic_id:
        return
    # Before the log goes: a fetch in flight must find no partition to append to.
    replicas.stop_fetching([topic_partition])
    replicas.moves.remove([topic_partition])
    replicas.drop_partition(topic_partition)
    epoch = partition.leader_epoch
    partition.stop()
    logs = replicas.log_manager
    # A future log may be all that is here of a log in a directory that is offline.
    log = logs.get(topic_partition) or logs.moves.future(topic_partition)
    if log is not None and log.topic_id in (
        None,
        change.topic_id,
    ):  # never the log of another topic of that name
        if keeps_files:
            # A snapshot lacks it, no record removed it: a controller that was restored from an old
            # copy and went on looks the same. A log that may be somebody's only copy is not
            # deleted.
            replicas.lines.warn(
                "log renamed to *-stray and kept: the metadata snapshot lacks its partition",
                partition=topic_partition,
            )
            logs.set_stray_aside(topic_partition)
        else:
            logs.delete(topic_partition)
    lost.append((topic_partition, epoch))


def _make_leader(
    replicas: ReplicaManager,
    change: PartitionDelta,
    state: PartitionRegistration,
    delta: MetadataDelta,
    settings: _TopicConfigs,
    gained: list[tuple[TopicPartition, int]],
) -> None:
    partition, log = _partition_and_log(replicas, change, state, delta, settings)
    if log is None:
        return
    newest = log.leader_epochs.latest_epoch
    if (
        newest > state.leader_epoch
    ):  # its next append would be truncated by the next recovery: epochs in a log only grow
        if state.partition_epoch < partition.partition_epoch and _newest_metadata_reaches(
            replicas, newest, change
        ):
            # The retry of a role came from the newest metadata, before the pieces of a large delta
            # that still wait: an older epoch in this piece is no sign of an older controller.
            return
        reason = older_metadata(
            newest,
            f"the metadata makes it leader at epoch {state.leader_epoch}",
            log.directory,
        )
        partition.following_failed(reason, replicas.runtime.now_ms())
        partition.fail(reason)
        return
    try:
        truncation = truncate_as_granted(partition, state, replicas.runtime.wall_ms())
        if truncation is not None:
            _logger.warn(
                "{truncation}: the source of the mirror lost these records", truncation=truncation
            )
        if partition.make_leader(state, log, replicas.runtime.now_ms()):
            gained.append((partition.topic_partition, state.leader_epoch))
    except OutOfDescriptors:
        # Its previous role goes on until the retry.
        replicas.role_retries.later(change, is_new=False)
    except LogDirFailure as failure:
        replicas.directory_failed(failure.directory, failure.cause)
        partition.fail(str(failure))
    except Exception as error:
        _logger.failure("making {partition} a leader failed", partition=partition.topic_partition)
        replicas.fail_alone(partition, f"making it a leader failed: {error}")


def _make_follower(
    replicas: ReplicaManager,
    change: PartitionDelta,
    state: PartitionRegistration,
    delta: MetadataDelta,
    settings: _TopicConfigs,
    lost: list[tuple[TopicPartition, int]],
) -> Partition | None:
    """The partition, when it must be fetched again: its leader epoch is new."""
    partition, log = _partition_and_log(replicas, change, state, delta, settings)
    if log is None and not partition.offline:
        return None
    # A leader that failed is none any more, but coordinators were not told that it lost that role.
    led = partition.is_leader or partition.leader_id == replicas.node_id
    epoch_is_new = partition.make_follower(state, log, replicas.runtime.now_ms())
    if led and not partition.is_leader:
        lost.append((partition.topic_partition, state.leader_epoch))
    return partition if epoch_is_new else None


def _start_fetching(
    replicas: ReplicaManager, partitions: Iterable[Partition], image: MetadataImage
) -> None:
    """RL 1.4.

    A broker in controlled shutdown no longer fetches the partitions whose ISR it has left.
    """
    own = image.brokers.get(replicas.node_id)
    if own is None or not own.in_controlled_shutdown:
        replicas.start_fetching(partitions)
        return
    staying: list[Partition] = []
    leaving: list[Partition] = []
    for partition in partitions:
        state = image.partition(*partition.topic_partition)
        in_sync = state is not None and state.leader >= 0 and replicas.node_id in state.isr
        (staying if in_sync else leaving).append(partition)
    replicas.stop_fetching(partition.topic_partition for partition in leaving)
    replicas.start_fetching(staying)


def _is_led_elsewhere(replicas: ReplicaManager, state: PartitionRegistration) -> bool:
    """Whether another broker leads, or will lead, from which lost records are fetched again. A
    leader, or a replica that may be elected, does not truncate: what it would drop may be
    acknowledged and nowhere else.
    """
    if state.leader >= 0:
        return state.leader != replicas.node_id
    return not state.may_elect(replicas.node_id)


def _partition_and_log(
    replicas: ReplicaManager,
    change: PartitionDelta,
    state: PartitionRegistration,
    delta: MetadataDelta,
    settings: _TopicConfigs,
) -> tuple[Partition, Log | None]:
    """The partition and its log, made when they are not there yet.

    A log that cannot be opened leaves the partition offline.
    """
    topic_partition = TopicPartition(change.topic, change.partition)
    partition = replicas.partitions.get(topic_partition) or replicas.new_partition(
        topic_partition, change.topic_id
    )
    if partition.topic_id == NULL_UUID != change.topic_id:
        try:
            _identify(replicas, partition, change.topic_id)
        except LogDirFailure as failure:
            replicas.directory_failed(failure.directory, failure.cause)
            partition.fail(str(failure))
    if partition.offline:
        return partition, None
    if partition.log is not None:
        # A gap is left if there was no leader when the log was opened. Older metadata decides
        # nothing about it.
        is_decided = partition.log.gap is None or (
            state.partition_epoch >= partition.partition_epoch
            and _decide_about_gap(replicas, change, partition, partition.log, state)
        )
        return partition, partition.log if is_decided else None
    directory_id = state.directory_of(replicas.node_id)
    config = settings.of(change.topic)
    # The first delta of a start shows old partitions as new: their logs may be in a directory that
    # is offline. One that a reassignment adds later was in none.
    was_here = change.before is not None and replicas.node_id in change.before.replicas
    is_new = (not was_here and delta.before.offset >= 0) or _is_counted_nowhere(
        replicas, state, directory_id
    )
    try:
        wanted = None if is_reserved_directory(directory_id) else directory_id
        # Topics of an old cluster have no id.
        topic_id = None if change.topic_id == NULL_UUID else change.topic_id
        log = replicas.log_manager.get_or_create(topic_partition, topic_id, config, is_new, wanted)
        if not _decide_about_gap(replicas, change, partition, log, state):
            return partition, None
        replicas.start_log(log)
        return partition, log
    except OutOfDescriptors:
        # Not offline for that: the role is applied again when descriptors may be free.
        replicas.role_retries.later(change, is_new=is_new)
    except LogDirFailure as failure:
        replicas.directory_failed(failure.directory, failure.cause)
        partition.fail(str(failure))
    except BrokerError as refusal:
        reason = f"its log cannot be used: {refusal.message}"
        if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
            # It may be in a directory that is offline, of which the heartbeats tell.
            partition.fail(reason)
        else:
            replicas.fail_alone(partition, reason)
    except Exception as error:
        _logger.failure("opening the log of {partition} failed", partition=topic_partition)
        replicas.fail_alone(partition, f"its log cannot be opened: {error}")
    return partition, None


def _is_counted_nowhere(
    replicas: ReplicaManager, state: PartitionRegistration, directory_id: bytes
) -> bool:
    """Whether a replica may begin empty because its assigned directory is online here without its
    log (Kafka's always may): it neither leads nor may be elected, and the controller knows of no
    other directory.
    """
    own = replicas.node_id
    return not (state.leader == own or state.may_elect(own)) and any(
        each.directory_id == directory_id for each in replicas.log_manager.directories.online()
    )


def _resolve_gap(replicas: ReplicaManager, log: Log, state: PartitionRegistration) -> None:
    """Raises BrokerError."""
    is_elsewhere, is_led = _is_led_elsewhere(replicas, state), state.leader >= 0
    line = resolve_gap(log, is_elsewhere, replicas.runtime.wall_ms(), is_led)
    if line is not None:
        _logger.warn("{partition}: {line}", partition=log.topic_partition, line=line)
    if log.gap is None:
        # Before it has its high watermark, which it gets once: this may be tried again.
        log.durability.sync_what_was_loaded()


def _decide_about_gap(
    replicas: ReplicaManager,
    change: PartitionDelta,
    partition: Partition,
    log: Log,
    state: PartitionRegistration,
) -> bool:
    """Decides about the gap of an open log. False: it can have no role, for now or at all."""
    try:
        _resolve_gap(replicas, log, state)
        return True
    except OutOfDescriptors:
        replicas.role_retries.later(change, is_new=False)
    except LogDirFailure as failure:
        replicas.directory_failed(failure.directory, failure.cause)
        partition.fail(str(failure))
    except BrokerError as refusal:
        replicas.fail_alone(partition, f"its log cannot be used: {refusal.message}")
    return False


def give_topic_id(
    replicas: ReplicaManager,
    topic_partition: TopicPartition,
    topic_id: bytes,
    image: MetadataImage,
) -> None:
    """A topic that had no id has one from now on, and its partition the role that it had. Raises
    LogDirFailure.
    """
    partition = replicas.partitions[topic_partition]
    _identify(replicas, partition, topic_id)
    if not partition.is_leader:
        # What is fetched is requested by its id.
        replicas.stop_fetching([topic_partition])
        _start_fetching(replicas, [partition], image)


def _identify(replicas: ReplicaManager, partition: Partition, topic_id: bytes) -> None:
    log = partition.log
    if log is not None:
        replicas.log_manager.get_or_create(
            partition.topic_partition, topic_id, log.config, False, None
        )
    partition.topic_id = topic_id


def _apply_configs(replicas: ReplicaManager, delta: MetadataDelta, image: MetadataImage) -> None:
    """RL 1.11: settings of topics act at once; a change of the broker's own may change all of
    its topics.
    """
    named = {name for kind, name in delta.configs if kind == TOPIC_RESOURCE}
    settings = _TopicConfigs(replicas, image)
    everything = any(
        kind == BROKER_RESOURCE and name in ("", str(replicas.node_id))
        for kind, name in delta.configs
    )
    if not everything and not named:
        return  # as in nearly every delta: the walk over all partitions would be in each of them
    for topic in named:
        throttled = image.config(TOPIC_RESOURCE, topic)
        for quota, name in (
            (replicas.leader_quota, LEADER_REPLICAS),
            (replicas.follower_quota, FOLLOWER_REPLICAS),
        ):
            quota.set_topic(topic, throttled.get(name, ""), replicas.node_id)
    for partition in replicas.partitions.values():
        topic = partition.topic_partition.topic
        if everything or topic in named:
            partition.update_config(settings.of(topic), replicas.runtime.now_ms())
