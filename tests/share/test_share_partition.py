"""A share partition: Kafka's cases (GN 3.50-3.73, 6.12)."""

import pytest

from tests.share.share_run import ShareRun, written
from twisted_broker.coordinator.share_state.values import ReadState, StateBatch
from twisted_broker.share.share_partition import SharePartition
from twisted_broker.wire.errors import BrokerError, ErrorCode


# what is persisted, and what is begun with
def test_without_stored_batches_it_begins_at_the_start_offset():
    assert ShareRun(5).offsets == (5, 5, 5, 0)


def test_stored_batches_are_delivered_again_with_their_counts():
    run = ShareRun(5, "5-10 free 2,11-15 arch 3")
    assert run.offsets == (5, 15, 5, 5)
    assert run.take("5-10 11-15 16-20") == "5-10x3 16-20x1"


@pytest.mark.parametrize("stored", ["3-4 free", "10-12 free,11-13 free"])
def test_stored_batches_below_the_start_or_overlapping_are_refused(stored):
    with pytest.raises(ValueError, match="the persisted batch"):
        ShareRun(5, stored)


def test_a_stored_state_that_is_none_is_refused():
    with pytest.raises(ValueError, match="of state 1"):
        SharePartition.from_state(ReadState(1, 0, (StateBatch(0, 1, 1, 1),)), 0)


def test_when_all_that_is_stored_is_finished_it_begins_behind_it():
    assert ShareRun(5, "5-10 ack,11-15 arch").offsets == (16, 16, 16, 0)


def test_a_hole_at_the_beginning_is_read_before_what_is_stored():
    run = ShareRun(10, "21-30 ack,31-40 arch")
    assert run.offsets == (10, 40, 10, 20)
    assert run.take("10-20 21-30") == "10-20x1"
    assert run.offsets == (10, 40, 41, 20)
    run.ack("10-20 accept")
    assert run.offsets == (41, 41, 41, 0)


def test_holes_between_stored_batches_are_read_in_turn():
    run = ShareRun(10, "10-14 ack,20-24 ack,30-34 ack")
    assert run.offsets[0] == 15
    assert run.take("15-16") == "15-16x1"
    assert run.partition.next_fetch_offset == 17
    assert run.take("17-19 20-24 25-29 30-34 35-40") == "17-19x1 25-29x1 35-40x1"
    assert run.partition.next_fetch_offset == 41


def test_a_hole_whose_batch_goes_on_ends_at_the_stored_batch():
    run = ShareRun(10, "15-30 ack")
    assert run.take("10-30", most=1) == "10-14x1"


def test_no_more_than_wanted_is_taken_of_holes():
    run = ShareRun(11, "21-30 ack,41-50 free")
    assert run.take("11-20 31-40", most=8) == "11-20x1"
    assert run.partition.next_fetch_offset == 31


def test_a_hole_that_the_log_does_not_have_does_not_stop_the_start():
    run = ShareRun(5, "10-14 free")
    assert run.take("10-14") == "10-14x2"
    assert run.offsets[0] == 10
    assert run.ack("10-14 accept").offsets == (15, 15, 15, 0)


def test_a_hole_of_the_log_before_what_is_finished_is_not_read_for_ever():
    run = ShareRun(5, "10-14 ack")
    assert run.take("10-14") == ""
    assert run.offsets == (15, 15, 15, 0)


# acquiring
def test_new_batches_are_taken_whole_and_once():
    run = ShareRun()
    assert run.take("0-4 5-9") == "0-9x1"
    assert run.take("0-4 5-9", "b", at=0) == ""
    assert run.offsets == (0, 9, 10, 0)


def test_the_last_batch_is_taken_whole():
    """Seen with Kafka 4.3.1 (GN 3.53)."""
    run = ShareRun(3)
    assert run.take("0-5 6-9 10-19", most=2) == "3-5x1"
    assert run.take("6-9 10-19", most=5, size=3) == "6-9x1 10-19x1"


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (3, "0-3x1 4-7x1 8-12x1"),
        (5, "0-7x1 8-12x1"),
        (9, "0-12x1"),
        (100, "0-12x1"),
        (0, "0-1x1 2-3x1 4-7x1 8-12x1"),
    ],
)
def test_new_records_are_split_at_batches_of_the_log(size, taken):
    assert ShareRun().take("0-1 2-3 4-7 8-12", size=size) == taken


