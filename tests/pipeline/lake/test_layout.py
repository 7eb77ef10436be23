"""What `--partition-by` takes; a table keeps what its first batch chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, maintain
from replog_pipeline.lake import layout, table
from replog_pipeline.lake.layout import BY_DATE, Layout
from replog_pipeline.lake.ledger import Ledger, from_text
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHOSEN = Layout(("partition", "date"))


def test_columns_that_can_be_chosen() -> None:
    assert layout.parse(None) is None
    assert layout.parse("partition, date") == CHOSEN
    for partition_by, line in (
        ("offset", "--partition-by: 'offset' is none of date, topic, partition"),
        ("", "'' is none of"),
        ("date,date", "a column comes twice"),
    ):
        with pytest.raises(PipelineError, match=line):
            layout.parse(partition_by)


def test_a_table_that_cannot_have_it_or_has_another() -> None:
    layout.check(None, "parquet", True, 3, CHOSEN)
    layout.check(CHOSEN, "delta", False, 3, CHOSEN)
    for form, upsert, batch, line in (
        ("parquet", False, 0, "--partition-by .*: a Parquet table lies in folders by date"),
        ("delta", True, 0, "of the last values has no folders"),
        ("delta", False, 3, "the table has --partition-by date since its first batch"),
    ):
        with pytest.raises(PipelineError, match=line):
            layout.check(CHOSEN, form, upsert, batch, BY_DATE)


def test_the_ledger_has_it() -> None:
    ledger = replace(Ledger().after({"t": None}, {("t", 0): 6}), layout=CHOSEN)
    assert from_text(ledger.to_text()) == ledger
    assert "layout" not in replace(ledger, layout=BY_DATE).to_text()


def test_a_table_in_other_folders_grows_and_is_maintained(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    tables.create(broker.bootstrap, topic, 2)
    lake, written = tmp_path / "lake", numbered(40, 2)
    config = archive.ArchiveConfig(f"kafka://{broker.bootstrap}/{topic}", str(lake))
    chosen = replace(config, layout=CHOSEN)
    for part in (written[:20], written[20:]):
        produce(broker.bootstrap, topic, part)
        archive.run(spark, chosen)
        chosen = config
    maintain.run(spark, maintain.MaintainConfig(str(lake)))
    assert tables.table_rows(spark, lake) == tables.expected(written)
    assert {each.name for each in lake.glob("partition=*")} == {"partition=0", "partition=1"}
    assert {each.name for each in lake.glob("partition=*/*")} == {"date=2023-01-01"}
    assert table.existing(spark, str(lake)).ledger().layout == CHOSEN
    with pytest.raises(PipelineError, match="the table has --partition-by partition,date"):
        archive.run(spark, replace(config, layout=BY_DATE))
