"""Why a partition is as it is, found on demand: who is out of the ISR, for whom the high watermark
waits.

Owns the shapes of the answers and the functions that find them, out of the partition as it stands
and its `PartitionHistory`.

1. Nothing is changed and nothing is kept: without a request an explanation costs nothing.
2. A reason is a rule with its numbers, and `why`, the same in one sentence. Times come as monotonic
   milliseconds and leave as the calendar's (`since_ms`, 0 unknown) and as a length (`for_ms`).

Source: RL 2.3-2.5; KRAFT 3.6. Not here: what requests wait for (`waiting_requests`), the whole of a
partition (`explanation`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted_broker.replication.partition.isr_state import PendingExpand, PendingShrink
from twisted_broker.replication.partition.partition import is_current
from twisted_broker.replication.partition.partition_history import Cause, OutOfIsr

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica


class Moment:
    """A moment on both clocks."""

    __slots__ = ("now_ms", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms

    def ago(self, at_ms: int) -> int:
        """How long ago, in ms; 0 for what never was."""
        return max(0, self.now_ms - at_ms) if at_ms > 0 else 0

    def calendar(self, at_ms: int) -> int:
        """A monotonic moment as the calendar's, 0 for what never was."""
        return self.wall_ms - self.ago(at_ms) if at_ms > 0 else 0


def duration(length_ms: int) -> str:
    """A length of time for people, rounded: ms, s, min or h."""
    seconds = length_ms / 1000
    if seconds < 1:
        return f"{length_ms} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def offset_count(count: int) -> str:
    """`1 offset`, `1,234 offsets`."""
    return f"{count:,} offset" + ("" if count == 1 else "s")


def broker_names(brokers: Iterable[int]) -> str:
    """`broker 3`, `brokers 2 and 3`."""
    found = sorted(brokers)
    if len(found) == 1:
        return f"broker {found[0]}"
    return f"brokers {', '.join(map(str, found[:-1]))} and {found[-1]}" if found else "nobody"


# who is out of the ISR


@dataclass(frozen=True, slots=True)
class OutOfSync:
    """A replica that is not in the ISR.

    `then_*`: when it left; `log_end` and `behind` now, -1 unknown; `holds_back`: what keeps it out
    now.
    """

    broker: int
    rule: str
    since_ms: int
    for_ms: int
    then_log_end: int
    then_leader_log_end: int
    last_caught_up_ms: int
    last_fetch_ms: int
    log_end: int
    behind: int
    holds_back: list[str]
    why: str


def out_of_sync(
    partition: Partition, log: Log, now: Moment, throttled: str = ""
) -> list[OutOfSync]:
    """RL 2.4: the assigned replicas outside of the ISR, with the rule that put each there.
    `throttled`: why they are sent nothing now.
    """
    isr = partition.isr_state.isr
    return [
        _out(partition, log, replica, now, throttled)
        for broker, replica in sorted(partition.remote_replicas.items())
        if broker not in isr
    ]


def _out(
    partition: Partition, log: Log, replica: RemoteReplica, now: Moment, throttled: str
) -> OutOfSync:
    known = partition.history.out_of_isr.get(replica.broker_id)
    left = known or OutOfIsr(Cause.BEFORE_THIS_LEADER, partition.history.role_since_ms, -1, -1, -1)
    end = replica.log_end.offset
    return OutOfSync(
        broker=replica.broker_id,
        rule=left.cause.value,
        since_ms=now.calendar(left.since_ms),
        for_ms=now.ago(left.since_ms),
        then_log_end=left.log_end,
        then_leader_log_end=left.leader_end,
        last_caught_up_ms=now.calendar(replica.last_caught_up_ms),
        last_fetch_ms=now.calendar(replica.last_fetch_ms),
        log_end=end,
        behind=log.log_end_offset - end if end >= 0 else -1,
        holds_back=([throttled] if throttled else []) + _holds_back(partition, log, replica, now),
        why=_why_out(partition, left),
    )


def _why_out(partition: Partition, left: OutOfIsr) -> str:
    if left.cause is Cause.LAG:
        caught_up = (
            "never caught up"
            if left.last_caught_up_ms <= 0
            else f"last caught up {duration(left.since_ms - left.last_caught_up_ms)} before"
        )
        stood = (
            f"its log end was {left.log_end} of {left.leader_end}"
            if left.log_end >= 0
            else "it had not fetched from this leader"
        )
        return (
            "it was not caught up for replica.lag.time.max.ms "
            f"({duration(partition.max_lag_ms)}; {caught_up}), {stood}"
        )
    return {
        # One that leads nothing is fenced at once where it wants to shut down, as by Kafka.
        Cause.FENCED: (
            "the controller removed it: it was fenced (no heartbeat in its session, or it led "
            "nothing and shut down)"
        ),
        Cause.SHUTTING_DOWN: "the controller removed it: it was shutting down",
        Cause.CONTROLLER: (
            "the controller removed it: it registered again, or its log directory failed"
        ),
        Cause.NEW_REPLICA: "it is a new replica and has not caught up yet",
        Cause.BEFORE_THIS_LEADER: "it was not in the ISR when this broker became leader",
    }[left.cause]


