"""What others see of an archive: the heartbeat line, Prometheus metrics, offsets of a group."""

from __future__ import annotations

import io
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from kafka import KafkaAdminClient

from replog_pipeline.cli import pipeline
from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive import metrics
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.group import RENEW_SECONDS, Group
from replog_pipeline.jobs.archive.heartbeat import heartbeat
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.progress import Progress
from replog_pipeline.sources import kafka_admin
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 60


def figures() -> Figures:
    found = Figures(wall=lambda: 1_672_531_200.0)
    found.looked({("a", 0): 900, ("a", 1): 500}, {("a", 0): 900, ("a", 1): 100})
    return found


def test_the_line() -> None:
    found = figures()
    assert str(found) == (
        "0 records in 0 batches since the start; 400 offsets behind; last commit: none yet"
    )
    found.committed(1_200, 2.5)
    found.looked({("a", 1): 500}, {("a", 1): 500})
    assert str(found) == (
        "1,200 records in 1 batches since the start; 0 offsets behind; "
        "last commit: 2023-01-01 00:00:00 UTC"
    )
    found.tables, found.failing = 3, 1
    assert str(found).startswith("3 tables, ") and "start, 1 of them refused; 0" in str(found)


def test_a_topic_that_is_gone_has_no_lag() -> None:
    found = figures()
    found.looked({("b", 0): 7}, {})
    found.forgotten("a")
    assert found.lag == {("b", 0): 7}


def test_it_beats_while_a_batch_is_at_work() -> None:
    said = io.StringIO()
    with heartbeat(figures(), Progress(stream=said), 0.001):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while said.getvalue().count("\n") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert set(said.getvalue().splitlines()) == {f"archive: {figures()}"}


def test_prometheus_reads_them() -> None:
    found = figures()
    found.committed(12, 1.5)
    with metrics.serving(found, 0) as address, urlopen(address) as answer:  # noqa: S310  our own
        text = answer.read().decode()
    lines = {line for line in text.splitlines() if not line.startswith("#")}
    assert lines == {
        "replog_archive_rows_total 12.0",
        "replog_archive_batch_seconds_count 1.0",
        "replog_archive_batch_seconds_sum 1.5",
        "replog_archive_tables 1.0",
        "replog_archive_failing_tables 0.0",
        "replog_archive_last_commit_timestamp_seconds 1.6725312e+09",
        'replog_archive_lag{partition="0",topic="a"} 0.0',
        'replog_archive_lag{partition="1",topic="a"} 400.0',
    }
    with pytest.raises(OSError, match="refused"):
        urlopen(address)  # noqa: S310  our own


def test_a_port_that_is_taken_and_a_group_without_a_cluster_are_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = pytest.raises(PipelineError, match=f"--metrics-port {port}: Address already in")
        with in_use, metrics.serving(Figures(), port):
            pass
    line = ["archive", "--from", "segments:/x", "--to", str(tmp_path / "t"), "--group", "g"]
    told = CliRunner().invoke(pipeline, line)
    assert told.exit_code == 2 and "--group: name a group, and a cluster" in told.stderr


def test_only_what_is_new_is_committed_and_all_of_it_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Offsets] = []
    now = [0.0]
    monkeypatch.setattr(kafka_admin, "check_group_is_free", lambda *_: None)
    monkeypatch.setattr(kafka_admin, "commit_group", lambda *given: sent.append(given[-1]))
    made = Group(None, KafkaCluster("h:1"), "g", lambda: now[0])
    for offsets in ({("a", 0): 1, ("a", 1): 1}, {("a", 0): 1, ("a", 1): 2}, {("a", 0): 1}):
        made.reached(offsets)
    assert sent == [{("a", 0): 1, ("a", 1): 1}, {("a", 1): 2}]
    now[0] = RENEW_SECONDS
    made.reached({("a", 0): 1, ("a", 1): 2})
    assert sent[2:] == [{("a", 0): 1, ("a", 1): 2}]


def committed(bootstrap: str, name: str) -> dict[tuple[str, int], int]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = admin.list_group_offsets({name: None})[name]
        return {(key.topic, key.partition): value.offset for key, value in found.items()}
    finally:
        admin.close()


def test_a_group_shows_what_the_table_has_reached(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Also when the run that wrote the batch died before it could commit them."""
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, numbered(40, 2))
    source, lake = f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake")
    archive.run(spark, archive.ArchiveConfig(source, lake, "parquet"))
    seen = Figures()
    config = archive.ArchiveConfig(source, lake, group=f"{topic}-archive")
    assert archive.run(spark, config, figures=seen).rows == 0
    assert committed(broker.bootstrap, f"{topic}-archive") == {(topic, 0): 20, (topic, 1): 20}
    produce(broker.bootstrap, topic, numbered(10, 2, first=40))
    assert archive.run(spark, config, figures=seen).rows == 10
    assert committed(broker.bootstrap, f"{topic}-archive") == {(topic, 0): 25, (topic, 1): 25}
    assert (seen.rows, seen.batches, sum(seen.lag.values())) == (10, 1, 0)

    # Not kafka-python's: its poll loses the end of a rebalance that takes longer than itself.
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-archive"})
    try:
        member.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.05)
        with pytest.raises(PipelineError, match="consumers are members of this group"):
            archive.run(spark, config)
        with pytest.raises(PipelineError, match="consumers are members of this group"):
            kafka_admin.commit_group(
                spark, KafkaCluster(broker.bootstrap), f"{topic}-archive", {(topic, 0): 1}
            )
    finally:
        member.close()
