"""Timestamps of other centuries over `kafka://`: as they were sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from replog_pipeline import sources
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
