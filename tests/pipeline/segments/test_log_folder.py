"""Log directories without Spark: what is in them, who may see what of it, and the rows of Apache
Kafka's own files.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from replog_pipeline.columns import COLUMNS
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_folder import folders
from replog_pipeline.segments.log_view import (
    COMMITTED,
    LOG_END,
    extents,
    unique_folders,
    view,
)
from replog_pipeline.segments.options import offsets_option, parse_options
from replog_pipeline.segments.plan import plan
from replog_pipeline.segments.rows import segment_rows
from replog_pipeline.segments.stream import (
    bounded,
    closed_ends,
    first_positions,
    stream_plan,
)
from tests.pipeline.decoding import Row, expected, plain, unpack_golden


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return unpack_golden(tmp_path)


def rows(directory: Path | str, columns: Iterable[str] = COLUMNS, **options: str) -> list[Row]:
    """What the data source's tasks would yield, sorted as the expectations are."""
    tasks = plan(parse_options({"path": str(directory), **options}), tuple(columns))
    found = [row for task in tasks for batch in segment_rows(*task) for row in plain(batch)]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def seen(committed: bool = False, *topics: str) -> list[Row]:
    return [
        row
        for row, is_committed in expected()
        if (is_committed or not committed) and (not topics or row["topic"] in topics)
    ]


def test_kafkas_files_give_what_kafkas_consumer_saw(golden: Path) -> None:
    """All codecs, headers, nulls, LogAppendTime, compaction, deleted records, several segments,
    transactions.
    """
    assert rows(golden) == seen()


def test_read_committed_is_what_a_read_committed_consumer_saw(golden: Path) -> None:
    """Neither aborted records nor anything past the first open transaction."""
    assert rows(golden, isolation=COMMITTED) == seen(True)
    assert len(seen(True)) < len(seen())


def test_folders_say_what_the_checkpoints_say(golden: Path) -> None:
    found = {(each.topic, each.partition): each for each in folders(str(golden))}
    assert sorted({topic for topic, _ in found}) == [
        "appended",
        "codecs",
        "compacted",
        "transactions",
        "trimmed",
    ]
    trimmed, compacted = found["trimmed", 0], found["compacted", 0]
    assert (
        trimmed.log_start,
        trimmed.start,
        trimmed.high_watermark,
        found["trimmed", 1].start,
    ) == (11, 11, 24, 0)
    assert (
        compacted.cleaned_to,
        compacted.log_start,
        [each.base_offset for each in compacted.segments],
    ) == (36, 0, [0, 36])
    assert len(trimmed.topic_id or "") == 22 and trimmed.topic_id == found["trimmed", 1].topic_id


def test_aborted_transactions_are_those_of_kafkas_index(golden: Path) -> None:
    """The control batches of the log and the `.txnindex` beside it tell the same."""
    folder = folders(str(golden), ["transactions"])[0]
    index = b"".join(path.read_bytes() for path in sorted(Path(folder.path).glob("*.txnindex")))
    entries = [
        tuple(int.from_bytes(index[at + 2 + 8 * n : at + 10 + 8 * n], "big") for n in range(3))
        for at in range(0, len(index), 34)
    ]
    assert list(view(folder, with_aborted=True).aborted) == entries and len(entries) == 2


def test_extents_end_where_rows_end(golden: Path) -> None:
    for isolation in ("read_uncommitted", COMMITTED):
        ends = extents([str(golden)], isolation=isolation)
        last = {
            (row["topic"], row["partition"]): row["offset"]
            for row in rows(golden, isolation=isolation)
        }
        assert all(last[key] < end for key, (_, end) in ends.items())
    assert extents([str(golden)], ["transactions"])["transactions", 0] == (0, 31)
    assert extents([str(golden)], ["transactions"], COMMITTED)["transactions", 0][1] < 31
    assert extents([str(golden)], upto=LOG_END) == extents([str(golden)])


def test_one_partition_folder_has_its_parents_checkpoints(golden: Path) -> None:
    assert rows(golden / "codecs-3") == [
        row for row in seen(False, "codecs") if row["partition"] == 3
    ]


