"""`compare`: replicas in several log directories, alike and parted in every way; in this
process, and once through Spark and the command.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from replog_pipeline.errors import PipelineError
from replog_pipeline.flat_rows import arrow_schema
from replog_pipeline.jobs.compare import CompareConfig, planned, ranges
from replog_pipeline.jobs.compare.command import command
from replog_pipeline.jobs.compare.findings import Parting, partings
from replog_pipeline.jobs.compare.job import note_gone
from replog_pipeline.jobs.compare.ranges import Partition
from replog_pipeline.jobs.compare.task import GONE, READ, ROW, compare_piece
from replog_pipeline.segments.log_view import LOG_END
from tests.pipeline.replica_folders import batch, checkpoint, high_watermarks, partition, topic_id

SAME = {0: [batch(0), batch(10, epoch=1)], 20: [batch(20, epoch=1), batch(30, epoch=2)]}


@pytest.fixture
def places(tmp_path):
    return [tmp_path / name for name in "abc"]


def log(place, segments, high_watermark=None, name="orders-0"):
    folder = partition(place, name, segments)
    if high_watermark is not None:
        high_watermarks(place, {name: high_watermark})
    return folder


def compared(*places, **config) -> tuple[list[Partition], list[Parting], list[dict]]:
    """What a run does, without Spark: plan, every piece, findings."""
    partitions = planned(CompareConfig(tuple(map(str, places)), **config))
    empty = dict.fromkeys(arrow_schema(ROW).names)
    rows = [
        empty | row
        for each in partitions
        for piece in ranges.pieces(each)
        for row in compare_piece(piece)
    ]
    return partitions, list(partings(rows)), rows


def test_replicas_that_are_alike_though_their_segments_are_cut_elsewhere(places):
    log(places[0], SAME, 40)
    log(places[1], {0: [*SAME[0], *SAME[20]]}, 40)
    (plan,), findings, rows = compared(*places[:2])
    assert findings == []
    assert (plan.start, plan.end, plan.remarks) == (0, 40, [])
    assert sum(row["batches"] for row in rows if row["kind"] == READ) == 8


def test_where_and_under_which_epoch_they_part(places):
    log(places[0], SAME, 40)
    other = log(
        places[1], {0: [*SAME[0], batch(20, epoch=1, text="other"), batch(30, epoch=3)]}, 40
    )
    _, (finding,), _ = compared(*places[:2])
    assert (finding.offset, finding.common_last, finding.common_epoch) == (20, 19, 1)
    mine, theirs = finding.copies
    assert (mine.file, mine.position, mine.epoch, mine.base, mine.last) == (
        str(places[0] / "orders-0" / f"{20:020d}.log"),
        0,
        1,
        20,
        29,
    )
    assert (theirs.file, theirs.position) == (str(other / f"{0:020d}.log"), sum(map(len, SAME[0])))
    assert (mine.differing, theirs.differing) == (0, 2)
    assert (
        "the replicas part at offset 20; the last batch they share ends at 19, leader epoch 1"
        in str(finding)
    )


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_a_batch_that_one_replica_holds_twice_is_named_with_both_places(places, monkeypatch, size):
    monkeypatch.setattr(ranges, "PIECE_BYTES", size)
    for place in places[:2]:
        log(place, SAME, 40)
    file = log(places[2], {0: [*SAME[0], SAME[0][1]], 20: SAME[20]}, 40) / f"{0:020d}.log"
    for order in (places, places[::-1]):
        _, (finding,), _ = compared(*order)
        twice = next(copy for copy in finding.copies if copy.directory == str(places[2]))
        assert (finding.offset, finding.common_last, twice.base, twice.position) == (
            10,
            9,
            10,
            len(batch(0)),
        )
        assert twice.again == f"{file} at byte {sum(map(len, SAME[0]))}"
        assert str(finding).count(f"; held twice, again in {twice.again}") == 1


@pytest.mark.parametrize(
    ("segments", "offset", "file"),
    [
        ({0: SAME[0], 20: [*SAME[20], SAME[0][1]]}, 10, 20),
        ({0: [*SAME[0], SAME[20][1]], 20: SAME[20]}, 30, 0),
    ],
    ids=["a later segment", "an earlier segment"],
)
@pytest.mark.parametrize("size", [1, 1 << 30])
def test_a_batch_that_comes_again_in_another_segment_is_named_however_the_log_is_cut(
    places, monkeypatch, segments, offset, file, size
):
    monkeypatch.setattr(ranges, "PIECE_BYTES", size)
    for place in places[:2]:
        log(place, SAME, 40)
    folder = log(places[2], segments, 40)
    for order in (places, places[::-1]):
        _, (finding,), _ = compared(*order)
        where = f"{folder / f'{file:020d}.log'} at byte {sum(map(len, segments[file][:2]))}"
        assert str(finding) == (
            f"orders-0: offsets {offset}..{offset + 9} are held out of place, in {where}, "
            "and not so by every replica"
        )


def test_a_batch_that_every_replica_holds_twice_is_for_audit_alone(places):
    for place in places[:2]:
        log(place, {0: [*SAME[0], SAME[0][1]], 20: [*SAME[20], SAME[0][1]]}, 40)
    assert compared(*places[:2])[1] == []


def test_a_batch_out_of_place_beyond_the_compared_end_does_not_count(places):
    log(places[0], SAME, 30)
    log(places[1], {0: SAME[0], 20: [*SAME[20], SAME[0][1]]}, 30)
    assert compared(*places[:2])[1] == []


def test_one_of_three_parts_in_its_epoch(places):
    for place in places[:2]:
        log(place, SAME, 40)
    log(places[2], {0: [batch(0)], 10: [batch(10, epoch=0)], 20: SAME[20]}, 40)
    _, (finding,), _ = compared(*places)
    assert (
        finding.offset,
        [copy.epoch for copy in finding.copies],
        [copy.differing for copy in finding.copies],
    ) == (10, [1, 1, 0], [0, 0, 1])


def test_only_up_to_the_lowest_high_watermark_and_it_says_whose(places):
    log(places[0], SAME, 40)
    log(places[1], {0: [*SAME[0], batch(20, text="other")]}, 20)
    (plan,), findings, _ = compared(*places[:2])
    assert (findings, plan.end, plan.end_by) == ([], 20, str(places[1]))
    (plan,), (finding,), _ = compared(*places[:2], upto=LOG_END)
    assert (plan.end, finding.offset) == (30, 20)


def test_a_replica_that_is_shorter_than_its_high_watermark(places):
    log(places[0], SAME, 40)
    log(places[1], {0: [*SAME[0], SAME[20][0][:-7]]}, 40)
    _, (finding,), _ = compared(*places[:2])
    assert (finding.offset, finding.copies[1].file) == (20, "")
    assert finding.copies[1].stop.endswith("the last batch is cut short")
    assert "nothing; 00000000000000000000.log at byte" in str(finding)


def test_torn_tails_beyond_the_high_watermark_do_not_count(places):
    log(places[0], {0: [*SAME[0], batch(20, text="mine")[:50]]}, 20)
    log(places[1], {0: [*SAME[0], b"no batch" * 20]}, 20)
    assert compared(*places[:2])[1] == []


def test_missing_partitions_and_different_starts_are_remarks(places):
    log(places[0], SAME, 40)
    log(places[1], {20: SAME[20]}, 40)
    partition(places[0], "other-1", {0: [batch(0)]})
    (orders, other), findings, _ = compared(*places[:2])
    assert findings == []
    assert (orders.start, orders.remarks) == (
        20,
        [f"log starts differ: 0 in {places[0]}, 20 in {places[1]}"],
    )
    assert (other.compared, other.remarks) == (False, [f"not in {places[1]}"])


def test_what_a_cleaner_has_passed_is_not_compared(places):
    log(places[0], {0: [batch(0, 3), *SAME[20]]}, 40)
    log(places[1], SAME, 40)
    assert compared(*places[:2])[1][0].offset == 0
    checkpoint(places[0], "cleaner-offset-checkpoint", {"orders-0": 20})
    (plan,), findings, _ = compared(*places[:2])
    assert (findings, plan.start) == ([], 20)
    assert plan.remarks == ["a cleaner has passed offsets up to 20: not compared before"]


def test_different_topics_of_one_name_are_a_finding(places):
    for place, text in zip(places, ["A" * 21 + "A", "B" * 21 + "A"], strict=False):
        topic_id(log(place, SAME, 40), text)
    (plan,), findings, _ = compared(*places[:2])
    assert findings == []
    assert plan.problem.startswith("different topics of one name: AAAA")
    assert not plan.compared


def test_pieces_cover_a_long_log_once_whatever_their_size(places, monkeypatch):
    batches = [batch(10 * at) for at in range(60)]
    log(places[0], {100 * at: batches[10 * at : 10 * at + 10] for at in range(6)}, 600)
    broken = [*batches[:47], batch(470, text="other"), *batches[48:]]
    log(places[1], {0: broken[:33], 330: broken[33:]}, 600)
    for size in (1, 2000, 1 << 30):
        monkeypatch.setattr(ranges, "PIECE_BYTES", size)
        _, (finding,), rows = compared(*places[:2])
        assert (finding.offset, finding.common_last) == (470, 469)
        assert sum(row["batches"] for row in rows if row["kind"] == READ) == 120


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["a"], "two or more different log directories"),
        (["a", "a"], "two or more different log directories"),
        (["a", "nowhere"], "is no directory"),
        (["a", "empty"], "no TOPIC-PARTITION folder"),
        (["a", "b"], "no replication-offset-checkpoint"),
        (["a", "c"], "no partition is in two of these"),
    ],
)
def test_wrong_directories_are_one_line(places, tmp_path, wrong, words):
    log(places[0], SAME, 40)
    log(places[1], SAME)
    log(places[2], SAME, 40, name="elsewhere-0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match=words):
        compared(*(tmp_path / name for name in wrong))


def test_a_segment_that_retention_took_meanwhile_is_a_remark(places):
    for place in places[:2]:
        log(place, SAME, 40)
    (plan,) = planned(CompareConfig(tuple(map(str, places[:2]))))
    (piece,) = ranges.pieces(plan)
    (places[1] / "orders-0" / f"{0:020d}.log").unlink()
    rows = list(compare_piece(piece))
    assert [row["kind"] for row in rows] == [GONE]
    note_gone([plan], rows)
    assert plan.remarks == [
        f"{places[1] / 'orders-0' / f'{0:020d}.log'} was deleted meanwhile: not compared there"
    ]


def test_nothing_below_the_high_watermark_is_said(places):
    log(places[0], SAME, 40)
    log(places[1], SAME, 0)
    (plan,), _, rows = compared(*places[:2])
    assert (rows, plan.compared, plan.remarks) == (
        [],
        False,
        [f"nothing to compare: from 0 to 0, which {places[1]} recorded"],
    )


def findings_of(spark, places, *arguments) -> tuple[int, dict]:
    done = CliRunner().invoke(command, [*map(str, places), "--json", "--quiet", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def test_the_command_reports_as_json_and_by_its_exit_status(spark, places):
    log(places[0], SAME, 40)
    log(places[1], SAME, 40)
    status, told = findings_of(spark, places[:2])
    assert (status, told["findings"], told["batches"]) == (0, [], 8)
    log(places[2], {0: SAME[0], 20: [SAME[20][0], batch(30, epoch=5)]}, 40)
    status, told = findings_of(spark, places)
    assert (status, told["findings"][0]["offset"], told["findings"][0]["copies"][2]["epoch"]) == (
        1,
        30,
        5,
    )
    assert told["partitions"][0]["end"] == 40
