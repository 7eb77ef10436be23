"""The idle partitions of a fetch session: its last read found nothing there, and reading again
would find nothing.

Owns `IdleRead` (one such read, and what it depends on; a follower's or a consumer's) and
`IdlePartitions` (those of one session). A client of a thousand partitions fetches all of them twice
a second, and mostly nothing was written to any: an idle partition is neither read nor named in the
answer, so it costs a round nothing.

    read --(found nothing, and was answered so)--> idle --(woken)--> woken --(next read)--> read

    woken by:  an event of the partition          Partition -> IdleRead.partition_changed
               a fetch of it in another session   Partition -> IdleRead.follower_fetched
               its own session                    IdlePartitions.forget, wake_all, end

1. A partition is idle only while a new read would say the same: it is led here, the replica is in
   the ISR and at the leader's end, or the consumer at the end that it may see, and its session was
   sent the watermarks.
2. Whatever may change that is an event of the partition, and its listeners are called before
   anything else. After a failure of a directory the events of its partitions come in portions: a
   round in between does not name a partition whose event is still to come.
3. A replica is idle in one session at a time: a fetch in another one wakes it in the old one. A
   request that still waits in the old session, or in an evicted one, is answered when its time is
   up.
4. Each round counts as a fetch of every idle partition: the follower is caught up now (RL 1.10).
   One number, the session's last round, says so for all.
5. What an event woke belongs to the session's last request when that waits (RL 1.9): the request
   waits for that partition too, and reads it when it is answered. Else the next round reads it.
6. Nothing is idle for a follower that may not fetch, is another one than before, or is not
   registered under its broker epoch any more: all of it is woken, and refused or read. Nothing
   becomes idle in a session that is over.
7. A consumer's answer depends on who asks and how (`ConsumerId`): where that is not as in the round
   before, any ACL among it, all is woken, and its permissions are asked for again. Nothing is idle
   for one that may be sent to a replica of its rack.

Source: RL 1.8-1.10, 5.2. Kafka reads every partition of a session in every round; what it answers
is the same. Not here: what a follower leaves (`fetch_session` has both kinds of session).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.fetch_data import (
    ConsumerId,
    FetchPartitionRequest,
    FetchPartitionResult,
    FollowerId,
    PartitionKey,
)
from twisted_broker.replication.partition.partition import Brokers, is_registered
from twisted_broker.replication.partition.remote_replica import LastRound

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.log.offset_metadata import LogOffsetMetadata
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica
    from twisted_broker.replication.partition.topic_stats import TopicStats


class IdleRead:
    """A read of `log` that found nothing: `result` carries no records, no error and no divergence.
    It listens to its partition.
    """

    __slots__ = ("_log", "_session", "key", "partition", "result")

    def __init__(
        self,
        session: IdlePartitions,
        partition: Partition,
        log: Log,
        result: FetchPartitionResult,
    ) -> None:
        self._session = session
        self.partition = partition
        self._log = log
        self.result = result
        self.key: PartitionKey = result.request.key

    @property
    def request(self) -> FetchPartitionRequest:
        return self.result.request

    @property
    def watch_key(self) -> Hashable:
        """Under what the fetch of its session waits."""
        return self._session

    def holds(self) -> bool:
        """Whether reading again would say the same, and do nothing but note the time."""
        partition, log, result = self.partition, self._log, self.result
        return (
            partition.leader_log is log
            and result.request.current_leader_epoch in (-1, partition.leader_epoch)
            and log.high_watermark == result.high_watermark
            and log.log_start_offset == result.log_start_offset
            and log.failed is None
        )

    def begin(self, last_round: LastRound) -> None:
        """It is idle from now on, in the rounds of its session."""
        self.partition.subscribe(self)

    def end(self, last_round: LastRound) -> None:
        """No longer."""

    # what its partition says
    def partition_changed(self) -> None:
        """Wakes it; the fetch that waits in its session is checked at this partition's events."""
        self._session.wake(self)
        self._session.watch(self._session, self.partition.topic_partition)

    def follower_fetched(self, replica: RemoteReplica) -> None:
        """Of no account to others than that follower."""


class FollowerRead(IdleRead):
    """By `replica`."""

    __slots__ = ("replica",)

    def __init__(
        self,
        session: IdlePartitions,
        partition: Partition,
        log: Log,
        result: FetchPartitionResult,
        replica: RemoteReplica,
    ) -> None:
        super().__init__(session, partition, log, result)
        self.replica = replica

    def holds(self) -> bool:
        partition, replica, result = self.partition, self.replica, self.result
        end = result.fetch_offset.offset
        return (
            super().holds()
            and partition.remote_replicas.get(replica.broker_id) is replica
            and replica.broker_id in partition.isr_state.isr
            and self._log.log_end_offset == replica.log_end.offset == end
            and replica.log_start_offset == result.request.log_start_offset
        )

    def begin(self, last_round: LastRound) -> None:
        super().begin(last_round)
        self.replica.share_round(last_round)

    def end(self, last_round: LastRound) -> None:
        self.replica.leave_round(last_round)

    def follower_fetched(self, replica: RemoteReplica) -> None:
        """In another session (it reconnected, or restarted): what the old one was sent counts no
        longer.
        """
        if replica is self.replica:
            self.partition.unsubscribe(self)
            self._session.wake(self)


