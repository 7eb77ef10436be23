"""The high watermark as a place and as a snapshot (RL 1.8, 2.1-2.3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replication.fixtures import LOCAL, TP, WALL_MS, PartitionFixture, registration
from twisted_broker.log.log import Log
from twisted_broker.replication.partition.fetch_data import (
    HIGH_WATERMARK,
    FetchParams,
    FetchPartitionRequest,
)
from twisted_broker.wire.records import iterate_batches


def test_watermarks_are_those_before_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 1.8: one snapshot: what moves while the records are read is in the next answer, mark
    and records alike.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append()
    fixture.append()
    fixture.log.set_high_watermark(1)
    real = Log.read

    def moving(log: Log, *arguments: Any) -> Any:
        log.set_high_watermark(2)
        return real(log, *arguments)

    monkeypatch.setattr(Log, "read", moving)
    params = FetchParams(-1, -1, 0, 1, 1 << 20, HIGH_WATERMARK)
    result = fixture.partition.read(
        FetchPartitionRequest(TP, None, 0, 1 << 20), params, 1 << 20, True, fixture.now_ms, True
    )
    assert (result.high_watermark, result.last_stable_offset) == (1, 1)
    assert [batch.last_offset for batch in iterate_batches(result.slice.read())] == [0]
    result.release()


def test_at_the_same_offset_it_moves_to_the_newer_segment() -> None:
    """RL 2.3: only forward, or to the same offset on a newer segment; never back to the older
    one.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append(3)
    fixture.follower_fetches(2, 3)
    before = fixture.log.watermarks.high_watermark_metadata
    assert (before.offset, fixture.partition.maybe_increment_leader_hw(fixture.now_ms)) == (
        3,
        False,
    )
    fixture.log.roll(WALL_MS)
    fixture.follower_fetches(2, 3)
    assert fixture.partition.maybe_increment_leader_hw(fixture.now_ms)
    after = fixture.log.watermarks.high_watermark_metadata
    assert after.offset == 3 and before.on_older_segment(after)
    assert not fixture.partition.maybe_increment_leader_hw(fixture.now_ms)


def test_a_follower_keeps_a_bare_offset_and_a_leader_looks_it_up() -> None:
    """RL 2.2: what a follower was told is an offset; as a leader it knows segment and position,
    also of a mark in an older segment.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append(2)
    fixture.append(2)
    fixture.log.roll(WALL_MS)
    fixture.append(2)
    fixture.partition.make_follower(registration(2, (1, 2), (2,), 6, 11), fixture.log)
    fixture.partition.follow_high_watermark(2)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2), (1, 2), 7, 12), fixture.log, fixture.now_ms
    )
    found = fixture.log.watermarks.high_watermark_metadata
    first = next(iter(fixture.log.segments))
    assert (found.offset, found.known, found.segment_base_offset, found.position) == (
        2,
        True,
        0,
        first.size // 2,
    )


def test_state_that_a_role_brings() -> None:
    """RL 2.1, 2.2: leader, epochs, assigned, adding and removing replicas, partition-state version,
    remote states of all others.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    partition = fixture.partition
    moving = registration(LOCAL, (1, 3, 2), (1, 2), 5, 12)._replace(adding=(3,), removing=(2,))
    fixture.append(2)
    assert not partition.make_leader(moving, fixture.log, fixture.now_ms)
    assert (
        partition.leader_id,
        partition.leader_epoch,
        partition.leader_epoch_start_offset,
        partition.partition_epoch,
    ) == (1, 5, 0, 12)
    assert (partition.replicas, partition.adding, partition.removing) == ((1, 3, 2), (3,), (2,))
    assert partition.isr_state.isr == frozenset({1, 2})
    assert sorted(partition.remote_replicas) == [2, 3]
    partition.make_follower(registration(3, (1, 3), (3,), 6, 13), fixture.log)
    assert (
        partition.leader_id,
        partition.leader_epoch,
        partition.leader_epoch_start_offset,
        partition.partition_epoch,
    ) == (3, 6, -1, 13)
    assert (partition.replicas, partition.adding, partition.removing, partition.isr_state.isr) == (
        (1, 3),
        (),
        (),
        frozenset(),
    )
