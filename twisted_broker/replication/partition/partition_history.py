"""A partition's memory of its own changes, for the explanation of its state.

Owns `PartitionHistory`: why each replica that is out of the ISR left it, since when the ISR is
below its minimum, what was proposed and refused, what truncations dropped, why following stopped.

1. Written by `Partition`, at transitions only (role, ISR, minimum ISR, truncation, failure); an
   append, a read or a follower's fetch never touches it.
2. It decides nothing: without it everything would go the same way.
3. Its size is bounded: the last `TRUNCATIONS_KEPT` truncations, and one entry per replica that is
   out of the ISR.

Source: RL 2.3-2.5, 6.3; our own. Times are monotonic milliseconds, -1 never;
truncations carry the calendar's. Not here: the explanation (`explain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr_state import PendingExpand, PendingShrink
from twisted_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.replication.partition.isr_state import IsrState, PendingIsr
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica

TRUNCATIONS_KEPT = 8


class Cause(Enum):
    """Why a replica is out of the ISR; the values are what `status` and `replog explain` say."""

    LAG = "lag"
    FENCED = "fenced"
    SHUTTING_DOWN = "shutting down"
    CONTROLLER = "controller"
    NEW_REPLICA = "new replica"
    BEFORE_THIS_LEADER = "before this leader"


class OutOfIsr(NamedTuple):
    """A replica that left the ISR, or was never in it: why, since when, and how far it was then.

    Offsets are -1 where nothing was known, and `last_caught_up_ms` is below 0 where it never was.
    """

    cause: Cause
    since_ms: int
    last_caught_up_ms: int
    log_end: int
    leader_end: int


class Refusal(NamedTuple):
    """The controller's last refusal of an ISR change."""

    error: ErrorCode
    at_ms: int


class FollowingFailure(NamedTuple):
    """Why this replica is not fetched any more."""

    reason: str
    at_ms: int


_NOBODY: Mapping[int, OutOfIsr] = {}


class Truncation(NamedTuple):
    """What a truncation dropped: offsets from `to_offset` up to `from_offset`, and the leader
    epochs that began there.

    `last_epoch`: of the last entry before it; `leader_epoch`: under which it was made;
    `high_watermark`: the own one before it; `reason`: why it is fetched again, "": the leader does
    not have it.
    """

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int
    epochs: tuple[int, ...]
    high_watermark: int
    last_epoch: int
    leader_epoch: int
    size_in_bytes: int
    wall_ms: int
    reason: str = ""

    @classmethod
    def of(
        cls, log: Log, offset: int, leader_epoch: int, wall_ms: int, reason: str = ""
    ) -> Truncation:
        """What truncating `log` to `offset` is about to drop; with the log's size as it is now."""
        known = log.leader_epochs
        return cls(
            log.topic_partition,
            log.log_end_offset,
            offset,
            tuple(epoch for epoch, start in known.entries() if start >= offset),
            log.high_watermark,
            known.latest_epoch,
            leader_epoch,
            log.size_in_bytes,
            wall_ms,
            reason,
        )

    @property
    def below_high_watermark(self) -> bool:
        return self.to_offset < self.high_watermark

    def __str__(self) -> str:
        epochs = f", epochs {', '.join(map(str, self.epochs))}" if self.epochs else ""
        below = (
            f", below its high watermark {self.high_watermark}" if self.below_high_watermark else ""
        )
        span = f"truncated from {self.from_offset} to {self.to_offset}"
        return f"{self.topic_partition} {span}{epochs}{below}"


