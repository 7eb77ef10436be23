"""`audit` through Spark: planted damage in log directories, Apache Kafka's own files, the same
over the wire; and what is refused without Spark.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from kafka.admin import KafkaAdminClient, NewTopic

from replog_pipeline import session, sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import audit
from replog_pipeline.jobs.audit import AuditConfig, cleanup
from replog_pipeline.jobs.audit.check import Facts
from replog_pipeline.jobs.audit.command import command
from replog_pipeline.jobs.audit.directories import (
    SEGMENT,
    gathered,
    judge,
    scan,
    segment_rows,
)
from replog_pipeline.segments.log_folder import folders
from tests.pipeline.kafka_files import serve
from tests.pipeline.records import numbered, produce
from tests.pipeline.replica_folders import batch, checkpoint, high_watermarks, partition
from twisted_broker.wire.records import build_end_marker

AGES = 10**9
"""Seconds after which no transaction hangs."""


def idempotent(base, sequence, inside=False, producer=7):
    return batch(
        base,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=inside,
    )


def end_marker(offset, producer):
    return build_end_marker(
        producer, 0, True, 0, 1_700_000_000_000, base_offset=offset, leader_epoch=0
    )


def flipped(made):
    return made[:-3] + bytes([made[-3] ^ 8]) + made[-2:]


DAMAGE = {
    "sound": {0: [idempotent(0, 0), idempotent(10, 10)], 20: [batch(20), idempotent(30, 20)]},
    "gap": {0: [batch(0), batch(15)]},
    "duplicate": {0: [batch(0), batch(10), batch(10)]},
    "order": {0: [batch(0), batch(10), batch(0), batch(20)]},
    "sequence": {0: [idempotent(0, 0)], 10: [idempotent(10, 20)]},
    "repeated": {0: [idempotent(0, 0), idempotent(10, 10)], 20: [idempotent(20, 10)]},
    "epoch": {0: [batch(0, epoch=3), batch(10, epoch=2)]},
    "crc": {0: [batch(0), flipped(batch(10)), batch(20)]},
    "torn": {0: [batch(0), batch(10)[:-30]], 20: [batch(20)]},
    "hanging": {0: [idempotent(0, 0, inside=True)]},
    "mixed": {0: [idempotent(0, 0, inside=True), idempotent(10, 10)]},
    "short": {0: [batch(0)]},
    "cleaned": {0: [batch(0), batch(500)]},
}
ENDS = {
    "duplicate": 20,
    "order": 30,
    "crc": 30,
    "torn": 30,
    "cleaned": 510,
    "gap": 25,
    "hanging": 10,
    "epoch": 20,
    "short": 20,
}
FOUND = {
    "gap": {"gap"},
    "duplicate": {"duplicate"},
    "order": {"order"},
    "sequence": {"sequence"},
    "repeated": {"duplicate"},
    "epoch": {"epoch"},
    "crc": {"crc"},
    "torn": {"torn segment", "gap"},
    "hanging": {"hanging transaction"},
    "mixed": {"torn transaction", "hanging transaction"},
    "short": {"short"},
}


@pytest.fixture
def damaged(tmp_path):
    for name, segments in DAMAGE.items():
        partition(tmp_path, f"{name}-0", segments)
    high_watermarks(
        tmp_path,
        {
            f"{name}-0": ENDS.get(name, 20 if name in ("sequence", "mixed") else 30)
            for name in DAMAGE
        }
        | {"sound-0": 40},
    )
    checkpoint(tmp_path, "cleaner-offset-checkpoint", {"cleaned-0": 510})
    return tmp_path


def test_every_kind_of_damage_is_found_where_it_was_planted_and_nothing_else(spark, damaged):
    result = audit.run(spark, AuditConfig(sources.parse(f"segments:{damaged}")))
    found: dict[str, set[str]] = {}
    for finding in result.findings:
        found.setdefault(finding.topic, set()).add(finding.kind)
    assert found == FOUND
    assert len(result.partitions) == len(DAMAGE)
    assert "cleaned: cleanup.policy compact (the cleaner's checkpoint)" in result.remarks


def test_the_command_reports_as_json_and_by_its_exit_status(spark, damaged):
    status, told = commanded("--from", f"segments:{damaged}?topics=crc,sound", "--json", "--quiet")
    (finding,) = told["findings"]
    assert (status, finding["kind"], finding["offset"], finding["position"]) == (
        1,
        "crc",
        10,
        len(batch(0)),
    )
    assert finding["file"] == f"{0:020d}.log"
    status, told = commanded(
        "--from",
        f"segments:{damaged}?topics=gap",
        "--cleanup-policy",
        "gap=compact",
        "--json",
        "--quiet",
    )
    assert (status, told["findings"], told["partitions"][0]["holes"]) == (0, [], 5)
    assert told["remarks"] == ["gap: cleanup.policy compact (the option)"]


def commanded(*arguments):
    done = CliRunner().invoke(command, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def test_kafkas_own_files_are_sound_but_for_the_open_transaction(spark, kafka_files):
    result = audit.run(spark, AuditConfig(sources.parse(f"segments:{kafka_files.directory}")))
    assert [(finding.kind, finding.topic) for finding in result.findings] == [
        ("hanging transaction", "rich")
    ]
    result = audit.run(
        spark, AuditConfig(sources.parse(f"segments:{kafka_files.directory}"), hanging_after=AGES)
    )
    assert (result.findings, sum(each.open for each in result.partitions)) == ([], 1)


def test_over_the_wire_markers_are_no_gaps(spark, kafka_files):
    source = sources.parse(f"kafka://{kafka_files.broker.bootstrap}/rich,stamped")
    result = audit.run(spark, AuditConfig(source))
    assert result.findings == []
    assert "rich: cleanup.policy delete (the cluster)" in result.remarks
    markers = sum(each.holes for each in result.partitions if each.topic == "rich")
    assert (
        markers > 2 and f"rich: {markers} offsets are end markers of transactions" in result.remarks
    )


def test_over_the_wire_what_is_missing_beside_markers_is_a_gap(spark, tmp_path):
    """A log of a transaction and its end, and what came after that and is missing. Two batches
    follow: one alone, at the very end, would be dropped by recovery.
    """
    inside = [
        batch(1, is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=0),
        end_marker(11, producer=7),
    ]
    partition(tmp_path / "log", "rich-0", {0: [batch(0, 1), *inside, batch(20), batch(30)]})
    partition(tmp_path / "log", "stamped-0", {0: [batch(0)]})
    checkpoint(tmp_path / "log", "log-start-offset-checkpoint", {"rich-0": 0, "stamped-0": 0})
    broker = serve(tmp_path / "broker", tmp_path / "log")
    try:
        source = sources.parse(f"kafka://{broker.bootstrap}/rich")
        strict, lenient = (
            audit.run(spark, AuditConfig(source, allow_holes=allowed)) for allowed in (0, 8)
        )
    finally:
        broker.stop()
    assert [(each.kind, each.offset, each.problem) for each in strict.findings] == [
        ("gap", 12, "offsets 12..19 are missing (8)")
    ]
    assert "rich: 1 offsets are end markers of transactions" in strict.remarks
    assert lenient.findings == []


def test_segments_that_retention_took_meanwhile_only_move_the_start(tmp_path):
    folder = partition(
        tmp_path, "orders-0", {0: [batch(0)], 10: [batch(10)], 20: [idempotent(20, 40)]}
    )
    high_watermarks(tmp_path, {"orders-0": 30})
    (found,) = folders(str(tmp_path))
    names = [field.split()[0] for field in SEGMENT.split(",")]
    rows = [dict(zip(names, row, strict=True)) for row in segment_rows([found])]
    for base in (0, 10):
        (folder / f"{base:020d}.log").unlink()
    scanned = [each for row in rows for each in scan(row)]
    facts = Facts(
        str(tmp_path),
        "orders",
        0,
        0,
        30,
        compacted=False,
        assumed=True,
        now_ms=0,
        hanging_after_ms=0,
    )
    findings, (summary,) = gathered(
        {"finding": None, "summary": None} | row for row in judge(facts, scanned)
    )
    assert (findings, summary.start, summary.records) == ([], 20, 10)


@pytest.fixture
def no_spark(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "build", refuse)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "segments:/etc"], "no TOPIC-PARTITION folder in /etc"),
        (["--from", "segments:/nowhere/at/all"], "is no directory"),
        (["--from", "files:/etc"], "is no source"),
        (["--from", "segments:{log}?topics=missing"], "no partition of missing"),
        (
            ["--from", "segments:{log}", "--cleanup-policy", "gap=shred"],
            "'shred' is no cleanup policy",
        ),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(no_spark, damaged, arguments, words):
    done = CliRunner().invoke(command, [each.format(log=damaged) for each in arguments])
    assert isinstance(done.exception, PipelineError)
    assert words in str(done.exception) and "\n" not in str(done.exception)


def test_a_policy_may_be_said_for_all_or_one():
    said = cleanup.given(["delete", "a=compact,delete"])
    assert said["a"].compacts and not said[cleanup.ALL].compacts
    assert str(said["a"]) == "compact,delete"


def test_a_topics_policy_is_known_over_the_wire_and_from_the_brokers_own_directory(
    spark, broker, topic
):
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics(
            [
                NewTopic(
                    name=topic,
                    num_partitions=1,
                    replication_factor=1,
                    topic_configs={"cleanup.policy": "compact"},
                )
            ]
        )
    finally:
        admin.close()
    records = [each for each in numbered(30) if each.key is not None]
    produce(broker.bootstrap, topic, records)
    wire = audit.run(spark, AuditConfig(sources.parse(f"kafka://{broker.bootstrap}/{topic}")))
    files = audit.run(spark, AuditConfig(sources.parse(f"segments:{broker.data}?topics={topic}")))
    assert (wire.findings, files.findings) == ([], [])
    assert f"{topic}: cleanup.policy compact (the cluster)" in wire.remarks
    assert f"{topic}: cleanup.policy compact (the metadata log)" in files.remarks
    assert wire.partitions[0].records == len(records)
