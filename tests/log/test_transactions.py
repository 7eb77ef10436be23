"""Transactions on the leader's log: guards of a verification, end markers, and what follows for the
last stable offset and the index of aborted transactions (KIP-98, KIP-890, KIP-1228; Kafka's
UnifiedLogTest, ProducerStateManagerTest, VerificationGuardTest).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import perf_counter

import pytest

from tests.log.batches import DIRECTORY, NOW_MS, TP, batch, open_log
from tests.log.test_idempotence import closed_and_opened, new_log, refused
from twisted_broker.installed import how_it_runs
from twisted_broker.log import verification
from twisted_broker.log.append_info import AppendOrigin, EndMarker
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.reading import aborted_transactions
from twisted_broker.log.verification import NOT_REQUIRED, Guard
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.records import NO_TIMESTAMP

P = 7
assert DIRECTORY.endswith(str(TP))


def records(sequence: int = 0, epoch: int = 0, count: int = 1, producer: int = P) -> bytes:
    return batch(
        *[b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def begin(
    log: Log, sequence: int = 0, epoch: int = 0, *, bumps: bool = False, producer: int = P
) -> Guard:
    return log.begin_verification(producer, epoch, sequence, bumps, NOW_MS)


def write(
    log: Log, sequence: int = 0, epoch: int = 0, guard: Guard = None, **named: int
) -> Callable[[], int]:
    return lambda: (
        log.append_as_leader(records(sequence, epoch, **named), 0, NOW_MS, guard=guard).first_offset
    )


def end(
    log: Log, epoch: int = 0, *, commit: bool = True, coordinator: int = 0, version: int = 0
) -> Callable[[], int]:
    return lambda: (
        log.append_end_marker(
            EndMarker(P, epoch, coordinator, commit, version), 0, NOW_MS
        ).first_offset
    )


# -- guards


def test_the_first_write_needs_the_guard_of_its_verification() -> None:
    """KIP-890: without it INVALID_TXN_STATE; later ones go on with what is open."""
    log = new_log()
    refused(ErrorCode.INVALID_TXN_STATE, write(log))
    guard = begin(log)
    assert guard is not None and begin(log) is guard
    refused(ErrorCode.INVALID_TXN_STATE, write(log))
    assert write(log, guard=guard)() == 0
    assert begin(log, 1) is None and not log.producers.verifications
    assert write(log, 1)() == 1
    assert log.log_end_offset == 2


def test_a_late_answer_lets_nothing_in_behind_the_marker() -> None:
    """Verified, then aborted before it was written: the guard is another transaction's by now."""
    log = new_log()
    late = begin(log)
    end(log, 0, commit=False)()
    refused(ErrorCode.INVALID_TXN_STATE, write(log, guard=late))
    fresh = begin(log)
    assert fresh is not late
    refused(ErrorCode.INVALID_TXN_STATE, write(log, guard=late))
    assert write(log, guard=fresh)() == 1


def test_a_guard_is_one_logs_and_one_producers() -> None:
    """Of another log, of another producer: neither opens a transaction."""
    log, other = new_log(), new_log()
    begin(log)
    for guard in (begin(other), begin(log, producer=8)):
        refused(ErrorCode.INVALID_TXN_STATE, write(log, guard=guard))


def test_the_next_epoch_is_verified_again() -> None:
    """Version 2: beside an open transaction of the epoch before, the new one is not open."""
    log = new_log()
    write(log, guard=begin(log, bumps=True))()
    guard = begin(log, 0, 1, bumps=True)
    assert guard is not None
    refused(ErrorCode.INVALID_TXN_STATE, write(log, 0, 1))
    end(log, 1, version=2)()
    refused(ErrorCode.INVALID_TXN_STATE, write(log, 0, 1))
    assert write(log, 0, 1, guard=guard)() == 2


def test_the_marker_of_the_transaction_before_leaves_the_verification_of_the_next() -> None:
    """Version 2: it has the epoch of the next one, which began before the marker was written."""
    log = new_log()
    write(log, guard=begin(log, bumps=True))()
    guard = begin(log, 0, 1, bumps=True)
    end(log, 1, version=2)()
    assert guard is not None and not guard.is_gone and begin(log, 0, 1, bumps=True) is guard
    assert write(log, 0, 1, guard=guard)() == 2


