"""What a partition remembers of its own changes, for whoever asks why it is as it is.

Owns `PartitionHistory`: why each absent replica is out of the ISR, since when the ISR is below its
minimum, what was proposed and refused, what truncations cut, why following stopped.

1. Written at transitions only (role, ISR, minimum ISR, cut, failure); an append, a read or a
   follower's fetch never touches it.
2. It decides nothing: without it everything would go the same way.
3. Its size is bounded: the last `TRUNCATIONS_KEPT` truncations, and one absence per absent replica.

Source: RL 2.3-2.5, 6.3; issue "Replication", explain. Times are monotonic milliseconds, -1 never;
truncations carry the calendar's. Leaves out: telling (`explanation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr import PendingExpand, PendingShrink

if TYPE_CHECKING:
    from twisted_broker.replication.partition.isr import IsrState, PendingIsr
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica
    from twisted_broker.wire.errors import ErrorCode

TRUNCATIONS_KEPT = 8


class Rule(Enum):
    """Why a replica is out of the ISR; the values are what `status` and `replog explain` say."""

    LAG = "lag"
    FENCED = "fenced"
    SHUTTING_DOWN = "shutting down"
    CONTROLLER = "controller"
    NEW_REPLICA = "new replica"
    BEFORE_THIS_LEADER = "before this leader"


class Absence(NamedTuple):
    """A replica that left, or was never in: by which rule, since when, and how it stood then.

    Offsets are -1 where nothing was known.
    """

    rule: Rule
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


_NOBODY: Mapping[int, Absence] = {}


class Truncation(NamedTuple):
    """What a truncation took: offsets from `to_offset` up to `from_offset`, and the leader epochs
    that began there.

    `last_epoch`: of the last entry before it; `leader_epoch`: under which it was made;
    `high_watermark`: the own one before it.
    """

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int
    epochs: tuple[int, ...]
    high_watermark: int
    last_epoch: int = -1
    leader_epoch: int = -1
    size_in_bytes: int = 0
    wall_ms: int = -1

    @property
    def below_high_watermark(self) -> bool:
        return self.to_offset < self.high_watermark

    def __str__(self) -> str:
        epochs = f", epochs {', '.join(map(str, self.epochs))}" if self.epochs else ""
        below = (
            f", below its high watermark {self.high_watermark}" if self.below_high_watermark else ""
        )
        return (
            f"{self.topic_partition} cut from {self.from_offset} to {self.to_offset}{epochs}{below}"
        )


class PartitionHistory:
    """See the module's card."""

    __slots__ = (
        "_leaving",
        "absences",
        "failure",
        "isr_since_ms",
        "proposed_ms",
        "refusal",
        "role_since_ms",
        "truncations",
        "under_min_since_ms",
    )

    def __init__(self) -> None:
        self.absences: Mapping[int, Absence] = _NOBODY
        self.truncations: tuple[Truncation, ...] = ()
        self.failure: FollowingFailure | None = None
        self.refusal: Refusal | None = None
        self.role_since_ms = self.isr_since_ms = self.under_min_since_ms = self.proposed_ms = -1
        self._leaving: Mapping[int, Absence] = _NOBODY

    # roles
    def leads(
        self,
        partition: Partition,
        before: IsrState,
        leader_before: int | None,
        epoch_is_new: bool,
        now_ms: int,
    ) -> None:
        """The controller's word made it leader after `leader_before` (None: it led already), or
        changed what it leads.
        """
        if leader_before is not None:
            self.absences = self._leaving = _NOBODY
            self.failure = self.refusal = None
        if epoch_is_new:
            self.role_since_ms = now_ms
        self._isr_is(partition, before, leader_before, now_ms)

    def follows(self, now_ms: int) -> None:
        """A new leader epoch under another leader."""
        self.absences = self._leaving = _NOBODY
        self.failure = self.refusal = None
        self.under_min_since_ms = self.proposed_ms = -1
        self.role_since_ms = self.isr_since_ms = now_ms

    # the ISR
    def proposed(self, partition: Partition, pending: PendingIsr, now_ms: int) -> None:
        """A change goes to the controller; how those stand that are to leave is kept until it is
        confirmed.
        """
        self.proposed_ms = now_ms
        self._leaving = _NOBODY
        if isinstance(pending, PendingShrink):
            remote, leader_end = partition.remote_replicas, _leader_end(partition)
            self._leaving = {
                broker: _absence(Rule.LAG, remote[broker], leader_end, now_ms)
                for broker in pending.leaving
                if broker in remote
            }

    def confirmed(self, partition: Partition, before: IsrState, now_ms: int) -> None:
        """The controller took the change; `before` is the state it was proposed from."""
        self.refusal = None
        self._isr_is(partition, before, None, now_ms)

    def refused(self, error: ErrorCode, now_ms: int) -> None:
        self.refusal = Refusal(error, now_ms)

    def _isr_is(
        self, partition: Partition, before: IsrState, leader_before: int | None, now_ms: int
    ) -> None:
        isr, leader_end = partition.isr_state.isr, _leader_end(partition)
        if leader_before is not None or isr != before.isr:
            self.isr_since_ms = now_ms
        absences: dict[int, Absence] = {}
        for broker, replica in partition.remote_replicas.items():
            if broker not in isr:
                known = self.absences.get(broker) or self._leaving.get(broker)
                absences[broker] = known or _absence(
                    _rule(partition, broker, before, leader_before), replica, leader_end, now_ms
                )
        self.absences = absences or _NOBODY
        self._leaving = _NOBODY
        self.proposed_ms = -1
        self.minimum_checked(partition, now_ms)

    def minimum_checked(self, partition: Partition, now_ms: int) -> None:
        """RL 2.3: the ISR, or the minimum, has changed."""
        if partition.leader_log is None or len(partition.isr_state.isr) >= partition.min_isr:
            self.under_min_since_ms = -1
        elif self.under_min_since_ms < 0:
            self.under_min_since_ms = now_ms

    # following
    def cut(self, cut: Truncation) -> None:
        self.truncations = (*self.truncations[1 - TRUNCATIONS_KEPT :], cut)

    def following_failed(self, reason: str, now_ms: int) -> None:
        self.failure = FollowingFailure(reason, now_ms)


def older_metadata(newest_epoch: int, reason: str) -> str:
    """Why a replica is neither led nor fetched whose log is ahead of the metadata."""
    return (
        f"its log has records of leader epoch {newest_epoch}, but {reason}: the controller's "
        "metadata is older than this replica "
        "(restored from an older copy?); nothing is cut"
    )


def _leader_end(partition: Partition) -> int:
    return -1 if partition.leader_log is None else partition.leader_log.log_end_offset


def _absence(rule: Rule, replica: RemoteReplica, leader_end: int, now_ms: int) -> Absence:
    return Absence(
        rule, now_ms, replica.last_caught_up_ms or -1, replica.log_end.offset, leader_end
    )


def _rule(partition: Partition, broker: int, before: IsrState, leader_before: int | None) -> Rule:
    """What took a replica out that this leader did not propose to leave out.

    Who led until now was in the ISR until now.
    """
    led_already = leader_before is None
    if broker == leader_before or (
        led_already
        and (
            broker in before.isr or (isinstance(before, PendingExpand) and broker == before.joining)
        )
    ):
        if not partition.brokers.is_alive(broker):
            return Rule.FENCED
        return Rule.CONTROLLER if partition.brokers.may_be_in_isr(broker) else Rule.SHUTTING_DOWN
    if broker in partition.adding or led_already:
        return Rule.NEW_REPLICA
    return Rule.BEFORE_THIS_LEADER