def _holds_back(partition: Partition, log: Log, replica: RemoteReplica, now: Moment) -> list[str]:
    """RL 2.4 and KRAFT 3.6, one by one: what a replica lacks for coming back."""
    brokers, broker = partition.brokers, replica.broker_id
    found = []
    if not brokers.is_alive(broker):
        found.append("it is fenced")
    elif not brokers.may_be_in_isr(broker):
        found.append("it is shutting down")
    if replica.broker_epoch is None:
        found.append("it has not fetched from this leader yet")
    else:
        if not is_current(replica.broker_epoch, brokers.epoch_of(broker)):
            found.append(
                f"it fetches under broker epoch {replica.broker_epoch}, but is registered "
                f"under {brokers.epoch_of(broker)}"
            )
        silent_ms = now.ago(replica.last_fetch_ms)
        if silent_ms > 2000:
            found.append(f"its last fetch was {duration(silent_ms)} ago")
        if replica.log_end.offset < log.high_watermark:
            found.append(
                f"its log end {replica.log_end.offset} is "
                f"{offset_count(log.high_watermark - replica.log_end.offset)} below the high "
                "watermark"
            )
        if replica.log_end.offset < partition.leader_epoch_start_offset:
            found.append(
                f"its log end is below {partition.leader_epoch_start_offset}, the start of "
                f"leader epoch {partition.leader_epoch}"
            )
    return found + _change_holds_back(partition, broker, now)


def _change_holds_back(partition: Partition, broker: int, now: Moment) -> list[str]:
    state, history = partition.isr_state, partition.history
    if isinstance(state, PendingExpand | PendingShrink):
        for_whom = (
            "adding it"
            if isinstance(state, PendingExpand) and state.joining == broker
            else "another ISR change"
        )
        return [
            (
                f"the controller has not answered about {for_whom} yet (requested "
                f"{duration(now.ago(history.proposed_ms))} ago)"
            )
        ]
    if history.refusal is not None:
        return [
            (
                f"the controller refused an ISR change {duration(now.ago(history.refusal.at_ms))} "
                f"ago: {history.refusal.error.name}"
            )
        ]
    return []


# why the high watermark waits


@dataclass(frozen=True, slots=True)
class LaggingReplica:
    """A replica that holds the high watermark back.

    `counts_as`: why it counts; `since_ms`: when it was last caught up.
    """

    broker: int
    log_end: int
    behind: int
    counts_as: str
    since_ms: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class HighWatermarkWait:
    """`rule`: minimum isr, own sync, slowest replica, or next fetch.

    `behind`: offsets between the high watermark and the log end.
    """

    rule: str
    behind: int
    brokers: list[LaggingReplica]
    since_ms: int
    for_ms: int
    why: str


def high_watermark_wait(partition: Partition, log: Log, now: Moment) -> HighWatermarkWait | None:
    """RL 2.3, 2.5: None when the high watermark is at the log end."""
    behind = log.log_end_offset - log.high_watermark
    if behind <= 0:
        return None
    isr, minimum = partition.isr_state.isr, partition.min_isr
    if len(isr) < minimum:
        since = partition.history.under_min_since_ms
        why = (
            f"the ISR has {len(isr)}, but min.insync.replicas is {minimum}: a Produce with "
            "acks=all "
            "is refused, and the high watermark does not move"
        )
        return HighWatermarkWait(
            "minimum isr", behind, [], now.calendar(since), now.ago(since), why
        )
    if log.durability.acknowledgeable_end.offset <= log.high_watermark:
        why = (
            f"the leader has not synced its log to disk yet ({offset_count(behind)} wait: "
            "flush.messages)"
        )
        return HighWatermarkWait("own sync", behind, [], 0, 0, why)
    slowest = _slowest(partition, log, now)
    if not slowest:
        return HighWatermarkWait(
            "next fetch", behind, [], 0, 0, "it moves with the next fetch of a follower"
        )
    since = min(
        (replica.last_caught_up_ms for replica, _ in slowest if replica.last_caught_up_ms > 0),
        default=partition.history.role_since_ms,
    )
    brokers = [_lagging_replica(replica, counts_as, log, now) for replica, counts_as in slowest]
    why = (
        f"it waits for {broker_names(each.broker for each in brokers)}, "
        f"{offset_count(behind)} behind, for {duration(now.ago(since))}"
    )
    return HighWatermarkWait(
        "slowest replica", behind, brokers, now.calendar(since), now.ago(since), why
    )


def _slowest(partition: Partition, log: Log, now: Moment) -> list[tuple[RemoteReplica, str]]:
    counted = [
        (replica, why)
        for replica in partition.remote_replicas.values()
        if (why := _counts_as(partition, replica, log, now)) is not None
    ]
    least = min((replica.log_end.offset for replica, _ in counted), default=log.log_end_offset)
    return [
        (replica, why)
        for replica, why in counted
        if replica.log_end.offset == least < log.log_end_offset
    ]


def _counts_as(partition: Partition, replica: RemoteReplica, log: Log, now: Moment) -> str | None:
    state, broker = partition.isr_state, replica.broker_id
    if isinstance(state, PendingExpand) and broker == state.joining:
        return "about to join the ISR"
    if isinstance(state, PendingShrink) and broker in state.leaving:
        return "about to leave the ISR, not confirmed yet"
    if broker in state.isr:
        return "in the ISR"
    if replica.is_caught_up(
        log.log_end_offset, now.now_ms, partition.max_lag_ms
    ) and partition.is_isr_eligible(replica):
        return "caught up, about to be proposed"
    return None


def _lagging_replica(
    replica: RemoteReplica, counts_as: str, log: Log, now: Moment
) -> LaggingReplica:
    end, since = replica.log_end.offset, replica.last_caught_up_ms
    behind = log.log_end_offset - max(end, log.log_start_offset)
    return LaggingReplica(
        replica.broker_id, end, behind, counts_as, now.calendar(since), now.ago(since)
    )
