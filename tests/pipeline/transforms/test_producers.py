"""Sequences, epochs and transactions of producers, as batch headers show them."""

from __future__ import annotations

import pytest

from replog_pipeline.transforms.producers import epoch_faults, sequence_faults, transactions
from tests.pipeline.header_tables import batch, data, marker, table

COMPLETE = dict(complete=True, compacted=False)


def kinds(faults):
    return [(fault.kind, fault.row) for fault in faults]


def test_sequences_without_a_gap_are_fine_for_producers_side_by_side():
    rows = [
        data(0, 7, 0),
        data(10, 8, 0),
        data(20, 7, 10),
        batch(30),
        data(40, 8, 10),
        data(50, 7, 20),
    ]
    assert kinds(sequence_faults(table(*rows), **COMPLETE)) == []


def test_a_jump_is_reported_where_it_is_and_only_there():
    rows = [data(0, 7, 0), data(10, 8, 0), data(20, 7, 30), data(30, 7, 40)]
    (fault,) = sequence_faults(table(*rows), **COMPLETE)
    assert (fault.kind, fault.row) == ("sequence", 2)
    assert fault.problem == "producer 7 epoch 0 jumps to sequence 30, 10 is due"


def test_what_comes_again_is_a_duplicate_and_what_follows_is_not_a_jump():
    rows = [data(0, 7, 0), data(10, 7, 10), data(20, 7, 0), data(30, 7, 10), data(40, 7, 20)]
    assert kinds(sequence_faults(table(*rows), **COMPLETE)) == [("duplicate", 2), ("duplicate", 3)]


def test_a_newer_epoch_begins_at_zero():
    assert (
        kinds(
            sequence_faults(
                table(data(0, 7, 0), data(10, 7, 0, epoch=1), data(20, 7, 10, epoch=1)), **COMPLETE
            )
        )
        == []
    )
    assert kinds(sequence_faults(table(data(0, 7, 0), data(10, 7, 10, epoch=1)), **COMPLETE)) == [
        ("sequence", 1)
    ]


def test_sequences_go_round_after_two_to_the_31():
    near = 2**31 - 15
    rows = [
        data(0, 7, near),
        data(10, 7, near + 10),
        data(20, 7, 5),
        data(30, 7, 15),
        data(40, 7, near + 10),
        data(50, 7, 26),
    ]
    assert kinds(sequence_faults(table(*rows), complete=False, compacted=False)) == [
        ("duplicate", 4),
        ("sequence", 5),
    ]


def test_a_producer_may_begin_anywhere_where_the_beginning_is_gone():
    rows = table(data(0, 7, 500), data(10, 7, 510))
    assert kinds(sequence_faults(rows, complete=False, compacted=False)) == []
    assert kinds(sequence_faults(rows, **COMPLETE)) == [("sequence", 0)]


def test_a_cleaner_makes_jumps_but_no_repetition():
    rows = table(data(0, 7, 0), data(100, 7, 100), data(200, 7, 50))
    assert kinds(sequence_faults(rows, complete=True, compacted=True)) == [("duplicate", 2)]


def test_an_older_producer_epoch_does_not_come_again():
    rows = table(data(0, 7, 0, epoch=3), data(10, 7, 10, epoch=2), data(20, 8, 0, epoch=0))
    assert kinds(epoch_faults(rows)) == [("epoch", 1)]
    assert kinds(sequence_faults(rows, **COMPLETE)) == []


def test_a_marker_fences_what_its_epoch_overtakes():
    rows = table(data(0, 7, 0, inside=True), marker(10, 7, epoch=1), data(11, 7, 10, inside=True))
    assert kinds(epoch_faults(rows)) == [("epoch", 2)]


def test_leader_epochs_do_not_go_back():
    rows = table(
        batch(0, leaderEpoch=2),
        batch(10, leaderEpoch=5),
        batch(20, leaderEpoch=4),
        batch(30, leaderEpoch=4),
    )
    assert kinds(epoch_faults(rows)) == [("epoch", 2)]


@pytest.mark.parametrize(
    "step", [0, 1], ids=["version 1", "version 2: a marker brings a new epoch"]
)
def test_transactions_with_ends_are_closed(step):
    rows = [
        data(0, 7, 0, inside=True),
        data(10, 8, 0),
        marker(20, 7, step),
        data(21, 7, 0 if step else 10, epoch=step, inside=True),
    ]
    rows.append(marker(31, 7, 2 * step))
    assert transactions(table(*rows)) == ([], [])
    assert kinds(sequence_faults(table(*rows), **COMPLETE)) == []


def test_what_has_no_end_marker_is_open_from_its_first_batch_to_its_last():
    rows = [data(0, 7, 0, inside=True), marker(10, 7), data(11, 7, 10, inside=True)]
    rows += [data(21, 8, 0, inside=True), data(31, 7, 20, inside=True), marker(41, 8)]
    opened, torn = transactions(table(*rows))
    assert opened == [(2, 4)]
    assert torn == []


def test_a_new_epoch_within_an_open_transaction_tears_it():
    opened, torn = transactions(
        table(data(0, 7, 0, inside=True), data(10, 7, 0, epoch=1, inside=True), marker(20, 7, 1))
    )
    assert opened == []
    assert kinds(torn) == [("torn transaction", 1)]


def test_a_batch_outside_of_transactions_within_an_open_one_tears_it():
    _, torn = transactions(table(data(0, 7, 0, inside=True), data(10, 7, 10), marker(20, 7)))
    assert kinds(torn) == [("torn transaction", 1)]


def test_a_marker_without_records_is_no_fault():
    assert transactions(table(marker(0, 7), batch(1), marker(11, 7, 1))) == ([], [])
