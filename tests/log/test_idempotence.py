"""Idempotent producers: sequences, epochs, duplicates, snapshots, expiry (RL 3.2; RELIABILITY
3.2 ProducerStateManagerTest).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, batch, config, marker, open_log, slice_bytes, values
from twisted_broker.log import producer_batch_recovery
from twisted_broker.log.append_info import AppendOrigin, LogAppendInfo
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.index import OffsetIndex
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchHeader, build_empty_batch, set_offsets_and_epoch

MAX = 2**31 - 1


def new_log(**settings_: object) -> Log:
    files = MemoryFileSystem()
    files.make_directories("/data")
    return open_log(files, settings=config(**settings_))


def send(
    log: Log, sequence: int, count: int = 1, epoch: int = 0, producer: int = 1, **more: object
) -> LogAppendInfo:
    data = batch(
        *[b"v"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more
    )
    return log.append_as_leader(data, 0, NOW_MS)


def refused(code: ErrorCode, call: Callable[[], object]) -> None:
    with pytest.raises(BrokerError) as caught:
        call()
    assert caught.value.code == code


def test_a_replicated_batch_without_a_sequence_has_none_in_the_state() -> None:
    """RL 3.2: -1 in DescribeProducers and in the snapshot, Kafka's number for none."""
    log = new_log()
    log.append_as_follower(
        batch(b"v", producer_id=1, producer_epoch=0, base_sequence=-1), 0, NOW_MS
    )
    entry = log.producers.producers[1]
    assert entry.last_sequence == -1
    (read,) = decode_snapshot("snapshot", encode_snapshot([entry]))
    assert read.last_sequence == -1


def test_sequences_follow_each_other() -> None:
    """RL 3.2: a gap and a step back are OUT_OF_ORDER_SEQUENCE_NUMBER, and nothing is written."""
    log = new_log()
    send(log, 0, 3)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 4))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 2))
    assert send(log, 3).first_offset == 3 and log.log_end_offset == 4


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """RL 3.2 (Kafka 4): no state, no objection: its records may have been deleted."""
    log = new_log()
    assert send(log, 77).first_offset == 0
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 80))
    assert send(log, 78).first_offset == 1


def test_the_last_five_batches_are_known_again() -> None:
    """RL 3.2: each of the last five batches is answered with its first offset and not written
    again; the sixth is out of order.
    """
    log = new_log()
    sent = [send(log, number * 2, 2) for number in range(7)]
    for number in range(2, 7):
        again = send(log, number * 2, 2)
        assert again.duplicate and (again.first_offset, again.last_offset) == (
            sent[number].first_offset,
            sent[number].last_offset,
        )
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 2, 2))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 12, 1))
    assert log.log_end_offset == 14


def test_sequences_wrap() -> None:
    """RL 3.2: after 2^31-1 comes 0, between batches and inside one; duplicates are known over
    the wrap.
    """
    log = new_log()
    send(log, MAX - 1, 2)
    assert send(log, 0).first_offset == 2
    other = send(log, MAX - 1, 4, producer=2)
    again = send(log, MAX - 1, 4, producer=2)
    assert again.duplicate and again.first_offset == other.first_offset
    assert send(log, 2, producer=2).first_offset == 7


def test_behind_the_last_sequence_there_is_0_only() -> None:
    """Kafka's `testProducerSequenceInvalidWrapAround`."""
    log = new_log()
    send(log, MAX)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 1))
    assert send(log, 0).first_offset == 1


def test_epochs() -> None:
    """RL 3.2: a new epoch begins at 0, an old one is INVALID_PRODUCER_EPOCH; batches of the old
    epoch are forgotten.
    """
    log = new_log()
    send(log, 0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 1, epoch=1))
    send(log, 0, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: send(log, 1, epoch=0))
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: send(log, 0, epoch=0))
    assert send(log, 0, epoch=1).duplicate


def test_a_marker_of_a_new_epoch_resets_the_sequence() -> None:
    """RL 3.2: after an end marker with a higher epoch the old epoch is fenced and the new one
    begins at 0.
    """
    log = new_log()
    fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    log.append_as_leader(batch(b"x", **fields), 0, NOW_MS, guard=NOT_REQUIRED)
    log.append_as_leader(
        marker(1, commit=True, epoch=1), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: send(log, 1, epoch=0))
    assert send(log, 0, epoch=1).first_offset == 2


def test_a_producer_of_which_a_marker_is_left_begins_at_0() -> None:
    """Kafka's `testAppendTxnMarkerWithNoProducerState`: its epoch is known, its batches are not."""
    log = new_log()
    log.append_as_leader(
        marker(1, commit=True, epoch=3), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: send(log, 0, epoch=2))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(log, 17, epoch=3))
    assert send(log, 0, epoch=3).first_offset == 1


