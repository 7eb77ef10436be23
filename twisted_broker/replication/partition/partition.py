"""One partition on this broker: led here, followed here, or failed.

Owns its role, its in-sync replicas and what moves its high watermark.

    (new) --make_leader--> leader <--make_leader / make_follower--> follower
    any --fail--> offline (until restarted)

    a follower fetches at the high watermark -> maybe_expand_isr -.
                                                                   }-> IsrChangeWanted -> controller
    one is behind for too long --------------> maybe_shrink_isr --'                           |
                    IsrChanged, or as it was, or again <-- alter_partition_answered <---------'

1. A leader is in its own ISR; a follower's ISR is empty. Leader epochs and partition epochs
   only grow; older metadata changes nothing.
2. A leader's high watermark moves forward only (but for a mirrored log whose source lost records:
   `truncate_led_log`), to the least log end of the maximal ISR and of the eligible replicas that
   are caught up, and not at all while the ISR is below the minimum (RL 2.3). A follower's is the
   lesser of its log end and the leader's high watermark, and may go back.
3. At most one ISR change is on its way (RL 2.5): while it is, nothing else is proposed. A follower
   joins when its log end reached the high watermark and the start of the leader epoch; it leaves
   when it was not caught up for `replica.lag.time.max.ms`, but never while it is at the leader's
   end. The leader itself never leaves.
4. While its log moves to another directory the future log (`future_log`) holds the same records,
   from its own start up to its own end (RL 3.8).
5. Nobody else writes its state. What happened is emitted: `listeners` are called at once, its
   effects run later, from the queue `events`; nothing else outside is touched. Times are
   arguments: `now_ms` monotonic, `wall_ms` the calendar's.

Source: RL 1.10, 1.14, 2.1-2.8, 3.8, 6.3, 6.4; KRAFT 3.6; Kafka's `Partition`. Not here: the states
of an ISR (`isr_state`), offset look-ups (`offset_lookup`), waiting (`delayed_operations`), when a
follower, or a future log, appends or truncates (`fetcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twisted_broker.interfaces import Buffer, TopicPartition
from twisted_broker.log.append_info import AppendOrigin, EndMarker, LogAppendInfo
from twisted_broker.log.errors import UnexpectedAppendOffset
from twisted_broker.log.future_logs import future_config
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.verification import Guard
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.events import (
    BecameFollower,
    Event,
    Events,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrChangeWanted,
    LeaderEpochBegan,
    LogEndChanged,
    LogReplaced,
    LogStartAdvanced,
    LogSynced,
    LogTruncated,
    PartitionFailed,
    PartitionListener,
    ReplicaStopped,
)
from twisted_broker.replication.partition.fetch_data import (
    LOG_END,
    TXN_COMMITTED,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.isr_state import (
    EMPTY_ISR,
    RECOVERED,
    RECOVERING,
    CommittedIsr,
    IsrAnswer,
    IsrProposal,
    IsrState,
    PendingExpand,
    PendingIsr,
    PendingShrink,
    Reaction,
    reaction_to,
)
from twisted_broker.replication.partition.partition_history import PartitionHistory, Truncation
from twisted_broker.replication.partition.remote_replica import RemoteReplica
from twisted_broker.replication.partition.topic_stats import TopicStats
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.image.entries import PartitionRegistration
    from twisted_broker.log.log import Log

_NONE = ErrorCode.NONE


_WITHOUT_LOG: Any = None
"""In place of the events that only a partition with a log emits."""


class Brokers(Protocol):
    """What a leader must know of other brokers."""

    def is_alive(self, broker_id: int) -> bool: ...

    def may_be_in_isr(self, broker_id: int) -> bool:
        """Alive, not fenced, not shutting down."""
        ...

    def is_leaving(self, broker_id: int) -> bool:
        """It announced its controlled shutdown, whose end is that it is fenced."""
        ...

    def epoch_of(self, broker_id: int) -> int:
        """The epoch under which it registered, -1 when it did not."""
        ...


def is_registered(broker_id: int, broker_epoch: int, brokers: Brokers) -> bool:
    """False when a follower fetches under an older broker epoch than the newest known here; one
    that names no epoch (-1) passes (KIP-903).
    """
    return broker_epoch == -1 or broker_epoch >= brokers.epoch_of(broker_id)


def is_current(broker_epoch: int, registered: int) -> bool:
    """Whether a broker that is alive fetches under the epoch that it registered. True when either
    is not known (-1).
    """
    return broker_epoch in (-1, registered) or registered == -1


def _begin_inside_batch(log: Log, refusal: UnexpectedAppendOffset, wall_ms: int) -> None:
    """Lets an empty log begin below its log start, with the batch that contains that offset. Raises
    `refusal` in every other case.
    """
    end = log.log_end_offset
    if log.log_start_offset != end or not refusal.first_offset < end <= refusal.last_offset:
        raise refusal
    log.truncate_fully_and_start_at(refusal.first_offset, wall_ms)


class Partition:
    """See the module's card. `leader_log` is the log while this broker leads it, else None;
    `leadership_generation`: how often this broker ceased to lead it, or truncated the log that it
    leads (`truncate_led_log`). When the number has changed, others may have led, and records may
    have been truncated.
    """

    __slots__ = (
        "_log_end_changed",
        "adding",
        "brokers",
        "events",
        "future_log",
        "high_watermark_advanced",
        "history",
        "isr_state",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leader_log",
        "leadership_generation",
        "listeners",
        "log",
        "max_lag_ms",
        "may_be_elected",
        "node_id",
        "offline",
        "offline_because",
        "partition_epoch",
        "remote_replicas",
        "removing",
        "replicas",
        "stats",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        node_id: int,
        events: Events,
        brokers: Brokers,
        max_lag_ms: int,
        stats: TopicStats | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.events = events
        self.node_id = node_id
        self.brokers = brokers
        self.max_lag_ms = max_lag_ms
        self.log: Log | None = None
        self.leader_log: Log | None = None
        self.leadership_generation = 0
        self.future_log: Log | None = None
        self.offline = False
        self.offline_because = ""
        self.leader_id = -1
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self.may_be_elected = False
        self.isr_state: IsrState = EMPTY_ISR
        self.remote_replicas: dict[int, RemoteReplica] = {}
        self.listeners: tuple[PartitionListener, ...] = ()
        self.history = PartitionHistory()
        self.stats = TopicStats() if stats is None else stats
        self._make_events()

    def _make_events(self) -> None:
        """The most frequent events, made once for each role: every append emits one."""
        self._log_end_changed: Any = LogEndChanged(self)  # both are None once it is stopped
        self.high_watermark_advanced: Any = HighWatermarkAdvanced(self)

    def __repr__(self) -> str:
        role = (
            "offline"
            if self.offline
            else "leads"
            if self.is_leader
            else f"follows {self.leader_id}"
        )
        return (
            f"<partition {self.topic_partition} {role} at epoch {self.leader_epoch} "
            f"{self.isr_state}>"
        )

    # what happens
    def emit(self, event: Event) -> None:
        """Its listeners are called now; its effects run from the queue."""
        if self.listeners:
            self._notify_listeners()
        self.events.append(event)

    def subscribe(self, listener: PartitionListener) -> None:
        """The listener is called for each follower's fetch, and once for the next change."""
        self.listeners += (listener,)

    def unsubscribe(self, listener: PartitionListener) -> None:
        self.listeners = tuple(each for each in self.listeners if each is not listener)

    def _notify_listeners(self) -> None:
        # Taken off first: a subscription ends with the call, and a listener may subscribe again.
        listeners, self.listeners = self.listeners, ()
        for listener in listeners:
            listener.partition_changed()

    # roles
    @property
    def is_leader(self) -> bool:
        return self.leader_log is not None

    def make_leader(self, state: PartitionRegistration, log: Log, now_ms: int) -> bool:
        """RL 2.2.

        True when this broker did not lead it before, or others may have led it since. An older
        record (by partition epoch) changes nothing. Raises LogDirFailure, OutOfDescriptors: nothing
        has changed then.
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        # First: where it cannot be read, nothing of the role may have changed.
        high_watermark = log.offset_metadata(log.high_watermark)
        led, before, leader_before = (
            self.leader_log is not None,
            self.isr_state,
            self.leader_id,
        )
        # An epoch between was merged into this change: under its leader the replicas may have
        # truncated what they had fetched here. (Kafka takes `not led`, and keeps their offsets.)
        leader_is_new = not led or state.leader_epoch > self.leader_epoch + 1
        # Also where no leader epoch begins: the assignment or the ISR is another.
        self._notify_listeners()
        known = not leader_is_new and state.partition_epoch == self.partition_epoch
        # RECOVERED: nothing is left to recover here; the next ISR change says so.
        self._apply_registration(state, frozenset(state.isr), RECOVERED)
        if known and before.in_flight and before.isr == self.isr_state.isr:
            # The metadata has caught up with an answer; the change proposed since is still on its
            # way. Without it the high watermark could pass a member that the controller counts.
            self.isr_state = before
        self.log = self.leader_log = log
        epoch_is_new = state.leader_epoch > self.leader_epoch
        if epoch_is_new:
            self._start_epoch(state.leader_epoch, log, leader_is_new, now_ms)
            if led:
                self.emit(LeaderEpochBegan(self))
        self.leader_id = self.node_id
        log.set_high_watermark(high_watermark)
        self.history.became_leader(
            self, before, None if led else leader_before, epoch_is_new, now_ms
        )
        self.advance_high_watermark(now_ms)
        return leader_is_new

    def make_follower(self, state: PartitionRegistration, log: Log | None, now_ms: int = 0) -> bool:
        """RL 2.1. True when the leader epoch is new. `log` None: its directory is offline."""
        if state.partition_epoch < self.partition_epoch:
            return False
        led = self.leader_log is not None
        self._apply_registration(state, frozenset(), state.leader_recovery_state)
        self.log, self.leader_log = log, None
        self.leader_id = state.leader
        self.leader_epoch_start_offset = -1
        epoch_is_new = state.leader_epoch > self.leader_epoch
        self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        if epoch_is_new and log is not None:
            log.fetched_transactions = None  # the cleaner of another leader may have gone further
        self.leadership_generation += led
        if led or epoch_is_new:
            self.history.became_follower(now_ms)
            self.emit(BecameFollower(self))
        return epoch_is_new

    def update_config(self, config: LogConfig, now_ms: int) -> None:
        """RL 1.11: topic settings act at once; with a lower minimum ISR the high watermark may
        advance.
        """
        if self.log is not None:
            self.log.update_config(config)
            if self.future_log is not None:
                self.future_log.update_config(future_config(config))
            self.history.min_isr_checked(self, now_ms)
            self.advance_high_watermark(now_ms)

    def stop(self) -> None:
        """It is no longer held here; whoever waits for it is answered."""
        self.leader_log = self.log = self.future_log = None
        self.leader_id = -1
        self.isr_state = EMPTY_ISR
        self.remote_replicas = {}
        self.emit(ReplicaStopped(self))
        # Without a log nothing emits them. They name the partition: a cycle would be left
        # (`garbage_collection.py`).
        self._log_end_changed = self.high_watermark_advanced = _WITHOUT_LOG

    def fail(self, reason: str) -> None:
        """Its directory is offline, or an effect on it raised: it answers KAFKA_STORAGE_ERROR
        until the broker restarts.
        """
        if self.go_offline(reason):
            self.emit(PartitionFailed(self, reason))

    def go_offline(self, reason: str) -> bool:
        """The first half of `fail`: whoever calls it emits `PartitionFailed` a little later. False
        where it is offline already.
        """
        if self.offline:
            return False
        self.offline = True
        self.offline_because = reason
        self.leader_log = self.future_log = None
        return True

    def _apply_registration(
        self, state: PartitionRegistration, isr: frozenset[int], leader_recovery_state: int
    ) -> None:
        self._make_events()
        self.replicas, self.adding, self.removing = state.replicas, state.adding, state.removing
        known = self.remote_replicas
        self.remote_replicas = {
            broker: known.get(broker) or RemoteReplica(broker)
            for broker in state.replicas
            if broker != self.node_id
        }
        self.isr_state = CommittedIsr(isr, leader_recovery_state)
        self.may_be_elected = state.may_elect(self.node_id)
        self.partition_epoch = state.partition_epoch

    def _start_epoch(self, leader_epoch: int, log: Log, leader_is_new: bool, now_ms: int) -> None:
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = log.log_end_offset
        log.leader_epochs.assign(leader_epoch, log.log_end_offset)
        for replica in self.remote_replicas.values():
            replica.reset(
                now_ms, log.log_end_offset, leader_is_new, replica.broker_id in self.isr_state.isr
            )

    # refusals
    def refusal(self) -> BrokerError:
        """Why a request for a leader cannot be served."""
        if self.offline:
            return BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition} is offline: {self.offline_because}",
            )
        return BrokerError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {self.node_id} does not lead {self.topic_partition}",
        )

    def log_for(self, current_leader_epoch: int, only_leader: bool) -> Log:
        """The log a request may see.

        Raises FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH (RL 2.6), NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR.
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
            raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = self.leader_log if only_leader else self.log
        if log is None or self.offline:
            raise self.refusal()
        return log

    def followed_log(self) -> Log:
        """The log of a partition that is followed here.

        Raises NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        log = self.log
        if log is None or self.leader_log is not None or self.offline:
            raise self.refusal()
        log.check_online()
        return log

    # appending
    @property
    def min_isr(self) -> int:
        """RL 2.1: `min.insync.replicas`, or all replicas when there are fewer."""
        log = self.leader_log
        assert log is not None
        wanted, assigned = log.config.min_insync_replicas, len(self.replicas)
        return wanted if wanted < assigned else assigned

    def append_as_leader(
        self,
        records: Buffer,
        acks: int,
        wall_ms: int,
        now_ms: int,
        origin: AppendOrigin,
        guard: Guard = None,
    ) -> LogAppendInfo:
        """RL 1.14.

        Raises `BrokerError`: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, or what the log refuses.
        """
        stats = self.stats
        stats.produces += 1
        log = self.leader_log
        if log is None:
            raise self.refusal()
        if acks == -1 and len(self.isr_state.isr) < self.min_isr:
            raise self.not_enough_replicas()
        info = log.append_as_leader(records, self.leader_epoch, wall_ms, origin=origin, guard=guard)
        stats.messages_in += info.records_count
        stats.bytes_in += info.bytes
        event = (
            self.high_watermark_advanced
            if self.maybe_increment_leader_hw(now_ms)
            else self._log_end_changed
        )
        if self.listeners:  # as `emit`, without a call
            self._notify_listeners()
        self.events.append(event)
        return info

    def not_enough_replicas(self) -> BrokerError:
        return BrokerError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(self.isr_state.isr)} in-sync replicas, min.insync.replicas is {self.min_isr}",
        )

    def append_end_marker(self, marker: EndMarker, wall_ms: int, now_ms: int) -> LogAppendInfo:
        """The end of a transaction, written by its coordinator as with acks=-1. Raises
        `BrokerError` as `append_as_leader`.
        """
        log = self.leader_log
        if log is None:
            raise self.refusal()
        if len(self.isr_state.isr) < self.min_isr:
            raise self.not_enough_replicas()
        info = log.append_end_marker(marker, self.leader_epoch, wall_ms)
        self.leader_appended(info, now_ms)
        return info

    def leader_appended(self, info: LogAppendInfo, now_ms: int) -> None:
        """What follows from an append that is none of a client's."""
        self.stats.bytes_in += info.bytes
        moved = self.maybe_increment_leader_hw(now_ms)
        self.emit(self.high_watermark_advanced if moved else self._log_end_changed)

    def append_as_follower(self, records: Buffer, leader_epoch: int, wall_ms: int) -> LogAppendInfo:
        """RL 6.4: appends what the leader sent, offsets as they came.

        The leader's log may start inside a batch (DeleteRecords): the leader sends the whole batch,
        and an empty log begins with it. Raises NOT_LEADER_OR_FOLLOWER when this broker leads the
        partition by now; MarkersMissed, ProducersUnknown if this replica may not be elected.
        """
        log, may_fetch_again = self.followed_log(), not self.may_be_elected
        try:
            info = log.append_as_follower(records, leader_epoch, wall_ms, may_fetch_again)
        except UnexpectedAppendOffset as refusal:
            _begin_inside_batch(log, refusal, wall_ms)
            info = log.append_as_follower(records, leader_epoch, wall_ms, may_fetch_again)
        self.stats.replication_bytes_in += info.bytes
        if self.adding and self.node_id in self.adding:
            self.stats.reassignment_bytes_in += info.bytes
        self.emit(self._log_end_changed)
        return info

    def follow_high_watermark(self, leader_high_watermark: int) -> bool:
        """RL 6.4: a follower's high watermark is the leader's, as far as its own log goes.

        True when it advanced; it may also go back.
        """
        log = self.followed_log()
        before = log.high_watermark
        log.set_high_watermark(min(log.log_end_offset, leader_high_watermark))
        if log.high_watermark <= before:
            return False
        self.emit(self.high_watermark_advanced)
        return True

    def follow_log_start(self, leader_log_start: int) -> None:
        """RL 2.8: what the leader deleted is deleted here, as far as the own high watermark."""
        self.delete_up_to(self.followed_log(), leader_log_start)

    def delete_up_to(self, log: Log, source_log_start: int) -> None:
        """The start of this partition's log follows another log's, as far as the high watermark:
        that one may be above what is known here to be committed.
        """
        start = min(source_log_start, log.high_watermark)
        if start > log.log_start_offset and log.increment_log_start_offset(start):
            self.emit(LogStartAdvanced(self))

    # moving to another directory
    def begin_move(self, future: Log) -> None:
        """RL 3.8: this future log is filled from now on."""
        self.future_log = future

    def end_move(self) -> None:
        """The future log is given up."""
        self.future_log = None

    def future_log_or_raise(self) -> Log:
        """The future log in the making. Raises NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR."""
        future = self.future_log
        if future is None or self.log is None or self.offline:
            raise self.refusal()
        future.check_online()
        return future

    def append_to_future_log(
        self, records: Buffer, leader_epoch: int, wall_ms: int
    ) -> LogAppendInfo:
        """RL 3.8: as `append_as_follower`; the own log is the leader's."""
        future = self.future_log_or_raise()
        try:
            return future.append_as_follower(records, leader_epoch, wall_ms, True)
        except UnexpectedAppendOffset as refusal:
            _begin_inside_batch(future, refusal, wall_ms)
            return future.append_as_follower(records, leader_epoch, wall_ms, True)

    def follow_in_future_log(self, high_watermark: int, log_start_offset: int) -> None:
        """The future log's watermarks are the log's, as far as it goes."""
        future = self.future_log_or_raise()
        future.set_high_watermark(min(future.log_end_offset, high_watermark))
        self.delete_up_to(future, log_start_offset)

    def replace_log(self, log: Log, now_ms: int) -> None:
        """RL 3.8: the future log, which ends where the log ends, is the log from now on."""
        assert self.log is not None and log.log_end_offset == self.log.log_end_offset
        # A producer that was verified before the swap may append after it; Kafka refuses that.
        log.producers.take_verifications(self.log.producers)
        # What counts is when records were fetched from the leader, not from the log.
        log.fetched_transactions = self.log.fetched_transactions
        self.future_log, self.log = None, log
        if self.leader_log is not None:
            self.leader_log = log
            # An epoch that began without a record is in no batch.
            if log.leader_epochs.latest_epoch < self.leader_epoch:
                log.leader_epochs.assign(self.leader_epoch, log.log_end_offset)
        for replica in self.remote_replicas.values():
            replica.forget_place()
        self.emit(LogReplaced(self))
        self.advance_high_watermark(now_ms)

    # truncation
    def truncate_to(self, offset: int, wall_ms: int, reason: str = "") -> Truncation | None:
        """RL 6.3: drops everything from `offset` on. `reason`: why it is fetched again from there.

        None when there is nothing. Raises `BrokerError`.
        """
        log = self.followed_log()
        truncation = Truncation.of(log, offset, self.leader_epoch, wall_ms, reason)
        return self._truncated(log, truncation) if log.truncate_to(offset, wall_ms) else None

    def truncate_fully_and_start_at(
        self, offset: int, wall_ms: int, reason: str = ""
    ) -> Truncation:
        """RL 6.5: drops everything and begins at `offset`. Raises `BrokerError`."""
        log = self.followed_log()
        start = log.log_start_offset
        truncation = Truncation.of(log, start, self.leader_epoch, wall_ms, reason)
        log.truncate_fully_and_start_at(offset, wall_ms)
        return self._truncated(log, truncation._replace(to_offset=offset))

    def truncate_led_log(self, offset: int, wall_ms: int) -> Truncation | None:
        """A leader drops everything from `offset` on, before a leader epoch that begins there; None
        when there is nothing. Raises LogDirFailure.
        """
        log = self.leader_log
        assert log is not None
        truncation = Truncation.of(log, offset, self.leader_epoch, wall_ms)
        if not log.truncate_to(offset, wall_ms):
            return None
        # What waits for dropped offsets is not answered by later records.
        self.leadership_generation += 1
        return self._truncated(log, truncation)

    def _truncated(self, log: Log, truncation: Truncation) -> Truncation:
        """`truncation` carries the log's size before it."""
        truncation = truncation._replace(size_in_bytes=truncation.size_in_bytes - log.size_in_bytes)
        self.history.truncated(truncation)
        self.emit(self._log_end_changed)  # readers beyond the new end are answered
        if self.future_log is not None:
            self.emit(LogTruncated(self))
        return truncation

    def following_failed(self, reason: str, now_ms: int) -> None:
        """It cannot follow any more (or lead, by what its log holds): kept for the explanation."""
        self.history.following_failed(reason, now_ms)

    # the in-sync replicas
    def is_isr_eligible(self, replica: RemoteReplica) -> bool:
        """KRAFT 3.6: not fenced, not shutting down, fetching under the broker epoch that it
        registered (KIP-903).
        """
        if replica.broker_epoch is None or not self.brokers.may_be_in_isr(replica.broker_id):
            return False
        return is_current(replica.broker_epoch, self.brokers.epoch_of(replica.broker_id))

    def maybe_expand_isr(self, replica: RemoteReplica) -> None:
        """RL 2.4: proposes a follower that reached the high watermark and the leader epoch's
        start.
        """
        state, log = self.isr_state, self.leader_log
        if (
            log is None
            or not isinstance(state, CommittedIsr)
            or replica.broker_id in state.isr
            or not self.is_isr_eligible(replica)
        ):
            return
        # Not by the high watermark alone: a new leader's may be below what was committed before it.
        if replica.log_end.offset >= max(log.high_watermark, self.leader_epoch_start_offset):
            self.propose_isr(state.expand(replica.broker_id), replica.last_fetch_ms)

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """RL 2.4: proposes to remove the followers that have not been caught up for
        `replica.lag.time.max.ms`.
        """
        state, log = self.isr_state, self.leader_log
        # One change at a time: a pending one must be answered first.
        if log is None or not isinstance(state, CommittedIsr):
            return
        leader_end = log.log_end_offset
        lagging = frozenset(
            broker
            for broker, replica in self.remote_replicas.items()
            if broker in state.isr and not replica.is_caught_up(leader_end, now_ms, self.max_lag_ms)
        )
        if lagging:
            self.propose_isr(state.shrink(lagging), now_ms)

    def propose_isr(self, pending: PendingIsr, now_ms: int) -> None:
        self.isr_state = pending
        self.history.isr_proposed(self, pending, now_ms)
        self.emit(IsrChangeWanted(self, pending))

    def isr_proposal(self, pending: PendingIsr) -> IsrProposal:
        """A pending change as AlterPartition says it, with the broker epoch of each member
        (KIP-903).
        """
        members = []
        for broker_id in sorted(pending.proposed):
            replica = self.remote_replicas.get(broker_id)
            seen = self.brokers.epoch_of(broker_id) if replica is None else replica.broker_epoch
            members.append((broker_id, -1 if seen is None else seen))
        truncates = isinstance(pending, PendingShrink) and pending.truncate_to >= 0
        return IsrProposal(
            self.topic_partition,
            self.topic_id,
            self.leader_epoch,
            self.partition_epoch,
            tuple(members),
            RECOVERING if truncates else pending.last_committed.leader_recovery_state,
        )

    def alter_partition_answered(self, pending: PendingIsr, answer: IsrAnswer, now_ms: int) -> None:
        """RL 2.5. An answer to what is no longer pending changes nothing; nor does one to a leader
        that failed meanwhile.
        """
        if self.isr_state is not pending or self.leader_log is None:
            return
        if answer.error != _NONE:
            self.history.isr_refused(answer.error, now_ms)
        reaction = reaction_to(answer, self.leader_epoch, self.partition_epoch)
        if (
            answer.error == ErrorCode.INVALID_REQUEST
            and isinstance(pending, PendingShrink)
            and pending.truncate_to >= 0
        ):
            # Apache Kafka's controller: no record will come, and the ISR must be able to change.
            self.isr_state = pending.last_committed.refused_truncation()
            return
        if reaction is Reaction.CONFIRM:
            self.partition_epoch = answer.partition_epoch
            self.isr_state = CommittedIsr(answer.isr, answer.leader_recovery_state)
            self.history.isr_confirmed(self, pending, now_ms)
            self.emit(IsrChanged(self, isinstance(pending, PendingExpand)))
            self.advance_high_watermark(now_ms)
        elif reaction is Reaction.REVERT:
            self.isr_state = pending.last_committed
        elif reaction is Reaction.RETRY:
            self.emit(IsrChangeWanted(self, pending))

    # the high watermark
    def advance_high_watermark(self, now_ms: int) -> None:
        """Moves it if it may, and emits that it did."""
        if self.maybe_increment_leader_hw(now_ms):
            self.emit(self.high_watermark_advanced)

    def log_synced(self, now_ms: int) -> None:
        """A sync that appends waited for (`flush.messages`) is done: what it wrote counts."""
        self.emit(LogSynced(self))
        self.advance_high_watermark(now_ms)

    def producers_found(self) -> None:
        """After a truncation the transactions are known again, and with them what is stable."""
        self.emit(self._log_end_changed)

    def maybe_increment_leader_hw(self, now_ms: int) -> bool:
        """RL 2.3. True when it moved."""
        log = self.leader_log
        if log is None:
            return False
        watermarks, log_end_offset = log.watermarks, log.segments.log_end_offset
        if (
            not self.remote_replicas
            and log_end_offset > watermarks.high_watermark
            and log.durability.awaiting_sync is None
        ):
            # The only replica: the minimum ISR is one, and it is in its ISR.
            watermarks.set_high_watermark(log_end_offset)
            return True
        if len(self.isr_state.isr) < self.min_isr:
            return False
        # With `flush.messages` the leader counts as far as it synced, as its followers do: they
        # fetch the next records only after a sync.
        target = self._least_log_end(log.durability.acknowledgeable_end, now_ms)
        current = watermarks.high_watermark_metadata
        if target.offset > current.offset or (
            target.offset == current.offset and current.on_older_segment(target)
        ):
            watermarks.set_high_watermark(target)
            return True
        return False

    def _least_log_end(self, leader_end: LogOffsetMetadata, now_ms: int) -> LogOffsetMetadata:
        least = leader_end
        maximal_isr = self.isr_state.maximal_isr
        for broker_id, replica in self.remote_replicas.items():
            if replica.log_end.offset < least.offset and (
                broker_id in maximal_isr
                or (
                    replica.is_caught_up(leader_end.offset, now_ms, self.max_lag_ms)
                    and self.is_isr_eligible(replica)
                )
            ):
                least = replica.log_end
        return least

    def enough_replicas_reached(self, required_offset: int) -> ErrorCode | None:
        """RL 1.7: None while the high watermark is below `required_offset`; then NONE, or the
        error to answer with.
        """
        log = self.leader_log
        if log is None:
            return self.refusal().code
        if log.high_watermark < required_offset:
            return None
        if len(self.isr_state.maximal_isr) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def leader_synced(self, required_offset: int) -> ErrorCode | None:
        """None while an append below `required_offset` waits for the leader's sync
        (`flush.messages`); then NONE, or the error to answer with.
        """
        log = self.leader_log
        if log is None:
            return self.refusal().code
        waits = log.durability.awaiting_sync
        return _NONE if waits is None or waits.offset >= required_offset else None

    # reading
    def end_for(self, isolation: int) -> LogOffsetMetadata:
        """How far a reader may see."""
        log = self.log
        assert log is not None
        if isolation == LOG_END:
            return log.segments.log_end
        if isolation == TXN_COMMITTED:
            return log.watermarks.last_stable_metadata
        return log.watermarks.high_watermark_metadata

    def read(
        self,
        request: FetchPartitionRequest,
        params: FetchParams,
        max_bytes: int,
        min_one_message: bool,
        now_ms: int,
        record_progress: bool,
    ) -> FetchPartitionResult:
        """RL 1.8, 1.10.

        Watermarks are those before the read. Raises `BrokerError`; a follower's progress counts
        unless it diverges.
        """
        stats = self.stats
        stats.fetches += 1
        log = self.log_for(request.current_leader_epoch, params.only_leader)
        if request.topic_id is not None and request.topic_id != self.topic_id:
            raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID)
        follower = self._follower(params, request) if params.replica_id >= 0 else None
        watermarks, leader_end = log.watermarks, log.segments.log_end_offset
        result = FetchPartitionResult(
            request,
            _NONE,
            watermarks.high_watermark,
            watermarks.last_stable_offset,
            watermarks.log_start_offset,
        )
        if request.last_fetched_epoch >= 0:
            result.diverging_epoch = self.divergence(request)
            if result.diverging_epoch is not None:
                return result
        isolation = params.isolation
        if (
            isolation == LOG_END
            and request.fetch_offset == leader_end
            and follower is not None
            and log.failed is None
        ):
            result.fetch_offset = (
                log.segments.log_end
            )  # most fetches of most followers: there is nothing to read
            if record_progress:
                self._follower_fetched(
                    follower,
                    result.fetch_offset,
                    request.log_start_offset,
                    leader_end,
                    params.replica_epoch,
                    now_ms,
                )
            return result
        data = log.read(
            request.fetch_offset,
            max_bytes,
            self.end_for(isolation),
            min_one_message,
            isolation == TXN_COMMITTED,
        )
        result.fetch_offset = data.fetch_offset_metadata
        if data.slice is not None:
            if data.first_entry_incomplete and not params.hard_max_bytes:
                data.slice.release()
            else:
                result.slice = data.slice
                result.size = size = data.slice.length
                if follower is None:
                    stats.bytes_out += size
                else:
                    self._count_replicated(follower, size)
                result.first_entry_incomplete = data.first_entry_incomplete
        if data.aborted is not None:
            result.aborted_transactions = [
                (txn.producer_id, txn.first_offset) for txn in data.aborted
            ]
        if follower is not None and record_progress:
            self._follower_fetched(
                follower,
                data.fetch_offset_metadata,
                request.log_start_offset,
                leader_end,
                params.replica_epoch,
                now_ms,
            )
        return result

    def _count_replicated(self, follower: RemoteReplica, size: int) -> None:
        self.stats.replication_bytes_out += size
        if follower.broker_id in self.adding:
            self.stats.reassignment_bytes_out += size

    def uncount_read(self, params: FetchParams, size: int) -> None:
        """Takes a read out of the byte counts: its records are not sent."""
        if params.replica_id < 0:
            self.stats.bytes_out -= size
        else:
            self._count_replicated(
                self.remote_replicas.get(params.replica_id) or RemoteReplica(params.replica_id),
                -size,
            )

    def divergence(self, request: FetchPartitionRequest) -> tuple[int, int] | None:
        """(epoch, end offset) from which the reader's log differs, None when it agrees.

        Raises OFFSET_OUT_OF_RANGE when that is not known, or the reader is below the log start.
        """
        log = self.log
        assert log is not None
        epoch, end_offset = log.end_offset_for_epoch(request.last_fetched_epoch)
        if epoch < 0 or end_offset < 0:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the end of epoch {request.last_fetched_epoch} is not known here",
            )
        if request.fetch_offset < log.log_start_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {request.fetch_offset} is below the log start {log.log_start_offset}",
            )
        if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
            return epoch, end_offset
        return None

    # followers
    def _follower(self, params: FetchParams, request: FetchPartitionRequest) -> RemoteReplica:
        broker_id = params.replica_id
        replica = self.remote_replicas.get(broker_id)
        if replica is None:
            # With an epoch the follower may know of an assignment that has not reached us; without
            # one it does not (RL 1.10).
            epoch_sent = request.current_leader_epoch >= 0
            raise BrokerError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if epoch_sent else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} is not a replica of {self.topic_partition}",
            )
        if not is_registered(broker_id, params.replica_epoch, self.brokers):
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} registered again after this request",
            )
        return replica

    def _follower_fetched(
        self,
        replica: RemoteReplica,
        log_end: LogOffsetMetadata,
        log_start_offset: int,
        leader_end: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        for listener in self.listeners:
            listener.follower_fetched(replica)
        end_before, start_before = replica.log_end.offset, replica.log_start_offset
        low_watermark = -1 if start_before == log_start_offset else self.low_watermark()
        replica.fetched(log_end, log_start_offset, now_ms, leader_end, broker_epoch)
        self.maybe_expand_isr(replica)
        if end_before != log_end.offset:
            self.advance_high_watermark(now_ms)
        if start_before != log_start_offset and self.low_watermark() > low_watermark:
            self.emit(LogStartAdvanced(self))

    def low_watermark(self) -> int:
        """RL 2.8: the least log start over this broker, the live followers, and the future log."""
        log = self.leader_log
        assert log is not None
        starts = [
            replica.log_start_offset
            for replica in self.remote_replicas.values()
            if self.brokers.is_alive(replica.broker_id)
        ]
        if self.future_log is not None:
            # What is deleted must not come back with the future log.
            starts.append(self.future_log.log_start_offset)
        return min(log.log_start_offset, *starts) if starts else log.log_start_offset

    def delete_records(self, offset: int) -> tuple[int, int]:
        """RL 2.8: (offset required, low watermark); -1 stands for the high watermark.

        Raises NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION, OFFSET_OUT_OF_RANGE.
        """
        log = self.leader_log
        if log is None:
            raise self.refusal()
        if not log.config.delete:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition} is compacted only: its records cannot be deleted",
            )
        wanted = log.high_watermark if offset == -1 else offset
        if wanted < 0 or wanted > log.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within 0..{log.high_watermark}",
            )
        if log.increment_log_start_offset(wanted):
            self.emit(LogStartAdvanced(self))
        return wanted, self.low_watermark()
