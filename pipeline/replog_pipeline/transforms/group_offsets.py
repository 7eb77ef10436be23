"""Committed offsets out of the records of `__consumer_offsets`.

1. Read are offset commits (key types 0 and 1, value versions 0-4); other types are groups' and
   members' and are passed over.
2. Of a group, topic and partition the last record counts; one without a value means that the offset
   was deleted or has expired.
3. A record that cannot be read is passed over, as a coordinator does when it loads.

Source: FILE_FORMATS 4; Kafka's GroupCoordinatorRecordSerde. Not here: transactional commits that
were aborted (read_committed leaves them out).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from replog_pipeline import flat_rows
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.group_records import OffsetCommitKey, OffsetCommitValue
from twisted_broker.wire.schema import decode, decode_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC: Final = "__consumer_offsets"
COLUMNS = ("partition", "offset", "key", "value")
COMMIT = "group string, topic string, partition int, committed bigint, written bigint, at bigint"
_OFFSET_KEYS: Final = (0, 1)
_NEWEST: Final = 4


def transform(rows: DataFrame) -> DataFrame:
    """Rows of `__consumer_offsets` to group, topic, partition, committed (offset) and written
    (milliseconds since the epoch).
    """
    from pyspark.sql import functions as f

    commits = rows.select("offset", "key", "value").mapInArrow(
        flat_rows.mapper(commit, COMMIT), COMMIT
    )
    last = commits.groupBy("group", "topic", "partition").agg(
        f.max_by(f.struct("committed", "written"), "at").alias("last")
    )
    return last.where(f.col("last.committed") >= 0).select(
        "group", "topic", "partition", "last.committed", "last.written"
    )


def commit(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The row of `COMMIT` of one record, none if it is another kind; `committed` is -1 for a
    deleted offset, `at` the record's own offset.
    """
    key, value = row["key"], row["value"]
    if key is None or len(key) < 2 or int.from_bytes(key[:2], "big") not in _OFFSET_KEYS:
        return
    try:
        name = decode(OffsetCommitKey, key, 0, 2)
        told = None if value is None else _value(value)
    except WireError:
        return
    committed, written = (-1, -1) if told is None else (told.offset, told.commit_timestamp)
    yield {
        "group": name.group,
        "topic": name.topic,
        "partition": name.partition,
        "committed": committed,
        "written": written,
        "at": row["offset"],
    }


def _value(value: bytes) -> OffsetCommitValue:
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not 0 <= version <= _NEWEST:
        raise WireError(f"an offset commit of version {version}")
    told: OffsetCommitValue = decode_from(OffsetCommitValue, value, version, 2)[0]
    return told
