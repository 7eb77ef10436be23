"""What rests in a follower's fetch session: partitions whose last read found nothing, and would
find nothing again.

Owns `IdleRead` (one such read, and what it depends on) and `IdlePartitions` (those of one session).
A follower of a thousand partitions asks for all of them twice a second, and mostly nobody wrote to
any: what rests costs a round nothing at all, neither a look nor a place in the answer.

        read, nothing found --(answered, and it still holds)--> rests --(something happened in the
        partition)--> woken --(next round)--> read

    something happened:      event table -> Partition.wake -> IdleRead.wake ->
    IdlePartitions.woken_by the session wants it so: IdlePartitions.forget, wake_all ->
    IdleRead.leave -> Partition.let_go, IdleRead.wake

1. A read rests only while a new one would say the same: the replica is in the ISR and at the
   leader's end, and its session was told the watermarks.
2. Whatever may change that is an event of the partition, and the event table stirs what rests there
   first of all.
3. A replica rests in one session at a time: a fetch in another one wakes what rested in the old. A
   request that still waits in that one, or in one that was evicted, is answered when its time is
   up.
4. Each round counts as a fetch of everything that rests: the follower is caught up now (RL 1.10).
   One number, the session's pulse, says so for all.
5. What was woken belongs to the session's last request, when that waits (RL 1.9), and is read when
   it is answered or in the next round.
6. Nothing rests for a follower that may not fetch, or is another one, or fetches under another
   broker epoch than before: all of it is woken, and refused or read. Nothing comes to rest in a
   session that is over.

Source: RL 1.8-1.10, 5.2. Kafka reads every partition of a session in every round; what it answers
is the same. Leaves out: consumers' sessions, whose answers depend on more (permission, rack,
transactions), and who decides that a session may rest (`fetch_session`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.replication.partition.fetch_data import (
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.remote_replica import LastRound

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.log.offset_metadata import LogOffsetMetadata
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica
    from twisted_broker.replication.partition.topic_stats import TopicStats

PartitionKey = tuple[object, int]


class IdleRead:
    """A read of `log` by `replica` that found nothing: `result` carries no records, no error and
    no divergence.
    """

    __slots__ = ("_log", "key", "partition", "replica", "result", "session")

    def __init__(
        self, partition: Partition, log: Log, replica: RemoteReplica, result: FetchPartitionResult
    ) -> None:
        self.partition = partition
        self._log = log
        self.replica = replica
        self.result = result
        self.key: PartitionKey = result.request.key
        self.session: IdlePartitions | None = None

    @property
    def request(self) -> FetchPartitionRequest:
        return self.result.request

    def holds(self) -> bool:
        """Whether reading anew would say the same, and do nothing but note the time."""
        partition, log, replica, result = self.partition, self._log, self.replica, self.result
        end = result.fetch_offset.offset
        return (
            partition.leader_log is log
            and result.request.current_leader_epoch in (-1, partition.leader_epoch)
            and partition.remote_replicas.get(replica.broker_id) is replica
            and replica.broker_id in partition.isr_state.isr
            and log.log_end_offset == replica.log_end.offset == end
            and replica.log_start_offset == result.request.log_start_offset
            and log.high_watermark == result.high_watermark
            and log.log_start_offset == result.log_start_offset
            and log.failed is None
        )

    def rest(self, session: IdlePartitions) -> None:
        self.session = session
        self.partition.resting += (self,)
        self.replica.keep_pace(session.pulse)

    def wake(self) -> IdlePartitions | None:
        """It is read again from now on, and belongs to its session's woken ones.

        The partition has let go of it.
        """
        session, self.session = self.session, None
        if session is not None:
            self.replica.leave_pace(session.pulse)
            session.woken_by(self)
        return session

    def leave(self) -> None:
        """It is read again from now on, though nothing happened in its partition: who waits
        there is not told.
        """
        self.partition.let_go(self)
        self.wake()


class IdlePartitions:
    """What rests in one session. `woken`: what does no longer, until `take_woken`: what is asked,
    and where in the log that was. It holds no partition: the session of a follower that is gone
    outlives them.
    """

    __slots__ = ("_asker", "_fetches", "_reads", "is_over", "pulse", "woken")

    def __init__(self) -> None:
        self.pulse = LastRound()
        self.is_over = False
        self.woken: dict[PartitionKey, tuple[FetchPartitionRequest, LogOffsetMetadata]] = {}
        self._reads: dict[PartitionKey, IdleRead] = {}
        self._asker: tuple[int, int] | None = None
        self._fetches: dict[TopicStats, int] = {}

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def requests(self) -> list[FetchPartitionRequest]:
        """What its follower asks of them."""
        return [quiet.request for quiet in self._reads.values()]

    # rounds
    def begin(self, now_ms: int, asker: tuple[int, int], may_replicate: bool) -> None:
        """The follower asks again for all that rests. `asker`: its id and broker epoch."""
        if not may_replicate or asker != self._asker:
            self.wake_all()
            self._asker = asker
        self.pulse.ms = now_ms
        for stats, count in self._fetches.items():
            stats.fetches += count

    def rest(self, quiet: IdleRead) -> None:
        self._reads[quiet.key] = quiet
        stats = quiet.partition.stats
        self._fetches[stats] = self._fetches.get(stats, 0) + 1
        quiet.rest(self)

    # what ends it
    def woken_by(self, quiet: IdleRead) -> None:
        """Something happened in its partition."""
        del self._reads[quiet.key]
        self._uncount(quiet)
        self.woken[quiet.key] = (quiet.request, quiet.result.fetch_offset)

    def wake_all(self) -> None:
        for quiet in list(self._reads.values()):
            quiet.leave()

    def end(self) -> None:
        """Its session is over; a request of it may still wait."""
        self.is_over = True
        self.wake_all()

    def forget(self, key: PartitionKey) -> None:
        """Its follower asks something else of it, or no longer for it."""
        quiet = self._reads.get(key)
        if quiet is not None:
            quiet.leave()
        self.woken.pop(key, None)

    def take_woken(self) -> list[PartitionKey]:
        """What must be read again."""
        keys, self.woken = list(self.woken), {}
        return keys

    def _uncount(self, quiet: IdleRead) -> None:
        stats = quiet.partition.stats
        left = self._fetches[stats] - 1
        if left:
            self._fetches[stats] = left
        else:
            del self._fetches[stats]