def test_a_guard_that_outlived_a_marker_lets_nothing_in_behind_its_own() -> None:
    """Neither behind the next marker, nor behind a second one of the same epoch, which is that of
    a producer that ended its transaction without a new epoch.
    """
    for epoch, code in ((2, ErrorCode.INVALID_PRODUCER_EPOCH), (1, ErrorCode.INVALID_TXN_STATE)):
        log = new_log()
        write(log, guard=begin(log, bumps=True))()
        guard = begin(log, 0, 1, bumps=True)
        end(log, 1, version=2)()
        end(log, epoch, commit=False)()
        assert guard is not None and guard.is_gone and not log.producers.verifications
        refused(code, write(log, 0, 1, guard=guard))


def test_a_late_batch_of_what_was_ended_is_not_let_in_by_the_next_ones_guard() -> None:
    """Both epochs wait under one entry; the marker leaves it, the epoch decides."""
    log = new_log()
    write(log, guard=begin(log, bumps=True))()
    guard = begin(log, 0, 1, bumps=True)
    end(log, 1, version=2)()
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, write(log, 1, 0, guard=guard))


@pytest.mark.parametrize(
    ("first", "then", "marker"), [(True, False, 1), (False, False, 1), (False, True, 0)]
)
def test_only_a_transaction_with_an_epoch_of_its_own_outlives_a_marker(
    first: bool, then: bool, marker: int
) -> None:
    """Not where a marker's epoch may be that of what it ends: clients below version 2, one that
    says both of an epoch, a marker of the open transaction's own epoch.
    """
    log = new_log()
    write(log, guard=begin(log))()
    begin(log, 0, 1, bumps=first)
    guard = begin(log, 0, 1, bumps=then)
    end(log, marker)()
    assert guard is not None and guard.is_gone
    refused(ErrorCode.INVALID_TXN_STATE, write(log, 0, 1, guard=guard))


def test_a_newer_epoch_says_anew_whether_it_outlives_a_marker() -> None:
    """The entry of an older client's batch, which was never written."""
    log = new_log()
    write(log, guard=begin(log))()
    begin(log, 0, 1)
    guard = begin(log, 0, 2, bumps=True)
    end(log, 2, version=2)()
    assert write(log, 0, 2, guard=guard)() == 2


def test_with_verification_off_no_guard_is_needed() -> None:
    """transaction.partition.verification.enable=false."""
    log = new_log()
    assert write(log, guard=NOT_REQUIRED)() == 0


def test_a_guard_goes_with_a_transactional_batch_and_stays_beside_an_idempotent_one() -> None:
    """Kafka's `testDisabledVerificationClearsVerificationGuard`: one that needed none took its
    place.
    """
    log = new_log()
    guard = begin(log, 1)
    idempotent = batch(b"v", producer_id=P, producer_epoch=0, base_sequence=0)
    log.append_as_leader(idempotent, 0, NOW_MS)
    assert begin(log, 1) is guard
    write(log, 1, guard=NOT_REQUIRED)()
    assert not log.producers.verifications


def test_a_coordinators_append_is_held_to_its_guard_as_a_clients_is() -> None:
    """Kafka's `testTransactionIsOngoingAndVerificationGuard`: without an open transaction neither
    no guard nor one of before the marker lets it in; beside one it needs none.
    """
    log = new_log()

    def offsets(guard: Guard) -> Callable[[], object]:
        data = batch(b"o", producer_id=P, producer_epoch=0, is_transactional=True)
        return lambda: log.append_as_leader(
            data, 0, NOW_MS, origin=AppendOrigin.COORDINATOR, guard=guard
        )

    refused(ErrorCode.INVALID_TXN_STATE, offsets(None))
    late = begin(log, -1)
    end(log)()
    refused(ErrorCode.INVALID_TXN_STATE, offsets(late))
    refused(ErrorCode.INVALID_TXN_STATE, offsets(None))
    offsets(begin(log, -1))()
    assert log.last_stable_offset == log.high_watermark == 0 and list(log.producers.ongoing) == [1]
    offsets(None)()


def test_the_lowest_sequence_that_waits_goes_first() -> None:
    """A higher one, verified earlier, would be followed by an out of order one for ever."""
    log = new_log()
    guard = begin(log, 5)
    assert begin(log, 0) is guard
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write(log, 5, guard=guard))
    assert write(log, 0, guard=guard, count=5)() == 0
    assert write(log, 5, guard=guard)() == 5