def test_what_was_released_is_taken_again_with_a_higher_count():
    run = ShareRun()
    run.take("0-4 5-9")
    run.ack("2-3 release")
    assert run.partition.next_fetch_offset == 2
    assert run.take("0-4 5-9 10-12", "b") == "2-3x2 10-12x1"


def test_neighbours_are_joined_where_their_counts_are_equal():
    """Seen with Kafka 4.3.1 (GN 3.55): 3-5x2 6-6x2, of two batches."""
    run = ShareRun(3)
    run.take("3-5")
    run.take("6-9")
    run.ack("3-5 release, 6-6 release")
    assert run.take("3-5 6-9") == "3-5x2 6-6x2"


def test_a_full_window_takes_nothing_new_but_what_was_released():
    run = ShareRun(max_record_locks=10)
    assert run.take("0-9", "a") == "0-9x1"
    assert not run.partition.can_acquire(run.limits)
    assert run.take("10-14", "b") == ""
    run.ack("4-5 release")
    assert run.partition.can_acquire(run.limits)
    assert run.take("0-9 10-14", "b") == "4-5x2"
    run.ack("0-3 accept")
    assert run.partition.can_acquire(run.limits)
    assert run.take("10-14 15-19", "b") == "10-14x1"


def test_a_batch_before_the_start_offset_is_taken_from_it():
    assert ShareRun(5).take("0-9") == "5-9x1"
    assert ShareRun(5).take("0-4", at=5) == ""


def test_nothing_is_taken_of_nothing():
    assert ShareRun().take("") == ""
    assert ShareRun().take("0-9", most=0) == ""


def test_a_window_that_is_made_smaller_or_larger_counts_at_once():
    run = ShareRun(max_record_locks=20)
    run.take("0-9")
    run.limits = run.limits._replace(max_record_locks=10)
    assert not run.partition.can_acquire(run.limits)
    run.limits = run.limits._replace(max_record_locks=15)
    assert run.take("10-12 13-17 18-20") == "10-17x1"


# record-limit mode
def test_by_record_no_more_than_wanted_is_taken():
    run = ShareRun()
    assert run.take("0-9 10-19", most=4, by_record=True) == "0-3x1"
    assert run.state == "0-3 held x1, 4-9 free x0"
    assert run.offsets == (0, 9, 4, 0)
    assert run.take("0-9 10-19", "b", most=8, by_record=True) == "4-9x1 10-11x1"
    assert run.take("10-19", "c") == "12-19x1"


def test_by_record_what_is_released_is_taken_up_to_the_limit():
    run = ShareRun()
    run.take("0-9")
    run.ack("0-9 release")
    assert run.take("0-9", most=3, by_record=True) == "0-2x2"
    assert run.state == "0-2 held x2, 3-9 free x1"


def test_by_record_a_hole_is_taken_up_to_the_limit():
    run = ShareRun(0, "5-9 ack")
    assert run.take("0-9", most=2, by_record=True) == "0-1x1"
    assert run.take("0-9", most=2, by_record=True) == "2-3x1"
    assert run.take("0-9 10-14", most=2, by_record=True) == "4-4x1 10-10x1"


# records that fail again and again
def test_records_that_fail_are_given_out_in_smaller_parts():
    """GN 3.57: 8 records, limit 5, throttled from 3 on; the last attempt alone."""
    run = ShareRun(delivery_count_limit=5)
    for count in (1, 2, 3):
        assert run.take("0-7") == f"0-7x{count}"
        run.ack("0-7 release")
    assert run.take("0-7") == "0-3x4"
    assert run.take("0-7") == "4-7x4"
    run.ack("0-7 release")
    assert run.take("0-7") == "0-0x5"
    assert run.take("0-7", "b") == "1-1x5"


def test_the_last_attempt_is_alone():
    """Seen with Kafka 4.3.1 (GN 3.57), limit 3."""
    run = ShareRun(10, delivery_count_limit=3)
    run.take("10-12")
    run.ack("10-12 release")
    assert run.take("10-12") == "10-12x2"
    run.ack("10-12 release")
    assert run.take("10-12") == "10-10x3"
    assert run.take("10-12") == "11-11x3"