def test_a_control_batch_that_was_emptied_ends_nothing() -> None:
    """Kafka's `testAppendEmptyControlBatch`: a cleaner left it for its producer's epoch."""
    log = new_log()
    empty = build_empty_batch(0, 0, 0, 0, NOW_MS, 1, 3, -1, True, True)
    log.append_as_follower(empty, 0, NOW_MS)
    for each in (log, closed_and_opened(log)):
        assert not each.producers.ongoing and each.log_end_offset == 1
        entry = each.producers.producers.get(1)
        assert entry is None or (entry.producer_epoch == 3 and not entry.batches)


def test_coordinators_and_replicas_are_not_checked_for_sequence() -> None:
    """RL 3.2: sequences are checked for clients only; a follower remembers what the leader
    accepted.
    """
    log = new_log()
    send(log, 0)
    log.append_as_leader(
        batch(b"c", producer_id=1, producer_epoch=0, base_sequence=-1),
        0,
        NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )
    data = bytearray(batch(b"f", producer_id=1, producer_epoch=0, base_sequence=55))
    set_offsets_and_epoch(data, 2, 0)
    log.append_as_follower(bytes(data), 0, NOW_MS)
    assert send(log, 55).duplicate and send(log, 56).first_offset == 3


def test_producers_expire() -> None:
    """RL 3.2: a producer silent for `producer.id.expiration.ms` is forgotten; one with an open
    transaction never.
    """
    log = new_log(producer_id_expiration_ms=1000)
    send(log, 0)
    fields = {"producer_id": 2, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    log.append_as_leader(batch(b"x", **fields), 0, NOW_MS, guard=NOT_REQUIRED)
    log.producers.expire([1, 2], NOW_MS + 999)
    assert list(log.producers.producers) == [1, 2]
    log.producers.expire([1, 2], NOW_MS + 1000)
    assert list(log.producers.producers) == [2]
    assert send(log, 40).first_offset == 2


def test_a_producer_that_expired_meanwhile_is_not_loaded() -> None:
    """Kafka's `testRemoveExpiredPidsOnReload`: by its newest record."""
    log = new_log(producer_id_expiration_ms=1000)
    send(log, 0)
    send(log, 0, producer=2, timestamp=NOW_MS + 500)
    log.close()
    for wall_ms, known in ((NOW_MS + 999, [1, 2]), (NOW_MS + 1000, [2]), (NOW_MS + 1500, [])):
        again = open_log(
            log.pool.files, settings=log.config, clean=True, recovery_point=2, wall_ms=wall_ms
        )
        assert list(again.producers.producers) == known


def test_state_survives_a_reload() -> None:
    """RL 3.2, 3.6: after a clean and after an unclean stop the same batches are duplicates and the
    same sequences are next.

    A snapshot holds the last batch only; the four before it are found again in the log, over
    several segments.
    """
    for clean in (True, False):
        log = new_log(segment_bytes=300)
        for number in range(8):
            send(log, number)
        if clean:
            log.close()
        again = open_log(
            log.pool.files, settings=log.config, clean=clean, recovery_point=8 if clean else 0
        )
        for number in range(3, 8):
            assert send(again, number).duplicate and send(again, number).first_offset == number
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda again=again: send(again, 2))  # type: ignore[misc]
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda again=again: send(again, 9))  # type: ignore[misc]
        assert send(again, 8).first_offset == 8


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_whose_batch_holds_the_log_start_is_known(clean: bool) -> None:
    """RL 3.2, 2.8: DeleteRecords may end inside a batch: the rest of it is there, its producer
    may send it again, and its next sequence is the one behind it.
    """
    log = new_log()
    send(log, 0, count=5)
    send(log, 0, producer=2)
    log.set_high_watermark(6)
    log.increment_log_start_offset(2)
    if clean:
        log.close()
    again = open_log(log.pool.files, settings=log.config, clean=clean, log_start_offset=2)
    found = send(again, 0, count=5)
    assert found.duplicate and found.first_offset == 0
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: send(again, 7))
    assert send(again, 5).first_offset == 6


def closed_and_opened(log: Log) -> Log:
    log.close()
    return open_log(
        log.pool.files, settings=log.config, clean=True, recovery_point=log.log_end_offset
    )