def test_a_new_epoch_forgets_the_lowest_sequence_and_an_old_one_does_not_count() -> None:
    log = new_log()
    guard = begin(log, 3, 1)
    begin(log, 0, 0)
    assert guard is not None and (guard.producer_epoch, guard.lowest_sequence) == (1, 3)
    begin(log, 4, 2)
    assert (guard.producer_epoch, guard.lowest_sequence) == (2, 4)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write(log, 5, 2, guard=guard))
    assert write(log, 4, 2, guard=guard)() == 0


def test_under_version_2_a_producer_without_state_begins_at_0() -> None:
    """Its records may not be assumed to be deleted: each transaction has an epoch of its own."""
    log = new_log()
    guard = begin(log, 3, bumps=True)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write(log, 3, guard=guard))
    write(log, 0, guard=guard)()
    end(log, 1, version=2)()
    guard = begin(log, 2, 1, bumps=True)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write(log, 2, 1, guard=guard))
    begin(log, 0, 1, bumps=True)
    write(log, 0, 1, guard=guard)()


def test_an_old_epoch_is_refused_by_its_epoch() -> None:
    """INVALID_PRODUCER_EPOCH, which a producer understands, rather than its sequence."""
    log = new_log()
    guard = begin(log, 5, 2, bumps=True)
    end(log, 3)()
    for brought in (guard, None, NOT_REQUIRED):
        refused(ErrorCode.INVALID_PRODUCER_EPOCH, write(log, 5, 2, guard=brought))
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: begin(log, 5, 2))
    assert not log.producers.verifications


def test_an_older_epoch_that_is_refused_keeps_the_verification_of_the_newer_one() -> None:
    """Both wait for the coordinator: a former instance of the program, and the one that fenced
    it.
    """
    log = new_log()
    old = begin(log, 5, 0)
    guard = begin(log, 0, 1)
    assert old is not None and guard is old
    log.producers.end_verification(P, old, 0)
    assert write(log, 0, 1, guard=guard)() == 0