def test_a_batch_that_failed_often_does_not_come_with_others():
    run = ShareRun(delivery_count_limit=5)
    run.take("0-3")
    for _ in range(2):
        run.ack("0-3 release")
        run.take("0-3")
    run.take("4-7")
    run.ack("0-3 release, 4-7 release")
    assert run.take("0-3 4-7 8-9") == "0-1x4"
    assert run.take("0-3 4-7 8-9") == "2-3x4"
    assert run.take("0-3 4-7 8-9") == "4-7x2 8-9x1"


def test_a_batch_before_one_that_failed_often_comes_without_it():
    run = ShareRun(delivery_count_limit=5)
    run.take("0-3")
    run.take("4-7")
    for _ in range(2):
        run.ack("4-7 release")
        run.take("4-7")
    run.ack("0-3 release, 4-7 release")
    assert run.take("0-3 4-7 8-9") == "0-3x2"
    assert run.take("0-3 4-7 8-9") == "4-5x4"


def test_with_a_limit_of_two_nothing_is_alone():
    run = ShareRun(delivery_count_limit=2)
    run.take("0-3")
    run.ack("0-3 release")
    assert run.take("0-3") == "0-3x2"
    assert run.ack("0-3 release").offsets == (4, 4, 4, 0)


# acknowledging
def test_the_start_moves_when_the_write_succeeded():
    run = ShareRun()
    run.take("0-4 5-9")
    write = run.begin("0-4 accept")
    assert written(write.batches) == "0-4 ack x1"
    assert run.state == "0-4 ack? x1, 5-9 held x1"
    assert run.offsets == (0, 9, 10, 5)
    assert run.finish(write)
    assert run.offsets == (5, 9, 10, 0)


def test_each_offset_may_be_acknowledged_differently():
    run = ShareRun()
    run.take("0-5")
    write = run.begin("0-5 accept accept release release reject gap")
    assert written(write.batches) == "0-1 ack x1, 2-3 free x1, 4-5 arch x1"
    run.finish(write)
    assert run.state == "0-1 ack x1, 2-3 free x1, 4-5 arch x1"
    assert run.offsets == (2, 5, 2, 2)


def test_in_the_middle_nothing_moves_the_start():
    run = ShareRun()
    run.take("0-9 10-19")
    assert run.ack("5-14 accept").offsets == (0, 19, 20, 10)
    assert run.ack("0-4 reject").offsets == (15, 19, 20, 0)
    assert run.ack("15-19 accept").offsets == (20, 20, 20, 0)
    assert run.state == ""


def test_holes_between_batches_may_lie_in_an_acknowledgement():
    run = ShareRun()
    run.take("0-4")
    run.take("8-9")
    assert run.ack("0-9 accept").offsets == (10, 10, 10, 0)


INVALID, STATE = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(
    ("what", "member", "code"),
    [
        ("0-9 accept", "b", STATE),
        ("2-3 accept", "b", STATE),
        ("8-12 accept", "a", INVALID),
        ("12-14 accept", "a", INVALID),
        ("0-1 accept, 30-31 accept", "a", INVALID),
        ("0-1 accept, 4-4 accept", "a", STATE),
        ("0-1 accept, 2-6 release", "a", STATE),
        ("0-1 renew, 4-4 renew", "a", STATE),
    ],
)
def test_a_wrong_acknowledgement_undoes_all_of_its_request(what, member, code):
    """GN 3.61; 4-5 was released before."""
    run = ShareRun()
    run.take("0-9")
    run.ack("4-5 release")
    run.now = 50
    before = run.state, run.offsets, run.partition.next_lock_end_ms
    with pytest.raises(BrokerError) as raised:
        run.begin(what, member)
    assert raised.value.code == code
    assert (run.state, run.offsets, run.partition.next_lock_end_ms) == before


def test_before_anything_was_acquired_nothing_can_be_acknowledged():
    with pytest.raises(BrokerError) as raised:
        ShareRun().begin("0-1 accept")
    assert raised.value.code == STATE


def test_acknowledging_twice_is_refused_also_while_it_is_written():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-4 accept")
    with pytest.raises(BrokerError, match="could not be completed"):
        run.begin("0-4 accept")
    run.finish(write)
    assert not run.begin("0-4 accept").runs  # below the start offset: skipped
    run.ack("6-7 accept")
    with pytest.raises(BrokerError, match="not acquired"):
        run.begin("6-7 accept")


def test_what_is_being_written_is_not_acquired():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-4 release")
    assert run.partition.next_fetch_offset == 10
    assert run.take("0-9", "b", at=0) == ""
    run.finish(write)
    assert run.take("0-9", "b") == "0-4x2"