class ConsumerRead(IdleRead):
    """By a consumer of this isolation."""

    __slots__ = ("_isolation",)

    def __init__(
        self,
        session: IdlePartitions,
        partition: Partition,
        log: Log,
        result: FetchPartitionResult,
        isolation: int,
    ) -> None:
        super().__init__(session, partition, log, result)
        self._isolation = isolation

    def holds(self) -> bool:
        result, log = self.result, self._log
        return (
            super().holds()
            and result.diverging_epoch is None
            and result.preferred_read_replica < 0
            and self.partition.end_for(self._isolation).offset
            <= result.request.fetch_offset
            <= log.log_end_offset
        )


def idle_reads(partition: Partition) -> list[IdleRead]:
    """The reads for which this partition is idle."""
    return [listener for listener in partition.listeners if isinstance(listener, IdleRead)]


class IdlePartitions:
    """Those of one session. `woken`: what is idle no longer, until `take_woken`: the request, and
    where in the log that was. It holds no partition of them: the session of a client that is gone
    outlives them.

    `partitions`: all that this broker holds; `watch(key, other)`: what waits under `key` waits
    under `other` too.
    """

    __slots__ = (
        "_brokers",
        "_fetches",
        "_is_over",
        "_partitions",
        "_reader",
        "_reads",
        "last_round",
        "watch",
        "woken",
    )

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        brokers: Brokers,
        watch: Callable[[Hashable, Hashable], None],
    ) -> None:
        self.last_round = LastRound()
        self.watch = watch
        self.woken: dict[PartitionKey, tuple[FetchPartitionRequest, LogOffsetMetadata]] = {}
        self._partitions = partitions
        self._brokers = brokers
        self._is_over = False
        self._reads: dict[PartitionKey, IdleRead] = {}
        self._reader: FollowerId | ConsumerId | None = None
        self._fetches: dict[TopicStats, int] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __bool__(self) -> bool:
        return bool(self._reads)

    @property
    def requests(self) -> list[FetchPartitionRequest]:
        """What its client fetches of them."""
        return [idle.request for idle in self._reads.values()]

    # rounds
    def begin_round(self, now_ms: int, reader: FollowerId | ConsumerId | None) -> None:
        """The client fetches all of its session again; None: nothing may be idle for it."""
        if reader is None or reader != self._reader:
            self.wake_all()
            self._reader = reader
        self.wake_unregistered()
        self.last_round.ms = now_ms
        for stats, count in self._fetches.items():
            stats.fetches += count

    def add(self, result: FetchPartitionResult) -> bool:
        """What was just answered becomes idle, if reading it again would say the same."""
        reader = self._reader
        if self._is_over or reader is None:
            return False
        partition = self._partitions.get(result.request.topic_partition)
        log = None if partition is None else partition.leader_log
        if partition is None or log is None:
            return False
        idle: IdleRead
        if isinstance(reader, ConsumerId):
            idle = ConsumerRead(self, partition, log, result, reader.isolation)
        else:
            replica = partition.remote_replicas.get(reader.broker_id)
            if replica is None or replica.shares_round:  # idle in another session
                return False
            idle = FollowerRead(self, partition, log, result, replica)
        if not idle.holds():
            return False
        self._reads[idle.key] = idle
        self._fetches[partition.stats] = self._fetches.get(partition.stats, 0) + 1
        idle.begin(self.last_round)
        return True

    # what ends it
    def wake(self, idle: IdleRead) -> None:
        """It is read again from now on. The caller has ended its subscription."""
        del self._reads[idle.key]
        self._uncount(idle.partition.stats)
        idle.end(self.last_round)
        self.woken[idle.key] = (idle.request, idle.result.fetch_offset)

    def wake_all(self) -> None:
        for idle in list(self._reads.values()):
            idle.partition.unsubscribe(idle)
            self.wake(idle)

    def wake_unregistered(self) -> None:
        """Everything, when the follower registered again since: each partition refuses it."""
        follower = self._reader
        if isinstance(follower, FollowerId) and not is_registered(*follower, self._brokers):
            self.wake_all()

    def end(self) -> None:
        """Its session is over; a request of it may still wait."""
        self._is_over = True
        self.wake_all()

    def forget(self, key: PartitionKey) -> None:
        """The client changed its request for that partition, or fetches it no longer."""
        idle = self._reads.get(key)
        if idle is not None:
            idle.partition.unsubscribe(idle)
            self.wake(idle)
        self.woken.pop(key, None)

    def take_woken(self) -> list[PartitionKey]:
        """What must be read again."""
        keys, self.woken = list(self.woken), {}
        return keys

    def _uncount(self, stats: TopicStats) -> None:
        left = self._fetches[stats] - 1
        if left:
            self._fetches[stats] = left
        else:
            del self._fetches[stats]
