"""Where a follower cuts its log, and where it goes on (RL 6.3, 6.5): tables."""

from __future__ import annotations

import pytest

from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
    offset_reset_for,
    truncation_for,
)
from twisted_broker.wire.errors import ErrorCode

NONE = ErrorCode.NONE


class Own:
    """A log that is nothing but its epochs and its end."""

    def __init__(self, entries, end: int) -> None:
        self.epochs = LeaderEpochFileCache(list(entries))
        self.log_end_offset = end

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)


@pytest.mark.parametrize(
    ("leader", "fetch_offset", "own", "expected"),
    [
        (EpochEnd(NONE, 3, 8), 0, Own([(3, 0)], 12), OffsetTruncationState(8, True)),
        (EpochEnd(NONE, 3, 15), 0, Own([(3, 0)], 12), OffsetTruncationState(12, True)),
        (EpochEnd(NONE, 2, 9), 0, Own([(2, 0), (3, 6)], 12), OffsetTruncationState(6, True)),
        (EpochEnd(NONE, 2, 4), 0, Own([(2, 0), (3, 6)], 12), OffsetTruncationState(4, True)),
        (EpochEnd(NONE, 2, 9), 0, Own([(1, 0), (3, 6)], 12), OffsetTruncationState(6, False)),
        (EpochEnd(NONE, 2, 9), 0, Own([], 12), OffsetTruncationState(9, True)),
        (EpochEnd(NONE, 5, 9), 0, Own([(3, 0)], 12), OffsetTruncationState(9, True)),
        (EpochEnd(NONE, -1, -1), 7, Own([(3, 0)], 12), OffsetTruncationState(7, True)),
        (EpochEnd(NONE, -1, -1), 20, Own([(3, 0)], 12), OffsetTruncationState(12, True)),
        (EpochEnd(NONE, -1, 9), 0, Own([(3, 0)], 12), OffsetTruncationState(9, True)),
    ],
    ids=[
        "leader ends first",
        "own end first",
        "own end of the epoch first",
        "leader's end of an older epoch",
        "leader's epoch unknown here",
        "no epochs here",
        "newer than all here",
        "undefined end: the high watermark",
        "never above the own end",
        "epoch undefined",
    ],
)
def test_where_to_truncate(
    leader: EpochEnd, fetch_offset: int, own: Own, expected: OffsetTruncationState
) -> None:
    """RL 6.3: min(leader's end of the epoch, own end of it); an epoch known to one side only is
    stepped under.
    """
    assert truncation_for(leader, fetch_offset, own) == expected


@pytest.mark.parametrize(
    ("own_end", "leader_end", "leader_start", "expected"),
    [
        (10, 7, None, OffsetReset(7, True, False, 0)),
        (10, 30, 12, OffsetReset(12, False, True, 18)),
        (10, 30, 10, OffsetReset(10, False, False, 20)),
        (10, 30, 2, OffsetReset(10, False, False, 20)),
        (10, 10, 0, OffsetReset(10, False, False, 0)),
        (10, 12, 15, OffsetReset(15, False, True, 0)),
    ],
    ids=[
        "the leader ends below us",
        "the leader starts beyond us",
        "it starts where we end",
        "it starts below",
        "level",
        "its start moved beyond the end that it answered before",
    ],
)
def test_where_to_go_on_when_out_of_range(own_end, leader_end, leader_start, expected) -> None:
    """RL 6.5: to the leader's end when that is lower; else its start if beyond ours, else our
    own end.
    """
    assert offset_reset_for(own_end, leader_end, leader_start) == expected