def test_nothing_past_the_high_watermark_unless_asked(golden: Path) -> None:
    (golden / "replication-offset-checkpoint").write_text("0\n1\nappended 0 7\n")
    assert [row["offset"] for row in rows(golden, topics="appended")] == list(range(7))
    assert rows(golden, topics="codecs") == []  # a checkpoint that does not know a partition says 0
    assert rows(golden, upto=LOG_END) == seen()


def test_without_checkpoint_nobody_knows_what_is_committed(golden: Path) -> None:
    (golden / "replication-offset-checkpoint").unlink()
    with pytest.raises(PipelineError, match=r"no replication-offset-checkpoint.*upto=log_end"):
        rows(golden)
    assert rows(golden, upto=LOG_END) == seen()


def test_between_offsets(golden: Path) -> None:
    options = {
        "startingOffsets": offsets_option({("codecs", 1): 15, ("codecs", 2): 40}),
        "endingOffsets": offsets_option({("codecs", 1): 33}),
    }
    starts, ends = {1: 15, 2: 40}, {1: 33}
    wanted = [
        row
        for row in seen(False, "codecs")
        if starts.get(row["partition"], 0) <= row["offset"] < ends.get(row["partition"], 99)
    ]
    assert rows(golden, topics="codecs", **options) == wanted
    assert (
        len(plan(parse_options({"path": str(golden), "topics": "codecs", **options}), COLUMNS))
        == 13
    )  # 2 of 15 segments are not touched