def test_what_is_recalled_is_what_memory_held() -> None:
    """RL 3.2: after a clean stop every producer has the batches it had: epochs, markers, many
    producers in turn, batches larger than an index entry's distance, sequences over the wrap.
    """
    log = new_log(index_interval_bytes=200, segment_bytes=20_000)
    for number in range(40):
        for producer in (1, 2, 3):
            send(log, number * 2, 2, producer=producer)
        log.append_as_leader(batch(b"nobody's"), 0, NOW_MS)
        send(log, (MAX - 10 + number) & MAX, producer=4)
    for number in range(3):
        data = batch(bytes(3000), producer_id=5, producer_epoch=0, base_sequence=number)
        log.append_as_leader(data, 0, NOW_MS)
    send(log, 0, epoch=1, producer=2)
    fields = {"producer_id": 6, "producer_epoch": 0, "is_transactional": True}
    for number in range(2):
        log.append_as_leader(
            batch(b"x", base_sequence=number, **fields), 0, NOW_MS, guard=NOT_REQUIRED
        )
        log.append_as_leader(marker(6, commit=True), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert len(log.segments) > 1
    before = {number: list(entry.batches) for number, entry in log.producers.producers.items()}
    again = closed_and_opened(log)
    assert {number: entry.batches for number, entry in again.producers.producers.items()} == before
    assert [len(before[number]) for number in range(1, 7)] == [5, 1, 5, 5, 3, 2]


def test_recalling_costs_a_bounded_number_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.6: whoever wrote long ago costs a start no more than the bound, and one who is known
    whole costs it nothing.
    """
    read: list[int] = []
    real = producer_batch_recovery._headers

    def counted(*arguments: Any) -> list[BatchHeader]:
        found = real(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(producer_batch_recovery, "_headers", counted)
    log = new_log(index_interval_bytes=1000)
    send(log, 0)
    closed_and_opened(log)
    assert read == []
    log = new_log(index_interval_bytes=1000)
    for number in range(2):
        send(log, number)
    for _ in range(3 * producer_batch_recovery.MOST_HEADERS):
        log.append_as_leader(batch(b"v"), 0, NOW_MS)
    again = closed_and_opened(log)
    assert (
        producer_batch_recovery.MOST_HEADERS // 2
        < sum(read)
        <= producer_batch_recovery.MOST_HEADERS + 1
    )
    assert send(again, 1).duplicate


def test_damage_before_the_tail_is_no_reason_not_to_open() -> None:
    """RL 3.6: a damaged batch ends the search; the log opens, the last batch is known."""
    log = new_log()
    for number in range(4):
        send(log, number)
    log.close()
    file = log.pool.files.open(log.segments.active.log.path)
    size = file.size() // 4
    file.write_at(2 * size + 8, (b"\xff" * 9,))
    found = dict.fromkeys([1], ProducerEntry(1, 0))
    found[1].batches.append((3, 3, 0, NOW_MS))
    producer_batch_recovery.recover_producer_batches(reversed(log.segments), found)
    assert [each[0] for each in found[1].batches] == [3]


def test_an_index_entry_beyond_the_segment_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a segment that lost its end: the batches before it are found all the same, in
    their order.
    """
    log = new_log()
    for number in range(4):
        send(log, number)
    size = log.segments.active.size
    quarter = size // 4
    monkeypatch.setattr(
        OffsetIndex, "positions", lambda self: array("I", [quarter, 2 * quarter, size, size + 99])
    )
    found = {1: ProducerEntry(1, 0)}
    found[1].batches.append((3, 3, 0, NOW_MS))
    producer_batch_recovery.recover_producer_batches(reversed(log.segments), found)
    assert [each[0] for each in found[1].batches] == [0, 1, 2, 3]


def test_snapshots_stay_with_their_segments() -> None:
    """RL 3.1: one at each roll and at a clean close; strays between segments go at load, those
    of deleted segments with them.
    """
    log = new_log(segment_bytes=300, retention_bytes=400)
    for number in range(20):
        send(log, number)
    assert log.producers.snapshots == {base for base in log.segments.bases() if base}
    assert log.producers.take_snapshot() == 20 and log.producers.take_snapshot() == -1
    log.set_high_watermark(20)
    log.delete_old_segments(NOW_MS)
    first = log.segments.first.base_offset
    assert first > 0 and min(log.producers.snapshots) >= first
    log.close()
    assert 20 in log.producers.snapshots
    files = log.pool.files
    files.open(f"{log.directory}/{first + 1:020d}.snapshot", create=True).write_at(
        0, (encode_snapshot([]),)
    )
    again = open_log(files, settings=config(segment_bytes=3000), clean=True, recovery_point=20)
    assert 20 in again.producers.snapshots and first + 1 not in again.producers.snapshots
    assert again.producers.producers[1].last_sequence == 19


def test_the_newest_snapshot_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.1: after a clean stop no batch before it is read again, however many older snapshots
    there are.
    """
    read: list[int] = []
    real = LogSegment.headers_from
    monkeypatch.setattr(
        LogSegment,
        "headers_from",
        lambda segment, start: read.append(segment.base_offset) or real(segment, start),
    )
    log = new_log(segment_bytes=300)
    for number in range(20):
        send(log, number)
    again = closed_and_opened(log)
    assert len(again.producers.snapshots) > 3 and read in ([], [again.segments.active.base_offset])
    assert again.producers.last_snapshot_offset == 20


def test_a_followers_snapshot_is_its_leaders() -> None:
    """RL 3.1: the offset in its name is where the log ends, and not past it: what follows there is
    read again, and a gap after it refused as ever.
    """
    leader = new_log()
    send(leader, 0, 3)
    follower = new_log()
    follower.append_as_follower(slice_bytes(leader.read(0, 1 << 20)), 0, NOW_MS)
    for log in (leader, follower):
        log.close()
        assert log.producers.snapshots == {3}
    again = open_log(follower.pool.files, clean=True, recovery_point=3)
    assert send(again, 3).first_offset == 3


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"not a snapshot at all", encode_snapshot([ProducerEntry(1, 0)])[:-1]]
)
def test_a_corrupt_snapshot_is_deleted(content: bytes) -> None:
    """RL 3.6: an empty, cut or foreign snapshot is removed and the state replayed."""
    log = new_log()
    for number in range(3):
        send(log, number)
    log.close()
    path = log.producers.path(3)
    log.pool.files.open(path).truncate(0)
    log.pool.files.open(path).write_at(0, (content,))
    again = open_log(log.pool.files, clean=True, recovery_point=3)
    assert again.producers.producers[1].last_sequence == 2
    assert 3 not in again.producers.snapshots


def test_snapshot_bytes() -> None:
    """Kafka's record formats: the layout of Kafka's producer snapshot, entry by entry; damage of
    any byte is found.
    """
    entry = ProducerEntry(0x0102030405060708, 9, 10, 11)
    entry.batches.append((12, 13, 14, 11))
    entry.current_txn_first_offset = 15
    data = encode_snapshot([entry])
    assert len(data) == 10 + 46 and data[:2] == b"\0\1"
    fields = (
        "0102030405060708",
        "0009",
        "0000000c",
        "000000000000000d",
        "0000000e",
        "000000000000000b",
        "0000000a",
        "000000000000000f",
    )
    assert data[10:].hex() == "".join(fields)
    (read,) = decode_snapshot("x", data)
    assert (
        read.producer_id,
        read.producer_epoch,
        read.coordinator_epoch,
        read.batches,
        read.current_txn_first_offset,
    ) == (
        entry.producer_id,
        9,
        10,
        entry.batches,
        15,
    )
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 4
        with pytest.raises(CheckpointError):
            decode_snapshot("x", bytes(broken))


MOVES = st.sampled_from(["next", "repeat", "gap", "reload", "clean reload", "truncate", "bump"])


@settings(max_examples=80, deadline=None)
@given(moves=st.lists(st.tuples(MOVES, st.integers(1, 5), st.integers(1, 3)), max_size=40))
def test_no_loss_no_duplicate_whatever_happens(moves: list[tuple[str, int, int]]) -> None:
    """RL 9.4, 3.2: under retries, gaps, reloads and truncations the log holds each accepted
    value once, in the producer's order.
    """
    log = new_log(segment_bytes=500)
    files = log.pool.files
    model: dict[int, list[tuple[int, int, int, bytes]]] = {}
    epochs = {number: 0 for number in range(1, 4)}
    counter = 0
    for move, count, producer in moves:
        mine = model.setdefault(producer, [])
        current = [row for row in mine if row[0] == epochs[producer]]
        following = current[-1][2] + 1 if current else 0
        if move == "bump":
            epochs[producer] += 1
        elif move == "reload":
            log = open_log(files, settings=log.config)
        elif move == "clean reload":
            log = closed_and_opened(log)
        elif move == "truncate":
            target = max(0, log.log_end_offset - count)
            log.truncate_to(target, NOW_MS)
            for rows in model.values():
                rows[:] = [row for row in rows if row[1] < target]
            epochs = {
                number: max((row[0] for row in model.get(number, [])), default=epochs[number])
                for number in epochs
            }
        elif move == "repeat" and current:
            epoch, offset, sequence, content = current[-min(count, len(current))]
            again = batch(
                content, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
            )
            assert log.append_as_leader(again, 0, NOW_MS).first_offset == offset
        elif move == "gap" and current:
            data = batch(
                b"gap",
                producer_id=producer,
                producer_epoch=epochs[producer],
                base_sequence=following + count,
            )
            refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                partial(log.append_as_leader, data, 0, NOW_MS),
            )
        elif move == "next":
            counter += 1
            content = b"%d" % counter
            data = batch(
                content,
                producer_id=producer,
                producer_epoch=epochs[producer],
                base_sequence=following,
            )
            info = log.append_as_leader(data, 0, NOW_MS)
            assert not info.duplicate
            mine.append((epochs[producer], info.first_offset, following, content))
    everything = sorted((row[1], row[3]) for rows in model.values() for row in rows)
    assert values(log) == [content for _, content in everything]