class PartitionHistory:
    """See the module's card."""

    __slots__ = (
        "_leaving",
        "failure",
        "isr_since_ms",
        "out_of_isr",
        "proposed_ms",
        "refusal",
        "role_since_ms",
        "truncations",
        "under_min_since_ms",
    )

    def __init__(self) -> None:
        self.out_of_isr: Mapping[int, OutOfIsr] = _NOBODY
        self.truncations: tuple[Truncation, ...] = ()
        self.failure: FollowingFailure | None = None
        self.refusal: Refusal | None = None
        self.role_since_ms = self.isr_since_ms = self.under_min_since_ms = self.proposed_ms = -1
        self._leaving: Mapping[int, OutOfIsr] = _NOBODY

    # roles
    def became_leader(
        self,
        partition: Partition,
        before: IsrState,
        leader_before: int | None,
        epoch_is_new: bool,
        now_ms: int,
    ) -> None:
        """The controller made it leader after `leader_before` (None: it led already), or changed
        what it leads.
        """
        if leader_before is not None:
            self.out_of_isr = self._leaving = _NOBODY
            self.failure = self.refusal = None
        if epoch_is_new:
            self.role_since_ms = now_ms
        self._note_isr(partition, before, leader_before, now_ms)

    def became_follower(self, now_ms: int) -> None:
        """A new leader epoch under another leader."""
        self.out_of_isr = self._leaving = _NOBODY
        self.failure = self.refusal = None
        self.under_min_since_ms = self.proposed_ms = -1
        self.role_since_ms = self.isr_since_ms = now_ms

    # the ISR
    def isr_proposed(self, partition: Partition, pending: PendingIsr, now_ms: int) -> None:
        """A change goes to the controller; the positions of replicas that are to leave are kept
        until it is confirmed.
        """
        self.proposed_ms = now_ms
        self._leaving = _NOBODY
        if isinstance(pending, PendingShrink):
            remote, leader_end = partition.remote_replicas, _leader_end(partition)
            self._leaving = {
                broker: _out_of_isr(Cause.LAG, remote[broker], leader_end, now_ms)
                for broker in pending.leaving
                if broker in remote
            }

    def isr_confirmed(self, partition: Partition, before: IsrState, now_ms: int) -> None:
        """The controller took the change; `before` is the state in which it was pending."""
        self.refusal = None
        self._note_isr(partition, before, None, now_ms)

    def isr_refused(self, error: ErrorCode, now_ms: int) -> None:
        self.refusal = Refusal(error, now_ms)

    def _note_isr(
        self, partition: Partition, before: IsrState, leader_before: int | None, now_ms: int
    ) -> None:
        isr, leader_end = partition.isr_state.isr, _leader_end(partition)
        if leader_before is not None or isr != before.isr:
            self.isr_since_ms = now_ms
        found: dict[int, OutOfIsr] = {}
        for broker, replica in partition.remote_replicas.items():
            if broker not in isr:
                known = self.out_of_isr.get(broker) or self._leaving.get(broker)
                found[broker] = known or _out_of_isr(
                    _cause(partition, broker, before, leader_before), replica, leader_end, now_ms
                )
        self.out_of_isr = found or _NOBODY
        self._leaving = _NOBODY
        self.proposed_ms = -1
        self.min_isr_checked(partition, now_ms)

    def min_isr_checked(self, partition: Partition, now_ms: int) -> None:
        """RL 2.3: the ISR, or the minimum, has changed."""
        if partition.leader_log is None or len(partition.isr_state.isr) >= partition.min_isr:
            self.under_min_since_ms = -1
        elif self.under_min_since_ms < 0:
            self.under_min_since_ms = now_ms

    # following
    def truncated(self, truncation: Truncation) -> None:
        self.truncations = (*self.truncations[1 - TRUNCATIONS_KEPT :], truncation)

    def following_failed(self, reason: str, now_ms: int) -> None:
        self.failure = FollowingFailure(reason, now_ms)


def older_metadata(newest_epoch: int, reason: str, directory: str) -> str:
    """Why a replica whose log is ahead of the metadata neither leads nor follows."""
    return (
        f"its log has records of leader epoch {newest_epoch}, but {reason}: the controller's "
        "metadata is older than this replica (restored from an older copy?); nothing is "
        f"truncated. Where it is no older copy, stop the broker and move {directory} away, so that "
        "the replica is made anew from its leader"
    )


def _leader_end(partition: Partition) -> int:
    return -1 if partition.leader_log is None else partition.leader_log.log_end_offset


def _out_of_isr(reason: Cause, replica: RemoteReplica, leader_end: int, now_ms: int) -> OutOfIsr:
    return OutOfIsr(reason, now_ms, replica.last_caught_up_ms, replica.log_end.offset, leader_end)


def _cause(partition: Partition, broker: int, before: IsrState, leader_before: int | None) -> Cause:
    """Why a replica is out of the ISR although this leader did not propose to remove it.

    The broker that led until now was in the ISR until now.
    """
    led_already = leader_before is None
    if broker == leader_before or (
        led_already
        and (
            broker in before.isr or (isinstance(before, PendingExpand) and broker == before.joining)
        )
    ):
        if partition.brokers.is_leaving(broker):
            return Cause.SHUTTING_DOWN
        return Cause.CONTROLLER if partition.brokers.is_alive(broker) else Cause.FENCED
    if broker in partition.adding or led_already:
        return Cause.NEW_REPLICA
    return Cause.BEFORE_THIS_LEADER