def test_a_failed_write_gives_the_records_back_to_their_holder():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-4 accept")
    assert not run.finish(write, succeeded=False)
    assert run.state == "0-9 held x1"
    assert run.offsets == (0, 9, 10, 0)
    assert run.ack("0-9 accept").offsets == (10, 10, 10, 0)


@pytest.mark.parametrize(("limit", "state"), [(5, "0-9 free x1"), (1, "")])
def test_a_write_that_fails_after_the_lock_ended_leaves_them_as_that_does(limit, state):
    run = ShareRun(delivery_count_limit=limit)
    run.take("0-9")
    write = run.begin("0-9 accept")
    assert run.wait(100) == ""
    assert run.partition.next_lock_end_ms is None
    run.finish(write, succeeded=False)
    assert run.state == state


def test_a_write_that_succeeds_after_the_lock_ended_counts():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-9 accept")
    run.wait(100)
    run.finish(write)
    assert run.offsets == (10, 10, 10, 0)


def test_released_at_the_limit_is_archived():
    run = ShareRun(delivery_count_limit=2)
    run.take("0-3")
    run.ack("0-1 release")
    assert run.take("0-3") == "0-1x2"
    assert written(run.begin("0-3 release").batches) == "0-1 arch x2, 2-3 free x1"


def test_the_limit_is_that_of_now():
    run = ShareRun(delivery_count_limit=5)
    run.take("0-3")
    run.ack("0-3 release")
    run.take("0-3")
    run.limits = run.limits._replace(delivery_count_limit=2)
    assert written(run.begin("0-1 release").batches) == "0-1 arch x2"
    run.limits = run.limits._replace(delivery_count_limit=3)
    assert written(run.begin("2-3 release").batches) == "2-3 free x2"


# locks
def test_a_lock_that_ends_makes_them_available_and_says_what_to_write():
    run = ShareRun()
    run.take("0-4")
    run.now = 60
    run.take("5-9", "b")
    assert run.partition.next_lock_end_ms == 100
    assert run.wait(39) == ""
    assert run.wait(1) == "0-4 free x1"
    assert run.partition.next_lock_end_ms == 160
    assert run.take("0-4 5-9", "c") == "0-4x2"
    with pytest.raises(BrokerError, match="not the owner"):
        run.begin("0-4 accept")


def test_a_lock_that_ends_at_the_limit_archives_and_moves_the_start():
    run = ShareRun(delivery_count_limit=1)
    run.take("0-4 5-9")
    run.ack("7-9 accept")
    assert run.wait(100) == "0-6 arch x1"
    assert run.offsets == (10, 10, 10, 0)


def test_only_what_is_still_held_is_taken_back():
    run = ShareRun()
    run.take("0-9")
    run.ack("2-3 accept, 5-5 release")
    assert run.wait(100) == "0-1 free x1, 4-4 free x1, 6-9 free x1"
    assert run.state == "0-1 free x1, 2-3 ack x1, 4-9 free x1"


def test_a_renewed_lock_begins_again_and_nothing_is_written():
    run = ShareRun()
    run.take("0-9")
    run.now = 50
    write = run.begin("0-1 renew, 2-3 accept renew")
    assert written(write.batches) == "2-2 ack x1"
    run.finish(write)
    assert run.wait(50) == "4-9 free x1"
    assert run.wait(50) == "0-1 free x1, 3-3 free x1"


def test_a_lock_that_ended_cannot_be_renewed():
    run = ShareRun()
    run.take("0-9")
    run.wait(100)
    with pytest.raises(BrokerError):
        run.begin("0-9 renew")


def test_renewing_may_be_off():
    run = ShareRun(may_renew=False)
    run.take("0-9")
    with pytest.raises(BrokerError, match="not enabled"):
        run.begin("0-9 renew")


def test_a_lock_lasts_as_long_as_is_set_when_it_begins():
    run = ShareRun()
    run.take("0-4")
    run.limits = run.limits._replace(record_lock_duration_ms=30)
    run.take("5-9")
    assert run.wait(30) == "5-9 free x1"


# a session that ends
def test_a_member_that_leaves_gives_back_what_it_holds():
    run = ShareRun()
    run.take("0-4")
    run.take("5-9", "b")
    run.ack("1-2 accept")
    assert run.release().state == "0-0 free x1, 1-2 ack x1, 3-4 free x1, 5-9 held x1"
    assert not run.partition.release("c", run.limits).runs


