"""What `report` counts in segments: sizes of batches, and what their codecs save.

1. A segment becomes a few rows: per codec and power of two of the batch's size. `stored` and
   `inflated` are the bytes of records as they lie and before compression, headers of batches
   excluded; only batches whose records can be read count, and no control batches.

Not here: damage (`audit` reports it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from replog_pipeline import flat_rows
from replog_pipeline.decoder.headers import codecs, last_offsets
from replog_pipeline.segments.check import check
from replog_pipeline.transforms.producers import is_control
from twisted_broker.wire.records import HEADER_BYTES, LOG_OVERHEAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENT = "topic string, partition int, path string, start bigint, end bigint"
SIZES = (
    "topic string, codec string, bucket int, batches bigint, records bigint, stored "
    "bigint, inflated bigint"
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def transform(segments: DataFrame) -> DataFrame:
    """Rows of `SEGMENT` (offsets [start, end) of a file) to rows of `SIZES`, one per topic,
    codec and bucket: batches of 2^bucket bytes and more.
    """
    from pyspark.sql import functions as f

    counted = segments.mapInArrow(flat_rows.mapper(sizes, SIZES), SIZES)
    sums = [f.sum(name).alias(name) for name in ("batches", "records", "stored", "inflated")]
    return counted.groupBy("topic", "codec", "bucket").agg(*sums)


def sizes(segment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `SIZES` of one segment."""
    found = check(segment["path"])
    table = found.headers
    chosen = (
        (found.inflated >= 0)
        & ~is_control(table)
        & (last_offsets(table) >= segment["start"])
        & (table["baseOffset"] < segment["end"])
    )
    table, inflated = table[chosen], found.inflated[chosen]
    size = table["length"].astype(np.int64) + LOG_OVERHEAD
    codec, bucket = codecs(table).astype(np.int64), np.log2(np.maximum(size, 1)).astype(np.int64)
    kinds, kind = np.unique(codec * 64 + bucket, return_inverse=True)
    sums = [
        np.bincount(kind, weights, len(kinds)).astype(np.int64)
        for weights in (None, table["recordCount"], size - HEADER_BYTES, inflated)
    ]
    for number, each in enumerate(kinds.tolist()):
        names = {"topic": segment["topic"], "codec": CODECS[each // 64], "bucket": each % 64}
        yield names | dict(
            zip(
                ("batches", "records", "stored", "inflated"),
                (int(column[number]) for column in sums),
                strict=True,
            )
        )
