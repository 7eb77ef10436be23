"""A partition explained: what this broker is in it, how far it is, and why it is not further.

Owns `explain`, and the shape of its answer, which `status` gives out as JSON.

1. A pure function of the partition, what waits for it, how it is fetched, and the time.
   `dataclasses.asdict` of it is JSON.

Source: our own; RL 1-2, 6. Not here: the single reasons (`reasons`,
`waiting_requests`), HTTP (`status`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twisted_broker.replication.explain.cleaning_state import Cleaning, cleaning_state
from twisted_broker.replication.explain.reasons import (
    HighWatermarkWait,
    Moment,
    OutOfSync,
    duration,
    high_watermark_wait,
    offset_count,
    out_of_sync,
)
from twisted_broker.replication.explain.stable_offset import LastStableWait, last_stable_wait
from twisted_broker.replication.explain.waiting_requests import WaitingRequest, waiting_requests
from twisted_broker.replication.partition.isr_state import PendingExpand, PendingShrink

if TYPE_CHECKING:
    from twisted_broker.log.cleaner.cleaner_view import CleanerView
    from twisted_broker.replication.fetcher.directory_move import Move
    from twisted_broker.replication.fetcher.fetcher_state import PartitionFetchState
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.partition_history import Truncation

EPOCHS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TruncationInfo:
    """A truncation.

    `below_high_watermark`: how many dropped offsets were below the high watermark: consumers may
    have seen them, and acks=all had acknowledged them.
    """

    at_ms: int
    from_offset: int
    to_offset: int
    bytes: int
    epochs: list[int]
    last_epoch: int
    leader_epoch: int
    high_watermark: int
    below_high_watermark: int
    why: str


@dataclass(frozen=True, slots=True)
class Fetching:
    """How this broker follows.

    `phase`: fetching, truncating, failed, or none; `lag` -1 before the first answer.
    """

    fetcher: str
    phase: str
    offset: int
    lag: int
    delayed_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class DirectoryMove:
    """Its move to another directory of this broker. `phase`: copying, waiting for the controller,
    accepted by the controller, failed; `offset`: the future log's end.
    """

    source: str
    target: str
    phase: str
    offset: int
    behind: int
    for_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A change that the controller has yet to answer."""

    kind: str
    brokers: list[int]
    since_ms: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A follower as its leader sees it; offsets are -1 until it fetched under this leader.

    Times are the calendar's.
    """

    broker: int
    in_isr: bool
    log_end: int
    behind: int
    last_caught_up_ms: int
    last_fetch_ms: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """One broker's view.

    `role`: leader, follower, offline. Offsets are -1 where there is no log. Only a leader knows an
    ISR.
    """

    topic: str
    partition: int
    broker: int
    at_ms: int
    role: str
    role_since_ms: int
    leader: int
    leader_epoch: int
    leader_epoch_start: int
    partition_epoch: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    isr: list[int]
    isr_since_ms: int
    isr_change: IsrChange | None
    minimum_isr: int
    log_start: int
    high_watermark: int
    last_stable: int
    log_end: int
    bytes: int
    epochs: list[tuple[int, int]]
    high_watermark_waits: HighWatermarkWait | None
    last_stable_waits: LastStableWait | None
    out_of_sync: list[OutOfSync]
    followers: list[Replica]
    fetching: Fetching | None
    waiting: list[WaitingRequest]
    waiting_count: int
    truncations: list[TruncationInfo] = field(default_factory=list)
    offline_because: str = ""
    moving: DirectoryMove | None = None
    cleaning: Cleaning | None = None


def explain(
    partition: Partition,
    now: Moment,
    watching: Sequence[tuple[Any, int]] = (),
    fetching: Fetching | None = None,
    move: Move | None = None,
    cleaner: CleanerView | None = None,
    throttled: str = "",
    move_throttled: str = "",
) -> Explanation:
    """`watching`: the operations that wait for it, with the ms left to each; `fetching`: see
    `fetching_now`; `move`: to another directory; `cleaner`: the cleaner's view of a compacted log;
    `throttled`: why a leader sends nothing to replicas that are not in sync; `move_throttled`: why
    the move waits.
    """
    log, leads, history, state = (
        partition.log,
        partition.leader_log,
        partition.history,
        partition.isr_state,
    )
    return Explanation(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        broker=partition.node_id,
        at_ms=now.wall_ms,
        role="offline" if partition.offline else "leader" if leads is not None else "follower",
        role_since_ms=now.calendar(history.role_since_ms),
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        leader_epoch_start=partition.leader_epoch_start_offset,
        partition_epoch=partition.partition_epoch,
        replicas=list(partition.replicas),
        adding=list(partition.adding),
        removing=list(partition.removing),
        isr=sorted(state.isr),
        isr_since_ms=now.calendar(history.isr_since_ms),
        isr_change=_isr_change(partition, now),
        minimum_isr=partition.min_isr if leads is not None else -1,
        log_start=-1 if log is None else log.log_start_offset,
        high_watermark=-1 if log is None else log.high_watermark,
        last_stable=-1 if log is None else log.last_stable_offset,
        log_end=-1 if log is None else log.log_end_offset,
        bytes=0 if log is None else log.size_in_bytes,
        epochs=[] if log is None else log.leader_epochs.entries()[-EPOCHS_SHOWN:],
        high_watermark_waits=None if leads is None else high_watermark_wait(partition, leads, now),
        last_stable_waits=None if log is None else last_stable_wait(log, now),
        out_of_sync=[] if leads is None else out_of_sync(partition, leads, now, throttled),
        followers=_followers(partition, now),
        fetching=None if leads is not None else fetching,
        waiting=waiting_requests(partition, watching),
        waiting_count=len(watching),
        truncations=[_truncation_info(truncation) for truncation in reversed(history.truncations)],
        offline_because=partition.offline_because,
        moving=None if move is None else _moving(partition, move, now, move_throttled),
        cleaning=cleaning_state(cleaner, now),
    )


def _moving(partition: Partition, move: Move, now: Moment, throttled: str) -> DirectoryMove | None:
    log, future = partition.log, partition.future_log
    if log is None or future is None:
        return None
    source, target = (posixpath.dirname(each.directory) for each in (log, future))
    phase = "failed" if move.error else move.assignment.value
    behind, for_ms = log.log_end_offset - future.log_end_offset, now.ago(move.began_ms)
    stands = f"failed, until it is requested again: {move.error}" if move.error else phase
    if throttled and not move.error:
        stands += f", {throttled}"
    why = (
        f"moves from {source} to {target} for {duration(for_ms)}: filled up to "
        f"{future.log_end_offset}, {offset_count(behind)} behind; {stands}"
    )
    return DirectoryMove(source, target, phase, future.log_end_offset, behind, for_ms, why)


def _isr_change(partition: Partition, now: Moment) -> IsrChange | None:
    state, since = partition.isr_state, partition.history.proposed_ms
    if isinstance(state, PendingExpand):
        return IsrChange("expand", [state.joining], now.calendar(since), now.ago(since))
    if isinstance(state, PendingShrink):
        return IsrChange("shrink", sorted(state.leaving), now.calendar(since), now.ago(since))
    return None


def _followers(partition: Partition, now: Moment) -> list[Replica]:
    log = partition.leader_log
    if log is None:
        return []
    return [
        Replica(
            broker,
            broker in partition.isr_state.isr,
            replica.log_end.offset,
            log.log_end_offset - replica.log_end.offset if replica.log_end.offset >= 0 else -1,
            now.calendar(replica.last_caught_up_ms),
            now.calendar(replica.last_fetch_ms),
        )
        for broker, replica in sorted(partition.remote_replicas.items())
    ]


def _truncation_info(truncation: Truncation) -> TruncationInfo:
    below = max(0, min(truncation.high_watermark, truncation.from_offset) - truncation.to_offset)
    if truncation.reason:
        why = f"{truncation.reason}: fetched again from {truncation.to_offset}"
    elif truncation.to_offset > truncation.from_offset:
        why = (
            f"the whole log was dropped and starts again at {truncation.to_offset}, "
            "the leader's log start"
        )
    else:
        dropped = offset_count(truncation.from_offset - truncation.to_offset)
        gone = f"dropped {dropped}, {truncation.size_in_bytes:,} bytes"
        lost = (
            f", {below:,} of them below its high watermark {truncation.high_watermark}: "
            "acknowledged, and perhaps consumed"
            if below
            else ""
        )
        why = (
            f"under leader epoch {truncation.leader_epoch}, "
            f"{gone}{lost or ', none of them below its high watermark'}"
        )
    return TruncationInfo(
        truncation.wall_ms,
        truncation.from_offset,
        truncation.to_offset,
        truncation.size_in_bytes,
        list(truncation.epochs),
        truncation.last_epoch,
        truncation.leader_epoch,
        truncation.high_watermark,
        below,
        why,
    )


def fetching_now(
    partition: Partition,
    fetcher: str,
    leader: str,
    state: PartitionFetchState | None,
    now: Moment,
    throttled: str = "",
) -> Fetching:
    """How a follower is fetched.

    `state` None: no fetcher has it; `leader` names the broker that is fetched from; `throttled`:
    why a replica that is not in sync is not fetched now.
    """
    failure = partition.history.failure
    if state is None and failure is not None:
        until = "this broker restarts" if partition.offline else "its metadata changes"
        why = (
            f"fetching stopped {duration(now.ago(failure.at_ms))} ago, until {until}: "
            f"{failure.reason}"
        )
        return Fetching("", "failed", -1, -1, 0, why)
    if state is None:
        return Fetching(
            "",
            "none",
            -1,
            -1,
            0,
            "there is no leader to fetch from" if partition.leader_id < 0 else "it is not fetched",
        )
    delayed_ms = max(0, state.delayed_until_ms - now.now_ms) if state.is_delayed(now.now_ms) else 0
    lag = (
        "no answer yet"
        if state.lag is None
        else "at the leader's high watermark"
        if not state.lag
        else f"{offset_count(state.lag)} behind"
    )
    pause = f", paused for {duration(delayed_ms)} after an error" if delayed_ms else ""
    why = f"{state.phase.value} from {leader} at {state.fetch_offset}, {lag}{pause}"
    if throttled and not state.is_in_sync:
        why += f", {throttled}"
    return Fetching(
        fetcher,
        state.phase.value,
        state.fetch_offset,
        -1 if state.lag is None else state.lag,
        delayed_ms,
        why,
    )
