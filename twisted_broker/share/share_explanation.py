"""Why records of a share group are not given out: who holds them, until when.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `explain_share_partitions`, of one broker, which leads the logs.

1. It only reads, and pauses.
2. Of one share partition at most `MOST_NAMED` ranges are named; the rest is counted.

Source: our own. Not here: how it is asked for (`status/http_resources.py`) and printed
(`cli/explain_text.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.replication.explain.reasons import Moment, duration
from twisted_broker.share.in_flight import ACKNOWLEDGED, ACQUIRED, AVAILABLE, InFlight, Run
from twisted_broker.share.share_partition import ShareLimits, SharePartition

MOST_NAMED = 10
# About a millisecond of one turn.
_RUNS_PER_STEP = 1000


def explain_share_partitions(
    group_id: str, held: Mapping[SharePartitionKey, Any], limits: ShareLimits, now: Moment
) -> Generator[None, None, list[dict[str, Any]]]:
    """As JSON has it, by topic and number. `held`: all `HeldSharePartition`s of the broker."""
    rows = []
    for each in [one for key, one in held.items() if key.group_id == group_id]:
        row = yield from _explained(each, limits, now)
        rows.append(row)
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _explained(
    held: Any, limits: ShareLimits, now: Moment
) -> Generator[None, None, dict[str, Any]]:
    topic, number = held.partition.topic_partition
    row = {"topic": topic, "partition": number, "leader_epoch": held.leader_epoch}
    share: SharePartition | None = held.share
    if share is None:
        return row | {"why": ["its state is being read from the share coordinator"]}
    named: list[Run] = []
    locked = ranges = 0
    for count, run in enumerate(_ranges(share.in_flight), 1):
        if run.is_held:
            locked += run.size_from(share.start_offset)
        if run.pending or (not run.is_finished and (run.count or run.is_held)):
            ranges += 1
            if len(named) < MOST_NAMED:
                named.append(run)
        if count % _RUNS_PER_STEP == 0:
            yield
    why = [_why(run, limits, now) for run in named]
    if ranges > len(named):
        why.append(f"and {ranges - len(named)} more ranges of offsets")
    return row | {
        "start_offset": share.start_offset,
        "end_offset": share.end_offset,
        "locked": locked,
        "ranges": [_as_json(run, now) for run in named],
        "why": [*why, *_of_all(held, share, limits)],
    }


def _ranges(in_flight: InFlight) -> Iterator[Run]:
    """Neighbours that are alike as one."""
    before: Run | None = None
    for batch in in_flight:
        for run in batch.runs:
            if before is not None and before.last + 1 == run.first and run.equals(before):
                before = Run(
                    before.first, run.last, run.state, run.count, run.member, run.lock_ends_ms
                )
                continue
            if before is not None:
                yield before
            before = run
    if before is not None:
        yield before


def _as_json(run: Run, now: Moment) -> dict[str, Any]:
    told: dict[str, Any] = {"first": run.first, "last": run.last, "deliveries": run.count}
    if run.lock_ends_ms:
        until_ms = now.wall_ms + run.lock_ends_ms - now.now_ms
        told |= {"member": run.member, "locked_until_ms": until_ms}
    return told


def _why(run: Run, limits: ShareLimits, now: Moment) -> str:
    offsets = f"offset {run.first}" if run.size == 1 else f"offsets {run.first} to {run.last}"
    is_are = "is" if run.size == 1 else "are"
    times = f"delivery {run.count} of {limits.delivery_count_limit}"
    if run.pending:
        to = {ACKNOWLEDGED: "acknowledged", AVAILABLE: "released"}.get(run.state, "archived")
        by = f" by member {run.member}" if run.member else ""
        return f"{offsets} {is_are} being stored as {to}{by}"
    if run.state == ACQUIRED:
        left = duration(max(0, run.lock_ends_ms - now.now_ms))
        return f"{offsets} {is_are} locked by member {run.member} for {left} more; {times}"
    return f"{offsets} {'waits' if run.size == 1 else 'wait'} to be delivered again, after {times}"


def _of_all(held: Any, share: SharePartition, limits: ShareLimits) -> Iterator[str]:
    if held.is_writing:
        yield (
            "a write to the share coordinator is under way; acknowledgements that wait for the "
            f"next one: {len(held.waiting)}"
        )
    if not share.can_acquire(limits):
        yield (
            f"nothing more is given out: {share.window} offsets are in flight "
            f"(group.share.partition.max.record.locks={limits.max_record_locks}), and none of "
            "them was given back"
        )
        return
    log = held.partition.log
    at = share.next_fetch_offset
    if log is not None and at >= log.high_watermark:
        yield f"there are no records to give out: the high watermark is {log.high_watermark}"