def test_what_is_never_written_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, by a refusal for good, by a truncation, and the oldest of too many."""
    log = new_log()
    write(log, guard=begin(log))()
    guard = begin(log, producer=8)
    other = begin(log, producer=9)
    assert guard is not None and other is not None
    log.producers.end_verification(8, other, 0)
    assert list(log.producers.verifications) == [8, 9]
    log.producers.end_verification(8, guard, 0)
    assert list(log.producers.verifications) == [9]
    log.producers.expire_verifications(NOW_MS + log.config.producer_id_expiration_ms - 1)
    assert list(log.producers.verifications) == [9]
    log.producers.expire_verifications(NOW_MS + log.config.producer_id_expiration_ms)
    assert not log.producers.verifications
    monkeypatch.setattr("twisted_broker.log.producer_state.MOST", 2)
    made = [begin(log, producer=producer) for producer in (10, 11, 12)]
    assert [each is not None and each.is_gone for each in made] == [True, False, False]
    assert list(log.producers.verifications) == [11, 12] and verification.MOST == 10_000
    log.truncate_to(0)
    assert not log.producers.verifications


# -- end markers


def test_a_marker_decides_and_the_last_stable_offset_follows_the_high_watermark() -> None:
    """It passes the transaction when its marker is committed, not when it is written."""
    log = new_log()
    write(log, guard=begin(log), count=3)()
    log.set_high_watermark(3)
    assert log.last_stable_offset == 0
    assert end(log, coordinator=4)() == 3
    assert log.last_stable_offset == 0 and list(log.producers.unreplicated) == [(0, 3)]
    log.set_high_watermark(4)
    assert log.last_stable_offset == 4
    entry = log.producers.producers[P]
    assert (entry.coordinator_epoch, entry.current_txn_first_offset) == (4, -1)


def test_an_abort_is_in_the_index_with_the_stable_offset_of_then() -> None:
    """An older one that is open holds the last stable offset beyond the marker."""
    log = new_log()
    write(log, guard=begin(log, producer=8), producer=8)()
    write(log, guard=begin(log))()
    end(log, commit=False)()
    (segment,) = log.segments
    assert [tuple(each) for each in segment.txn_index.entries()] == [(P, 1, 2, 0)]
    log.set_high_watermark(3)
    assert log.last_stable_offset == 0


def test_a_marker_without_a_transaction_changes_no_offset() -> None:
    """The partition was added and never written to, or the marker is sent again."""
    log = new_log()
    end(log, commit=False)()
    end(log, commit=False)()
    log.set_high_watermark(2)
    (segment,) = log.segments
    assert log.last_stable_offset == 2 and not segment.txn_index.entries()


@pytest.mark.parametrize("version", [0, 2])
def test_zombies_are_refused_and_write_nothing(version: int) -> None:
    """An older producer epoch, and an older coordinator."""
    log = new_log()
    write(log, 0, 5, guard=begin(log, 0, 5))()
    end(log, 6, coordinator=9, version=version)()
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, end(log, 5, coordinator=9, version=version))
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, end(log, 6, coordinator=8, version=version))
    assert log.log_end_offset == 2


def test_version_2_takes_no_marker_of_the_open_epoch() -> None:
    """KIP-1228: it is late, of the transaction before; a repeated one ends nothing and is taken."""
    log = new_log()
    write(log, 0, 5, guard=begin(log, 0, 5, bumps=True))()
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, end(log, 5, version=2))
    assert log.log_end_offset == 1
    assert (end(log, 6, version=2)(), end(log, 6, version=2)()) == (1, 2)
    last = new_log()
    write(last, 0, 32767, guard=begin(last, 0, 32767, bumps=True))()
    assert end(last, 32767, version=2)() == 1 and last.last_stable_offset == 0
    legacy = new_log()
    write(legacy, 0, 5, guard=begin(legacy, 0, 5))()
    assert end(legacy, 5)() == 1


def test_markers_go_into_any_topic() -> None:
    """Compacted ones refuse records without keys, topics with a small limit large ones, and
    LogAppendTime rewrites: none of it is about a marker.
    """
    for setting in (
        {"cleanup_policy": frozenset({"compact"})},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "gzip"},
        {"max_message_bytes": 1},
    ):
        log = new_log(**setting)
        assert end(log)() == 0


def test_nothing_is_verified_or_ended_while_producers_are_rebuilt() -> None:
    """LEADER_NOT_AVAILABLE: both come again."""
    log = new_log()
    log.producers.begin_rebuild()
    refused(ErrorCode.LEADER_NOT_AVAILABLE, lambda: begin(log))
    refused(ErrorCode.LEADER_NOT_AVAILABLE, end(log))
    assert log.log_end_offset == 0


def test_an_open_transaction_goes_on_after_a_restart() -> None:
    """Snapshot and recovery: without a new verification, and its marker ends it."""
    log = new_log()
    write(log, guard=begin(log))()
    log = closed_and_opened(log)
    assert begin(log, 1) is None
    write(log, 1)()
    end(log, commit=False)()
    log.set_high_watermark(3)
    assert log.last_stable_offset == 3
    (aborted,) = log.segments.active.txn_index.entries()
    assert (aborted.first_offset, aborted.last_offset) == (0, 2)


def test_an_abort_whose_marker_the_file_lost_is_none() -> None:
    """RL 3.6: damage below a clean stop took the end of the segment: the transaction is open
    again, and no reader is told that what stands at the marker's offset now was aborted.
    """
    log = new_log()
    write(log, guard=begin(log))()
    size = log.segments.active.size
    end(log, commit=False)()
    path, files = log.segments.active.log.path, log.pool.files
    log.close()
    files.open(path).truncate(size)
    again = open_log(files, clean=True)
    assert list(again.producers.ongoing.items()) == [(0, P)]
    assert not again.segments.active.txn_index.entries()
    end(again)()
    again.set_high_watermark(2)
    assert aborted_transactions(again.segments, 0, 2) == []


def test_a_truncated_marker_opens_its_transaction_again() -> None:
    """A new leader had not seen it: the coordinator sends it again, to whoever leads."""
    log = new_log()
    write(log, guard=begin(log))()
    end(log, commit=False)()
    log.truncate_to(1)
    assert list(log.producers.ongoing.items()) == [(0, P)]
    assert not log.segments.active.txn_index.entries()
    assert begin(log, 1) is None
    end(log)()
    log.set_high_watermark(2)
    assert log.last_stable_offset == 2


def test_a_transaction_is_late_when_no_coordinator_leaves_it_open_so_long() -> None:
    """By its newest record, transaction.max.timeout.ms and five minutes (Kafka's
    testHasLateTransaction); one that has ended is not.
    """
    log = new_log()
    write(log, guard=begin(log))()
    late = NOW_MS + 900_000 + 300_000
    assert not log.producers.has_late_transaction(late, 900_000)
    assert log.producers.has_late_transaction(late + 1, 900_000)
    end(log)()
    assert not log.producers.has_late_transaction(late + 1, 900_000)


def test_the_oldest_undecided_one_is_known_whatever_the_order_of_the_ends() -> None:
    """Beside a plain model: any interleaving of transactions, any moves of the high watermark."""
    for seed in range(40):
        random = Random(seed)
        state = ProducerStateManager(MemoryFileSystem(), DIRECTORY, 1000)
        opened: dict[int, int] = {}
        ended: dict[int, int] = {}
        committed = 0
        for offset in range(60):
            producer = random.randrange(6)
            if producer in opened:
                state.add_marker(producer, 0, 0, offset, NOW_MS, False)
                ended[opened.pop(producer)] = offset
            else:
                state.add_data(producer, 0, 0, offset, 0, NOW_MS, True)
                opened[producer] = offset
            if not random.randrange(4):
                committed = random.randrange(committed, offset + 2)
                state.remove_replicated(committed)
                ended = {first: last for first, last in ended.items() if last >= committed}
            expected = min([*opened.values(), *ended], default=-1)
            assert state.first_unstable_offset() == expected, (seed, offset)
            assert dict(state.unreplicated) == ended


class Counted(int):
    """An offset that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__lt__(self, other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__gt__(self, other)


def test_markers_that_wait_for_a_follower_cost_each_append_nothing() -> None:
    """Thousands of transactions while one replica stays behind: no append, and no move of the high
    watermark, looks at all of them.
    """
    state = ProducerStateManager(MemoryFileSystem(), DIRECTORY, 1000)
    Counted.compared = 0
    for number in range(3000):
        state.add_data(number, 0, 0, Counted(2 * number), 0, NOW_MS, True)
        state.add_marker(number, 0, 0, Counted(2 * number + 1), NOW_MS, False)
        state.first_unstable_offset()
    state.remove_replicated(4)
    assert len(state.unreplicated) == len(state.oldest_unreplicated) == 2998
    assert Counted.compared < 5 * 3000
    # Compiled code compares numbers itself.
    assert Counted.compared >= 3000 or how_it_runs().startswith("compiled")


def test_the_oldest_open_one_is_found_at_once_behind_many_that_ended() -> None:
    """Each append reads it."""
    producers = ProducerStateManager(MemoryFileSystem(), "/data/t-0", 1)
    count, ended = 30_000, 21_000

    def look() -> float:
        began = perf_counter()
        for _ in range(200):
            producers.first_unstable_offset()
        return perf_counter() - began

    for number in range(count):
        producers.add_data(number, 0, 0, number, 0, NOW_MS, True)
    before = min(look() for _ in range(3))
    for number in range(ended):
        producers.add_marker(number, 0, 0, count + number, NOW_MS, False)
    producers.remove_replicated(2 * count)
    assert producers.first_unstable_offset() == ended
    assert min(look() for _ in range(3)) < 30 * before


def test_a_late_transaction_stays_late_over_a_restart_and_goes_with_its_records() -> None:
    """Kafka's `testHasLateTransactionInitializedAfterReload`,
    `testHasLateTransactionUpdatedAfterPartialTruncation`, `..AfterFullTruncation`.
    """
    late, longest = NOW_MS + 1_200_001, 900_000
    for end_of_log in (1, 0):
        log = new_log()
        log.append_as_leader(batch(b"v"), 0, NOW_MS)
        write(log, guard=begin(log))()
        log = closed_and_opened(log)
        assert log.producers.has_late_transaction(late, longest)
        if end_of_log:
            log.truncate_to(end_of_log, NOW_MS)
        else:
            log.truncate_fully_and_start_at(0)
        assert not log.producers.has_late_transaction(late, longest)


def test_a_transaction_without_timestamps_is_never_late() -> None:
    """Kafka's `hasLateTransaction`: nobody can tell how old it is."""
    log = new_log()
    for producer, timestamp in ((8, NO_TIMESTAMP), (9, 0)):
        data = batch(
            timestamp=timestamp,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        log.append_as_leader(data, 0, NOW_MS, guard=NOT_REQUIRED)
    assert not log.producers.has_late_transaction(NOW_MS, 900_000)
    write(log, guard=NOT_REQUIRED)()
    assert log.producers.has_late_transaction(NOW_MS + 1_200_001, 900_000)
