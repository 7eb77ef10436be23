"""Many small partitions: read by requests of our own in few tasks, with the same rows. What else
these requests read is in `jobs.test_archive_bad_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from replog_pipeline.columns import COLUMNS
from replog_pipeline.sources import KafkaSource, Wanted, connector, extents, own_fetches, read
from replog_pipeline.sources.kafka_admin import offsets_in
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = own_fetches.MANY_RANGES


@pytest.mark.parametrize(
    ("sizes", "cores", "count"),
    [
        ([], 2, 1),
        ([10], 2, 1),
        ([10] * 3_000, 2, 11),
        ([10] * 64, 2, 2),
        ([10] * 64, 32, 32),
        ([1_000_000] * 3, 2, 3),
    ],
)
def test_small_ranges_share_tasks(sizes: list[int], cores: int, count: int) -> None:
    assert own_fetches.slices(sizes, cores) == count


@pytest.mark.parametrize(
    ("ranges", "size", "options", "better"),
    [
        (PARTITIONS, 10, {}, True),
        (PARTITIONS - 1, 10, {}, False),
        (PARTITIONS, own_fetches.SMALL_RANGE + 1, {}, False),
        (PARTITIONS, 0, {}, False),
        (PARTITIONS, 10, {"failOnDataLoss": "false"}, False),
    ],
)
def test_which_ranges_these_requests_read(
    broker: BrokerProcess, ranges: int, size: int, options: dict[str, str], better: bool
) -> None:
    start = {("t", number): 5 for number in range(ranges)}
    end = {key: first + size for key, first in start.items()}
    source = KafkaSource(broker.bootstrap, ("t",))
    wanted = Wanted(COLUMNS, start, end, only_named=True, options=options)
    assert own_fetches.are_better(source, wanted) is better
    assert not own_fetches.are_better(KafkaSource("127.0.0.1:1", ("t",)), wanted)


def test_a_map_of_offsets_as_java_shows_it() -> None:
    text = "{orders-0=12, a.b_c-1-11=7, orders-1=-1}"
    assert offsets_in(text) == {("orders", 0): 12, ("a.b_c-1", 11): 7, ("orders", 1): -1}
    assert offsets_in("{}") == {}


def test_many_small_partitions_are_the_connectors_rows(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    tables.create(broker.bootstrap, topic, PARTITIONS)
    written = numbered(2 * PARTITIONS, PARTITIONS)
    produce(broker.bootstrap, topic, written)
    source = KafkaSource(broker.bootstrap, (topic,))
    extent = extents.extent(spark, source)
    wanted = Wanted(COLUMNS, extent.start, extent.end, only_named=True)
    found = read(spark, source, wanted)
    assert found.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
    assert tables.rows(found) == tables.expected(written)
    assert found.schema == connector.read(spark, source, wanted).schema