def test_only_what_the_starting_offsets_name(golden: Path) -> None:
    options = {"topics": "codecs", "startingOffsets": offsets_option({("codecs", 2): 40})}
    wanted = [row for row in seen(False, "codecs") if row["partition"] == 2 and row["offset"] >= 40]
    assert rows(golden, onlyNamed="true", **options) == wanted
    assert len(rows(golden, **options)) > len(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsets": '{"trimmed": {"0": 10}}'},
            "offset 10 of trimmed-0 is gone: its log starts at 11",
        ),
        ({"endingOffsets": '{"codecs": {"0": 49}}'}, "codecs-0 is visible up to offset 48, not 49"),
        ({"startingOffsets": '{"codecs": {"9": 1}}'}, "codecs-9 is no partition"),
        ({"startingOffsets": "earliest"}, "not of the form"),
        ({"topics": "codecs,nothing"}, "no partition of nothing in .*there is: appended, codecs"),
        ({"isolation": "dirty"}, "isolation: 'dirty' is none of read_uncommitted, read_committed"),
        ({"upto": "noon"}, "upto: 'noon'"),
        ({"isolatoin": "x"}, "option isolatoin is not known"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    golden: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        rows(golden, **options)
    assert "\n" not in str(raised.value)


def test_directories_that_are_none(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, message in (
        ("missing", "is no directory"),
        ("empty", "no TOPIC-PARTITION folder"),
        ("expected.jsonl", "is no directory"),
    ):
        with pytest.raises(PipelineError, match=message):
            folders(str(golden / place))
    with pytest.raises(PipelineError, match="option path"):
        parse_options({})


def test_folders_on_their_way_out_are_none(golden: Path) -> None:
    for name in (
        "codecs-0.0123456789abcdef0123456789abcdef-delete",
        "codecs-7.0123456789abcdef0123456789abcdef-stray",
    ):
        shutil.copytree(golden / "codecs-0", golden / name)
    assert len(folders(str(golden), ["codecs"])) == 5


@pytest.mark.parametrize("name", ["codecs-0", "codecs-0/00000000000000000000.log"])
def test_files_that_only_the_brokers_user_may_read_are_named(
    golden: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the driver. root reads everything, so the system's answers are the test's."""
    closed = golden / name

    def refusing(call: Callable[..., Any], answer: Callable[[Path], Any]) -> Callable[..., Any]:
        return lambda path, *more, **named: (
            answer(closed) if Path(path) == closed else call(path, *more, **named)
        )

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "access", refusing(os.access, lambda path: False))
    monkeypatch.setattr(os, "listdir", refusing(os.listdir, refuse))
    monkeypatch.setattr(Path, "open", refusing(Path.open, refuse))
    with pytest.raises(PipelineError) as raised:
        folders(str(golden), ["codecs"])
    assert f"segments: {closed}: Permission denied: run as a user who may" in str(raised.value)


def test_half_a_cleaning_is_refused(golden: Path) -> None:
    place = golden / "compacted-0" / "00000000000000000000.log"
    place.rename(place.with_suffix(".log.swap"))
    with pytest.raises(PipelineError, match=r"is being cleaned \(00000000000000000000.log.swap\)"):
        rows(golden)


def test_a_damaged_checkpoint_is_named(golden: Path) -> None:
    (golden / "replication-offset-checkpoint").write_text("0\n5\ncodecs 0 48\n")
    with pytest.raises(PipelineError, match="replication-offset-checkpoint"):
        rows(golden)


def test_two_replicas_of_one_partition_are_refused(golden: Path, tmp_path: Path) -> None:
    other = unpack_golden(tmp_path / "other")
    with pytest.raises(PipelineError, match=r"replicas of one partition.*compare"):
        unique_folders([str(golden), str(other)])


def test_directories_of_one_broker_are_read_together(golden: Path, tmp_path: Path) -> None:
    other = tmp_path / "second-disk"
    other.mkdir()
    (golden / "codecs-0").rename(other / "codecs-0")
    shutil.copy(golden / "replication-offset-checkpoint", other)
    assert rows(f"{golden},{other}") == seen()


def test_a_torn_tail_past_the_high_watermark_is_left_out(golden: Path) -> None:
    """The active segment of a broker that died: half a batch at its end.

    Below the high watermark the same is damage.
    """
    path = golden / "codecs-0" / "00000000000000000032.log"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2 - 7])
    assert rows(golden, topics="codecs", upto=LOG_END) == seen(False, "codecs")
    path.write_bytes(whole[:-5])
    with pytest.raises(
        PipelineError,
        match=(
            r"00000000000000000032.log, byte \d+: the last batch is cut short at offset "
            r"\d+.*crc=flag"
        ),
    ):
        rows(golden, topics="codecs")


def test_a_damaged_segment_is_named_with_byte_and_offset(golden: Path) -> None:
    path = golden / "codecs-0" / "00000000000000000016.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        PipelineError,
        match=r"00000000000000000016.log, byte \d+: a batch has a wrong CRC at offset \d+",
    ):
        rows(golden, topics="codecs")
    flagged = [
        row["crcOk"] for row in rows(golden, (*COLUMNS, "crcOk"), topics="codecs", crc="flag")
    ]
    assert flagged.count(False) >= 1 and flagged.count(True) > 200


def test_a_stream_goes_to_the_active_segment_and_never_backwards(golden: Path) -> None:
    options = parse_options({"path": str(golden), "topics": "codecs,trimmed"})
    start = first_positions(options)
    assert start == {
        **{f"codecs-{number}": 0 for number in range(5)},
        "trimmed-0": 11,
        "trimmed-1": 0,
    }
    ends = closed_ends(options, start)
    assert ends == {
        **{f"codecs-{number}": 32 for number in range(5)},
        "trimmed-0": 16,
        "trimmed-1": 16,
    }
    assert sum("trimmed" in task.path for task in stream_plan(options, COLUMNS, start, ends)) == 3
    assert closed_ends(options, {"codecs-0": 40})["codecs-0"] == 40
    with pytest.raises(
        PipelineError, match=r"codecs-0 ends before offset 49 \(was the topic created again"
    ):
        closed_ends(options, {"codecs-0": 49})
    with pytest.raises(PipelineError, match="offset 5 of trimmed-0 is gone, the log starts at 11"):
        stream_plan(options, COLUMNS, {"trimmed-0": 5}, ends)


def test_a_stream_that_takes_what_is_there_takes_no_more() -> None:
    """New segments and partitions that came after the target was taken wait for the next run."""
    assert bounded(
        {"a-0": 20, "a-1": 7, "a-2": 3}, {"a-0": 5, "a-1": 7}, {"a-0": 10, "a-1": 2}
    ) == {"a-0": 10, "a-1": 7}
