"""The watermarks by themselves, over segments and producers without a log around them."""

from __future__ import annotations

import pytest

from tests.log.batches import config
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.watermarks import Watermarks

DIRECTORY = "/data/t-0"


class Parts:
    """Offsets 10 to 19, one byte each, in one segment."""

    def __init__(self) -> None:
        files = MemoryFileSystem()
        files.make_directories(DIRECTORY)
        self.segments = LogSegments(OpenFiles(files), DIRECTORY, config())
        self.segments.create(10, 0)
        self.producers = ProducerStateManager(files, DIRECTORY, 1000)
        self.looked_up: list[int] = []
        self.watermarks = Watermarks(self.segments, self.producers, self.find_place)
        self.watermarks.log_start_offset = 10
        self.end_at(20)

    def end_at(self, offset: int) -> None:
        self.segments.log_end_offset, self.segments.active.size = offset, offset - 10

    def find_place(self, offset: int) -> LogOffsetMetadata:
        self.looked_up.append(offset)
        return LogOffsetMetadata(offset, 10, offset - 10)

    def begin(self, producer: int, offset: int) -> None:
        self.producers.add_data(producer, 0, 0, offset, 0, 0, True)
        self.watermarks.update_first_unstable()

    def commit(self, producer: int, offset: int) -> None:
        self.producers.add_marker(producer, 0, 0, offset, 0, False)
        self.watermarks.update_first_unstable()


@pytest.mark.parametrize(("wanted", "expected"), [(5, 10), (10, 10), (15, 15), (20, 20), (99, 20)])
def test_the_high_watermark_stays_within_the_log(wanted: int, expected: int) -> None:
    """RL 2.2: never below the log start, never above the log end."""
    watermarks = Parts().watermarks
    watermarks.set_high_watermark(wanted)
    assert watermarks.high_watermark == watermarks.high_watermark_metadata.offset == expected
    assert watermarks.last_stable_offset == expected


def test_a_place_is_looked_up_once_and_only_where_it_is_not_known() -> None:
    """RL 2.2: followers of an idle log ask for the place again and again."""
    parts = Parts()
    parts.watermarks.set_high_watermark(15)
    assert [parts.watermarks.high_watermark_metadata.position for _ in range(3)] == [5, 5, 5]
    assert parts.looked_up == [15]
    known = LogOffsetMetadata(16, 10, 6)
    parts.watermarks.set_high_watermark(known)
    assert parts.watermarks.high_watermark_metadata is known
    parts.watermarks.set_high_watermark(20)
    assert parts.watermarks.high_watermark_metadata is parts.segments.log_end
    assert parts.looked_up == [15]


def test_an_open_transaction_holds_the_last_stable_offset() -> None:
    """RL 3.3: until its marker is below the high watermark; another one later takes over."""
    parts = Parts()
    watermarks = parts.watermarks
    parts.begin(1, 12)
    parts.begin(2, 14)
    watermarks.set_high_watermark(13)
    assert watermarks.last_stable_offset == 12 and watermarks.last_stable_metadata.position == 2
    parts.commit(1, 16)
    assert watermarks.last_stable_offset == 12
    watermarks.set_high_watermark(16)
    assert watermarks.last_stable_offset == 12
    watermarks.set_high_watermark(17)
    assert watermarks.last_stable_offset == 14 and watermarks.last_stable_metadata.offset == 14
    parts.commit(2, 17)
    watermarks.set_high_watermark(18)
    assert watermarks.last_stable_offset == 18
    assert watermarks.last_stable_metadata is watermarks.high_watermark_metadata


def test_a_transaction_above_the_high_watermark_holds_nothing_back() -> None:
    """RL 3.3: the last stable offset is never above the high watermark."""
    parts = Parts()
    parts.watermarks.set_high_watermark(12)
    parts.begin(1, 15)
    assert parts.watermarks.last_stable_offset == 12


def test_what_began_below_the_log_start_counts_from_there() -> None:
    """RL 3.7: records before the log start are gone, also those of an open transaction."""
    parts = Parts()
    parts.begin(1, 11)
    parts.watermarks.set_high_watermark(20)
    parts.watermarks.log_start_offset = 13
    parts.watermarks.update_first_unstable()
    assert parts.watermarks.last_stable_offset == 13


def test_after_a_truncation_no_place_is_what_it_was() -> None:
    """RL 3.5: the high watermark falls to the log end, or rises to the log start; places are
    looked up anew.
    """
    parts = Parts()
    watermarks = parts.watermarks
    parts.begin(1, 12)
    watermarks.set_high_watermark(18)
    assert watermarks.last_stable_metadata.offset == 12
    parts.end_at(15)
    watermarks.after_truncation()
    assert watermarks.high_watermark == 15
    assert watermarks.high_watermark_metadata == parts.segments.log_end
    del parts.looked_up[:]
    assert watermarks.last_stable_metadata.offset == 12 and parts.looked_up == [12]
    watermarks.log_start_offset = 30
    parts.end_at(30)
    parts.producers.reset(30)
    watermarks.after_truncation()
    assert watermarks.high_watermark == watermarks.last_stable_offset == 30


def test_while_producers_are_rebuilt_nothing_behind_the_rebuild_is_stable() -> None:
    """RL 3.5: what was not read yet may be of an open transaction."""
    parts = Parts()
    parts.watermarks.set_high_watermark(20)
    parts.producers.map_end_offset = 13
    state = parts.producers.begin_rebuild()
    parts.watermarks.update_first_unstable()
    assert parts.watermarks.last_stable_offset == 13
    state.map_end_offset = 18
    parts.watermarks.update_first_unstable()
    assert parts.watermarks.last_stable_offset == 18
    parts.producers.adopt(state)
    parts.watermarks.update_first_unstable()
    assert parts.watermarks.last_stable_offset == 20
