"""The demo with little data: what stock clients produce comes back equal, and nothing finds
anything.
"""

from __future__ import annotations

import json

import pytest

from replog_pipeline.demo import flights, producers, steps
from replog_pipeline.errors import PipelineError
from replog_pipeline.progress import Progress

SMALL = 2000


def test_two_thousand_flights_come_back_equal(spark, tmp_path, capsys):
    outcome = steps.run(spark, tmp_path / "demo", SMALL, Progress())
    assert outcome.findings == [] and outcome.records == SMALL
    assert (
        spark.read.format("delta").load(str(tmp_path / "demo" / "tables" / steps.AGAIN)).count()
        == SMALL
    )
    assert outcome.page.stat().st_size > 1000
    told = capsys.readouterr().err
    for step in (
        "produced 2,000 flights",
        "$ replog pipeline archive",
        "$ replog pipeline replay",
        "$ replog pipeline compare",
    ):
        assert step in told


def test_a_folder_that_is_in_use_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(PipelineError, match=r"--data: .* is not empty"):
        steps.run(None, tmp_path)


def test_what_a_flight_becomes():
    first = next(flights.flights(1))
    assert (first.key, first.timestamp, first.headers) == (
        b"N14228",
        1_357_034_400_000,
        [("carrier", b"UA"), ("origin", b"EWR")],
    )
    assert json.loads(first.value)["dest"] == "IAH"
    assert all("NaN" not in each.value.decode() for each in flights.flights(SMALL))


def test_tables_that_differ_are_found(spark):
    fields = (
        "key string, value string, partition int, offset long, timestamp long, "
        "timestampType int, headers string"
    )
    rows = [("k", None, 0, offset, 1, 0, None) for offset in range(5)]
    other = [
        *rows[:2],
        ("k", "not null", 0, 2, 1, 0, None),
        ("k", None, 0, 4, 2, 0, None),
        ("k", None, 1, 0, 1, 0, None),
    ]
    first, second = spark.createDataFrame(rows, fields), spark.createDataFrame(other, fields)
    assert steps.differences(first, first) == []
    assert steps.differences(first, second) == ["4 records of the two tables differ"]


def test_a_producer_that_fails_is_one_line():
    assert producers.installed() == ["kafka-python", "confluent-kafka"]
    failed = steps.start("another-client", "127.0.0.1:1", 1, 0, 1)
    with pytest.raises(PipelineError, match=r"^a producer failed: KeyError: 'another-client'$"):
        steps.await_all([failed])
