"""One Spark session and one broker for all tests of this directory. What uses `spark` gets the
marker `spark`.

The broker never deletes by age: a record may carry any timestamp.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.errors import PipelineError
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.kafka_files import serve, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "spark" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores of this machine, Kafka and Delta.

    Where Java or the jars cannot be had its tests are skipped, except under CI=true.
    """
    from replog_pipeline import session

    places = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    try:
        built = session.build("tests", conf=SETTINGS | places, formats=("kafka", "delta"))
    except PipelineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield built
    built.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Our broker as a process."""
    settings = {
        "log.retention.ms": "-1",
        "replica.high.watermark.checkpoint.interval.ms": "200",  # `segments:` reads up to it
    }
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    process.start()
    yield process
    process.stop()


@dataclass(frozen=True)
class KafkaFiles:
    """A log directory of Apache Kafka, and our broker that serves a copy of it."""

    directory: Path
    broker: BrokerProcess

    def log_tail(self) -> str:
        return self.broker.log_tail()


@pytest.fixture(scope="session")
def kafka_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaFiles]:
    """All codecs, headers, transactions that committed, aborted and stayed open: see
    `kafka_files.py`.
    """
    directory = unpack(tmp_path_factory.mktemp("kafka"))
    broker = serve(tmp_path_factory.mktemp("kafka-broker"), directory)
    yield KafkaFiles(directory, broker)
    broker.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"
