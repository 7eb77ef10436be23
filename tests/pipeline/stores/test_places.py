"""What is refused of a place by its URI alone, and which jars it needs."""

from __future__ import annotations

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.stores import places


def test_each_store_brings_its_jars() -> None:
    named = ["lake/a", "s3a://b/x", "gs://b/y", "s3a://b/z", "hdfs://h/x", "file:/x"]
    assert places.jars_of(named) == ("s3", "gcs")


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("s3://bucket/t", "write s3a://BUCKET/TABLE"),
        ("s3n://bucket/t", "write s3a://BUCKET/TABLE"),
        ("s3a://bucket", "name a bucket and a folder"),
        ("s3a://bucket/", "name a bucket and a folder"),
        ("s3a:///t", "name a bucket and a folder"),
        ("gs://", "name a bucket and a folder"),
        ("s3a://AKIA:hush@bucket/t", "holds no credentials"),
        ("s3a://host:9000/t", "holds no credentials and no port"),
    ],
)
def test_what_names_no_table(place: str, line: str) -> None:
    with pytest.raises(PipelineError) as raised:
        places.check(place, "--to")
    assert str(raised.value).startswith("--to") and line in str(raised.value)
    assert "hush" not in str(raised.value)


def test_the_rest_is_sparks() -> None:
    for place in ("lake", "file:/lake", "hdfs://h:8020/lake", "abfss://c@a/lake", "s3a://b/t"):
        places.check(place, "--to")
    places.check("s3a://bucket", "--to", is_table=False)


def test_a_parquet_tables_ledger_is_refused_where_no_rename_is_atomic() -> None:
    for place in ("s3a://b/t", "gs://b/t", "abfss://c@a/t"):
        with pytest.raises(PipelineError, match=r"^--to: .* renames that are atomic, .*: use Delt"):
            places.check_ledger(place, "parquet", "--to")
        places.check_ledger(place, "delta", "--to")
    for place in ("lake/t", "file:/t", "hdfs://h/t"):
        places.check_ledger(place, "parquet", "--to")
