"""The sources: topics of a cluster through the official connector, log directories through our data
source. Both give the same columns.

    source = parse("kafka://HOST:PORT/TOPIC")
    frame = read(spark, source, Wanted(columns=("offset", "value"), start={("TOPIC", 0): 17}))

No job depends on which of the two it reads; `Wanted` says what is read of a source.

| module | owns |
|---|---|
| `urls` | what a command line calls a source |
| `wanted` | what is read of it: columns, offsets, isolation |
| `reading` | a DataFrame of either |
| `connector`, `directories` | the two sources |
| `extents` | the offsets that a source has now |
| `topics`, `reachable` | its topics and partitions; of a cluster before Spark starts |
| `client_config` | `--kafka-config`, `--kafka-option` |
| `kafka_admin` | queries to a cluster |
"""

from replog_pipeline.sources.reading import read, read_stream
from replog_pipeline.sources.urls import (
    SHAPES,
    KafkaPattern,
    KafkaSource,
    SegmentsSource,
    Source,
    parse,
    parse_pattern,
    split,
)
from replog_pipeline.sources.wanted import Wanted

__all__ = [
    "SHAPES",
    "KafkaPattern",
    "KafkaSource",
    "SegmentsSource",
    "Source",
    "Wanted",
    "parse",
    "parse_pattern",
    "read",
    "read_stream",
    "split",
]