def test_a_failed_write_of_a_release_leaves_the_locks():
    run = ShareRun()
    run.take("0-4")
    run.finish(run.partition.release("a", run.limits), succeeded=False)
    assert run.state == "0-4 held x1"
    assert run.wait(100) == "0-4 free x1"


# log start, compaction, transactions
def test_the_log_start_archives_what_is_free_and_leaves_what_is_held():
    run = ShareRun()
    run.take("0-4 5-9 10-14", size=5)
    run.ack("0-4 release, 5-6 accept")
    assert run.offsets == (0, 14, 0, 2)
    run.partition.move_to_log_start(8)
    assert run.state == "5-6 ack x1, 7-9 held x1, 10-14 held x1"
    assert run.offsets == (8, 14, 15, 0)
    assert run.wait(100) == "7-7 arch x1, 8-9 free x1, 10-14 free x1"
    assert run.offsets == (8, 14, 8, 0)


def test_the_log_start_beyond_the_end_empties_the_window():
    run = ShareRun()
    run.take("0-9")
    run.partition.move_to_log_start(15)
    assert run.offsets == (15, 15, 15, 0)
    assert run.take("10-20", "b") == "15-20x1"
    assert not run.begin("0-9 accept").runs
    run.release()
    assert run.state == "15-20 held x1"


def test_the_log_start_of_an_empty_window():
    run = ShareRun(3)
    run.partition.move_to_log_start(7)
    run.partition.move_to_log_start(5)
    assert run.offsets == (7, 7, 7, 0)


def test_what_is_released_below_the_log_start_is_archived():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-9 release")
    run.partition.move_to_log_start(4)
    run.finish(write)
    assert run.take("0-9") == "4-9x2"


def test_a_write_that_fails_below_the_log_start_gives_it_back():
    run = ShareRun()
    run.take("0-9")
    write = run.begin("0-5 accept")
    run.partition.move_to_log_start(4)
    assert run.partition.complete_count == 2
    run.finish(write, succeeded=False)
    assert run.partition.complete_count == 0
    assert run.wait(100) == "0-3 arch x1, 4-9 free x1"


def test_what_the_log_lost_is_archived_when_a_read_goes_on_behind_it():
    run = ShareRun()
    run.take("0-4 5-9 10-14", size=5)
    run.ack("2-9 release")
    assert run.take("10-14 15-19", "b") == "15-19x1"
    assert run.state == "0-1 held x1, 2-4 arch x1, 5-9 arch x1, 10-14 held x1, 15-19 held x1"
    assert run.partition.complete_count == 8
    run.ack("0-1 accept")
    assert run.offsets[0] == 10


def test_a_window_full_of_what_the_log_lost_is_passed():
    run = ShareRun(max_record_locks=10)
    run.take("0-9")
    run.ack("0-9 release")
    assert run.take("20-29") == ""
    assert run.take("20-29") == "20-29x1"


def test_aborted_batches_are_archived_and_not_given():
    run = ShareRun()
    log = "0-4t5 5-9t6 10-10c5 11-14t5 15-15c6 16-16c5"
    assert run.take(log, aborted=[(5, 0), (5, 11)]) == "5-10x1 15-16x1"
    assert run.offsets == (5, 16, 17, 4)
    assert run.state == "0-4 arch x1, 5-10 held x1, 11-14 arch x1, 15-16 held x1"


def test_when_all_is_aborted_the_start_passes_it():
    run = ShareRun()
    assert run.take("0-4t5", aborted=[(5, 0)]) == ""
    assert run.offsets == (5, 5, 5, 0)


def test_a_committed_transaction_of_an_aborted_producer_is_given():
    run = ShareRun()
    taken = run.take("0-1t5 2-2c5 3-4t5 5-5c5", aborted=[(5, 0)])
    assert taken == "2-5x1"


# cost
def test_a_batch_costs_no_object_for_each_record():
    run = ShareRun(max_record_locks=20_000)
    run.take("0-9999")
    run.ack("0-9998 " + " ".join(["accept", "reject"] * 4999 + ["accept"]))
    assert sum(len(batch.runs) for batch in run.partition.in_flight) == 10_000
    run.take("10000-19999")
    run.ack("10000-14999 accept").ack("15000-19998 accept")
    assert len(run.partition.in_flight.batches[-1].runs) == 2
