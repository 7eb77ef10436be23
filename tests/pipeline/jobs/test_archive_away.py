"""A continuous archive whose brokers go away and come back, on real processes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline import sources
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.progress import Progress
from replog_pipeline.sources import kafka_admin
from replog_pipeline.sources.away import are_away
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACK = "the brokers are back"
SHORT_MS, LONG_MS = 2_000, 60_000
IMPATIENT = {
    "kafka.default.api.timeout.ms": "2000",
    "kafka.request.timeout.ms": "1000",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "2000",
}


@pytest.fixture
def broker(tmp_path: Path, topic: str) -> Iterator[BrokerProcess]:
    """A broker of this test's own, with 40 records in two partitions."""
    process = BrokerProcess(tmp_path / "broker", {"log.retention.ms": "-1"}).start()
    tables.create(process.bootstrap, topic, 2)
    produce(process.bootstrap, topic, numbered(40, 2))
    yield process
    process.stop()


def test_it_waits_for_them_and_takes_what_came_meanwhile(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.StringIO()

    class Told(Stopper):
        """The brokers go after the first look and come back after the next; told to stop when
        the archive has seen that.
        """

        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            if self.looks == 1:
                broker.kill()
                monkeypatch.setattr(kafka_admin, "PATIENCE_MS", SHORT_MS)
            if self.looks == 2:
                assert "do not answer" in said.getvalue() and BACK not in said.getvalue()
                monkeypatch.setattr(kafka_admin, "PATIENCE_MS", LONG_MS)
                broker.start()
                produce(broker.bootstrap, topic, numbered(20, 2, first=40))
            return BACK in said.getvalue()

    config = archive.ArchiveConfig(
        f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake"), "parquet", interval=0.1
    )
    assert archive.run(spark, config, Progress(stream=said), Told()).rows == 60
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(60, 2))
    assert (said.getvalue().count("do not answer"), said.getvalue().count(BACK)) == (1, 1)


def test_a_read_that_loses_its_brokers_is_known_from_other_failures(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    source = sources.KafkaSource(broker.bootstrap, (topic,))
    ends = {(topic, 0): 20, (topic, 1): 20}
    frame = sources.read(
        spark, source, sources.Wanted(start=dict.fromkeys(ends, 0), end=ends, options=IMPATIENT)
    )
    broker.kill()
    with pytest.raises(Exception) as failed:
        frame.collect()
    assert are_away(failed.value)
