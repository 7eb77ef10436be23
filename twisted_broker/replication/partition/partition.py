"""One partition on this broker: led here, followed here, or failed.

Owns its role, its in-sync replicas and what moves its high watermark.

    (new) --make_leader--> leader <--make_leader / make_follower--> follower
    any --fail--> offline (until restarted)

1. A leader is in its own ISR; a follower's ISR is empty. Leader epochs and partition epochs
   only grow; older news changes nothing.
2. The high watermark moves forward only, to the least log end of the maximal ISR and of those about
   to join it, and not at all while the ISR is below the minimum (RL 2.3).
3. What happened goes into `events`; nothing outside is touched. Times are arguments: `now_ms`
   monotonic, `wall_ms` the calendar's.

Source: RL 1.10, 1.14, 2.1-2.8; Kafka's `Partition`. Leaves out: changes of the ISR (`leader_isr`),
offset look-ups (`offset_lookup`), waiting (`delayed_operations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted_broker.config import LogConfig
from twisted_broker.interfaces import Buffer, TopicPartition
from twisted_broker.log.append_info import AppendOrigin, LogAppendInfo
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.replication.idle_partitions import IdlePartitions, IdleRead
from twisted_broker.replication.partition import leader_isr
from twisted_broker.replication.partition.events import (
    Events,
    HighWatermarkAdvanced,
    LeaderEpochBegan,
    LeadershipLost,
    LogEndAdvanced,
    LogStartAdvanced,
    PartitionFailed,
)
from twisted_broker.replication.partition.fetch_data import (
    LOG_END,
    TXN_COMMITTED,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.isr import EMPTY_ISR, RECOVERED, CommittedIsr, IsrState
from twisted_broker.replication.partition.partition_history import PartitionHistory
from twisted_broker.replication.partition.remote_replica import RemoteReplica
from twisted_broker.replication.partition.topic_stats import TopicStats
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.image.entries import PartitionRegistration
    from twisted_broker.log.log import Log

_NONE = ErrorCode.NONE


class Brokers(Protocol):
    """What a leader must know of other brokers."""

    def is_alive(self, broker_id: int) -> bool: ...

    def may_be_in_isr(self, broker_id: int) -> bool:
        """Alive, not fenced, not shutting down."""
        ...

    def epoch_of(self, broker_id: int) -> int:
        """The epoch under which it registered, -1 when it did not."""
        ...


def is_registered(params: FetchParams, brokers: Brokers) -> bool:
    """Whether a follower fetches under the broker epoch that it has, as far as is known here, or
    names none (KIP-903).
    """
    return params.replica_epoch == -1 or params.replica_epoch >= brokers.epoch_of(params.replica_id)


class Partition:
    """See the module's card. `leader_log` is the log while this broker leads it, else None."""

    __slots__ = (
        "_log_end_advanced",
        "adding",
        "brokers",
        "events",
        "high_watermark_advanced",
        "history",
        "isr_state",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leader_log",
        "log",
        "max_lag_ms",
        "node_id",
        "offline",
        "offline_because",
        "partition_epoch",
        "remote_replicas",
        "removing",
        "replicas",
        "resting",
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
        self.offline = False
        self.offline_because = ""
        self.leader_id = -1
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self.isr_state: IsrState = EMPTY_ISR
        self.remote_replicas: dict[int, RemoteReplica] = {}
        self.resting: tuple[IdleRead, ...] = ()
        self.history = PartitionHistory()
        self.stats = TopicStats() if stats is None else stats
        self._log_end_advanced = LogEndAdvanced(self)
        self.high_watermark_advanced = HighWatermarkAdvanced(self)

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

    # roles
    @property
    def is_leader(self) -> bool:
        return self.leader_log is not None

    def make_leader(self, state: PartitionRegistration, log: Log, now_ms: int) -> bool:
        """RL 2.2.

        True when this broker did not lead it before. Older news (by partition epoch) changes
        nothing.
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        leader_is_new, before, leader_before = (
            self.leader_log is None,
            self.isr_state,
            self.leader_id,
        )
        self._take(
            state, frozenset(state.isr), RECOVERED
        )  # nothing is left to recover here; the next ISR change says so
        self.log = self.leader_log = log
        epoch_is_new = state.leader_epoch > self.leader_epoch
        if epoch_is_new:
            self._start_epoch(state.leader_epoch, log, leader_is_new, now_ms)
            if not leader_is_new:
                self.events.append(LeaderEpochBegan(self))
        self.leader_id = self.node_id
        log.set_high_watermark(log.offset_metadata(log.high_watermark))
        self.history.leads(
            self, before, leader_before if leader_is_new else None, epoch_is_new, now_ms
        )
        self.advance_high_watermark(now_ms)
        return leader_is_new

    def make_follower(self, state: PartitionRegistration, log: Log | None, now_ms: int = 0) -> bool:
        """RL 2.1. True when the leader epoch is new. `log` None: its directory is offline."""
        if state.partition_epoch < self.partition_epoch:
            return False
        led = self.leader_log is not None
        self._take(state, frozenset(), state.leader_recovery_state)
        self.log, self.leader_log = log, None
        self.leader_id = state.leader
        self.leader_epoch_start_offset = -1
        epoch_is_new = state.leader_epoch > self.leader_epoch
        self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        if led or epoch_is_new:
            self.history.follows(now_ms)
            self.events.append(LeadershipLost(self))
        return epoch_is_new

    def update_config(self, config: LogConfig, now_ms: int) -> None:
        """RL 1.11: topic settings act at once; a lower minimum ISR may let the high watermark
        go.
        """
        if self.log is not None:
            self.log.update_config(config)
            self.history.minimum_checked(self, now_ms)
            self.advance_high_watermark(now_ms)

    def stop(self) -> None:
        """It is no longer held here; whoever waits for it is told."""
        self.leader_log = self.log = None
        self.leader_id = -1
        self.isr_state = EMPTY_ISR
        self.remote_replicas = {}
        self.events.append(LeadershipLost(self))

    def fail(self, reason: str) -> None:
        """Its directory is offline, or an effect on it raised: it answers KAFKA_STORAGE_ERROR
        until the broker starts anew.
        """
        if not self.offline:
            self.offline = True
            self.offline_because = reason
            self.leader_log = None
            self.events.append(PartitionFailed(self, reason))

    def _take(
        self, state: PartitionRegistration, isr: frozenset[int], leader_recovery_state: int
    ) -> None:
        self.replicas, self.adding, self.removing = state.replicas, state.adding, state.removing
        known = self.remote_replicas
        self.remote_replicas = {
            broker: known.get(broker) or RemoteReplica(broker)
            for broker in state.replicas
            if broker != self.node_id
        }
        self.isr_state = CommittedIsr(isr, leader_recovery_state)
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

    # appending
    @property
    def min_isr(self) -> int:
        """RL 2.1: `min.insync.replicas`, or all replicas when there are fewer."""
        log = self.leader_log
        assert log is not None
        wanted, assigned = log.config.min_insync_replicas, len(self.replicas)
        return wanted if wanted < assigned else assigned

    def append_as_leader(
        self, records: Buffer, acks: int, wall_ms: int, now_ms: int, origin: AppendOrigin
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
            raise BrokerError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr_state.isr)} replicas in sync, {self.min_isr} demanded",
            )
        info = log.append_as_leader(records, self.leader_epoch, wall_ms, origin=origin)
        stats.messages_in += info.records_count
        stats.bytes_in += info.bytes
        self.events.append(
            self.high_watermark_advanced
            if self.maybe_increment_leader_hw(now_ms)
            else self._log_end_advanced
        )
        return info

    def append_as_follower(self, records: Buffer, leader_epoch: int, wall_ms: int) -> LogAppendInfo:
        """Appends what the leader sent, offsets as they came.

        Raises NOT_LEADER_OR_FOLLOWER when this broker leads it by now.
        """
        log = self.log
        if log is None or self.leader_log is not None or self.offline:
            raise self.refusal()
        info = log.append_as_follower(records, leader_epoch, wall_ms)
        self.stats.replication_bytes_in += info.bytes
        if self.adding and self.node_id in self.adding:
            self.stats.reassignment_bytes_in += info.bytes
        self.events.append(self._log_end_advanced)
        return info

    def follow_high_watermark(self, leader_high_watermark: int) -> bool:
        """RL 6.4: a follower's high watermark is the leader's, as far as its own log goes.

        True when it moved.
        """
        log = self.log
        assert log is not None and self.leader_log is None
        before = log.high_watermark
        log.set_high_watermark(min(log.log_end_offset, leader_high_watermark))
        if log.high_watermark <= before:
            return False
        self.events.append(self.high_watermark_advanced)
        return True

    # the high watermark
    def advance_high_watermark(self, now_ms: int) -> None:
        """Moves it if it may, and tells."""
        if self.maybe_increment_leader_hw(now_ms):
            self.events.append(self.high_watermark_advanced)

    def maybe_increment_leader_hw(self, now_ms: int) -> bool:
        """RL 2.3. True when it moved."""
        log = self.leader_log
        if log is None:
            return False
        if (
            not self.remote_replicas
            and log.log_end_offset > log.high_watermark
            and log.sync_due is None
        ):
            # The only replica: the minimum ISR is one, and it is in its ISR.
            log.set_high_watermark(log.log_end_offset)
            return True
        if len(self.isr_state.isr) < self.min_isr:
            return False
        # With `flush.messages` the leader counts as far as it synced, as its followers do: they ask
        # on when they synced.
        target = self._least_log_end(log.settled_end, now_ms)
        current = log.high_watermark_metadata
        if target.offset > current.offset or (
            target.offset == current.offset and current.on_older_segment(target)
        ):
            log.set_high_watermark(target)
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
                    and self.is_eligible(replica)
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

    def settled(self, required_offset: int) -> ErrorCode | None:
        """None while an append below `required_offset` waits for the leader's sync
        (`flush.messages`); then NONE, or the error to answer with.
        """
        log = self.leader_log
        if log is None:
            return self.refusal().code
        return _NONE if log.sync_due is None or log.sync_due.offset >= required_offset else None

    # reading
    def end_for(self, isolation: int) -> LogOffsetMetadata:
        """How far a reader may see."""
        log = self.log
        assert log is not None
        if isolation == LOG_END:
            return log.log_end
        return (
            log.last_stable_metadata if isolation == TXN_COMMITTED else log.high_watermark_metadata
        )

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
        leader_end = log.log_end_offset
        result = FetchPartitionResult(
            request, _NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset
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
                log.log_end
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
                result.cut_short = data.first_entry_incomplete
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

    def read_given_back(self, params: FetchParams, size: int) -> None:
        """What a read brought is not sent: its reader waits, and reads again."""
        if params.replica_id < 0:
            self.stats.bytes_out -= size
        else:
            self._count_replicated(
                self.remote_replicas.get(params.replica_id) or RemoteReplica(params.replica_id),
                -size,
            )

    def divergence(self, request: FetchPartitionRequest) -> tuple[int, int] | None:
        """(epoch, end offset) from which the reader's log differs, None when it agrees.

        Raises OFFSET_OUT_OF_RANGE when that cannot be told.
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
            # one it cannot tell (RL 1.10).
            epoch_sent = request.current_leader_epoch >= 0
            raise BrokerError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if epoch_sent else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} is no replica of {self.topic_partition}",
            )
        if not is_registered(params, self.brokers):
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has registered anew since"
            )
        return replica

    def is_eligible(self, replica: RemoteReplica) -> bool:
        """KRAFT 3.6: not fenced, not shutting down, fetching under the broker epoch that it
        registered (KIP-903).
        """
        if replica.broker_epoch is None or not self.brokers.may_be_in_isr(replica.broker_id):
            return False
        return replica.broker_epoch in (-1, self.brokers.epoch_of(replica.broker_id))

    def _follower_fetched(
        self,
        replica: RemoteReplica,
        log_end: LogOffsetMetadata,
        log_start_offset: int,
        leader_end: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        if self.resting:
            self._wake_reads_by(replica)
        end_before, start_before = replica.log_end.offset, replica.log_start_offset
        low_watermark = -1 if start_before == log_start_offset else self.low_watermark()
        replica.fetched(log_end, log_start_offset, now_ms, leader_end, broker_epoch)
        leader_isr.maybe_expand(self, replica)
        if end_before != log_end.offset:
            self.advance_high_watermark(now_ms)
        if start_before != log_start_offset and self.low_watermark() > low_watermark:
            self.events.append(LogStartAdvanced(self))

    def wake(self) -> list[IdlePartitions]:
        """Something happened here: what rested is read again. The sessions that it is a part of."""
        rested, self.resting = self.resting, ()
        return [session for quiet in rested if (session := quiet.wake()) is not None]

    def let_go(self, quiet: IdleRead) -> None:
        """It rests no longer, though nothing happened here."""
        self.resting = tuple(each for each in self.resting if each is not quiet)

    def _wake_reads_by(self, replica: RemoteReplica) -> None:
        """It fetches in another session by now (it reconnected, or restarted): what it was told
        in an old one counts no longer.
        """
        for quiet in self.resting:
            if quiet.replica is replica:
                quiet.leave()

    def low_watermark(self) -> int:
        """RL 2.8: the least log start over this broker and the live followers."""
        log = self.leader_log
        assert log is not None
        starts = [
            replica.log_start_offset
            for replica in self.remote_replicas.values()
            if self.brokers.is_alive(replica.broker_id)
        ]
        return min(log.log_start_offset, *starts) if starts else log.log_start_offset

    def delete_records(self, offset: int) -> tuple[int, int]:
        """RL 2.8: (offset asked, low watermark); -1 asks for the high watermark.

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
            self.events.append(LogStartAdvanced(self))
        return wanted, self.low_watermark()
