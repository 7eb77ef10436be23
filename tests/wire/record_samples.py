"""Records that the tests of record formats share: what the golden files hold, and Hypothesis
strategies.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from twisted_broker.wire.records import BatchBuilder, Record

GOLDEN = Path(__file__).parent / "golden" / "records"
FIRST_TIMESTAMP = 1_700_000_000_000
GOLDEN_HEADERS: list[tuple[str, bytes | None]] = [
    ("empty", b""),
    ("null", None),
    ("snow\u2603", b"x"),
]


def golden_record(
    index: int, offset: int, timestamp: int | None = None, with_headers: bool = True
) -> Record:
    """Record `index` of what was sent to Apache Kafka, or built with its Java client, to make
    the golden files.
    """
    return Record(
        offset,
        FIRST_TIMESTAMP + index * 1000 if timestamp is None else timestamp,
        None if index % 4 == 0 else b"key-%d" % index,
        None if index % 5 == 4 else b"value of record %d " % index * 4,
        [("trace", b"%d" % index), *GOLDEN_HEADERS] if with_headers and index % 3 == 0 else [],
    )


def fill(builder: BatchBuilder, records: list[Record]) -> BatchBuilder:
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder


def small_batch(codec: int = 0, count: int = 3) -> bytes:
    return fill(
        BatchBuilder(codec=codec), [golden_record(index, index) for index in range(count)]
    ).build()


content = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=10), content), max_size=4)
timestamps = st.integers(min_value=-1, max_value=2**45)
rows = st.tuples(timestamps, content, content, header_lists)
row_lists = st.lists(rows, min_size=1, max_size=12)
