"""Timestamps of other centuries over `kafka://`: as they were sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from replog_pipeline import session, sources
from replog_pipeline.cli import pipeline
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, Written, produce

# Not those that the connector makes one with the next: the old calendar's 29 February of 1000 is
# 1000-03-06.
DAYS = (
    "0001-01-01", "0300-02-27", "0999-12-31", "1000-02-28", "1000-03-04", "1000-03-08",
    "1500-01-01", "1500-02-28", "1500-03-01", "1582-10-04", "1582-10-05", "1582-10-14",
    "1582-10-15", "1700-03-01", "1883-11-20", "1899-12-31", "1900-01-01", "1900-12-31",
    "1969-12-31",
)  # fmt: skip


def milliseconds(day: str) -> int:
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def zone(spark, request) -> Iterator[str]:
    """The JVM's own, which the connector's calendar takes."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(request.param))
    yield request.param
    zones.setDefault(before)


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"], indirect=True)
def test_timestamps_of_old_are_as_they_were_sent(spark, broker, topic, zone) -> None:
    """From a cluster and from its log directory."""
    sent = [
        Written(0, b"k", b"v", milliseconds(day) + more)
        for day in DAYS
        for more in (0, 1, 3_600_000, 86_399_999)
    ]
    sent += [Written(0, b"k", b"v", OLD_MS)]
    tables.create(broker.bootstrap, topic, 1, **{"message.timestamp.after.max.ms": str(2**62)})
    produce(broker.bootstrap, topic, sent)
    wire = sources.read(spark, sources.parse(f"kafka://{broker.bootstrap}/{topic}"))
    assert tables.rows(wire) == tables.expected(sent)
    tables.await_files(broker, topic, len(sent))
    files = sources.read(spark, sources.parse(f"segments:{broker.data}?topics={topic}"))
    assert tables.rows(files) == tables.expected(sent)


def test_the_zone_of_the_jvm_is_utc(spark) -> None:
    """Asia/Kolkata, whose time went back by minutes in 1906, would lose the instants between."""
    assert session.IN_UTC in spark.conf.get(session.DRIVER_OPTIONS).split()
    assert session.IN_UTC in spark.conf.get(session.EXECUTOR_OPTIONS).split()
    assert spark._jvm.java.util.TimeZone.getDefault().getID() == "UTC"


@pytest.fixture(scope="module")
def late(broker) -> str:
    """A topic with a record that no table holds."""
    name, most = "late", (2**63 - 1) // 1000
    tables.create(broker.bootstrap, name, 2, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    sent = [Written(1, b"k", b"v", at) for at in (OLD_MS, most, most + 1, OLD_MS)]
    produce(broker.bootstrap, name, sent)
    return name


@pytest.mark.parametrize(
    "job",
    [
        ("archive", "--to", "{tmp}/lake"),
        ("audit",),
        ("replay", "--to", "kafka://{bootstrap}/late-copy"),
        ("report", "--to", "{tmp}/report"),
        ("sql", "select count(*) from late"),
        ("sql", "select partition, offset from late"),
    ],
    ids=" ".join,
)
def test_a_record_whose_timestamp_spark_does_not_hold_is_named(
    spark, broker, late, tmp_path, job
) -> None:
    words = [each.format(tmp=tmp_path, bootstrap=broker.bootstrap) for each in job]
    source = f"kafka://{broker.bootstrap}/{late}"
    done = CliRunner().invoke(pipeline, [*words, "--from", source, "--quiet"])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert "late-1: the record at offset 2 has a timestamp that Spark cannot hold" in line
    assert "(9223372036854776 ms)" in line and "kafka-delete-records, offset 3" in line
    assert "--allow-gaps" in line
