"""The columns `value_decoded` and `decode_error` of an archive's batches.

1. Their type is made anew for every batch, after its last offset is known: a record's schema was
   registered before the record was written, so no schema of the batch is missed.
2. Fields are added to a table and never changed or taken away. A table that has these columns gets
   them in every batch.

Not here: what a value says (`values`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from replog_pipeline.columns import DECODED, ERROR
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake import table
from replog_pipeline.lake.ledger import Ledger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from replog_pipeline.jobs.archive.native_json import NativeJson
    from replog_pipeline.values.settings import Decoding


PARSED = "replog_parsed"


class ValueColumns:
    """Of the batches of one run into `target`."""

    def __init__(self, decoding: "Decoding | None", target: table.ITable) -> None:
        self.decoding, self.target = decoding, target
        self.kind: pa.DataType | None = None

    def added(self, rows: "DataFrame", topics: Sequence[str], ledger: Ledger) -> "DataFrame":
        """The rows with their values decoded; as they are without `--decode`. PipelineError."""
        check(self.decoding, ledger, self.target.files.path())
        if self.decoding is None:
            return rows
        if self.kind is None and ledger.decoded:
            self.kind = table_type(self.target.read())
        from replog_pipeline.jobs.archive.native_json import native_json
        from replog_pipeline.values.column import schemas, type_of

        found = schemas(self.decoding, topics)
        self.kind = type_of(found, self.kind)
        native = native_json(self.decoding, found, self.kind)
        return with_values(rows, self.decoding, self.kind, native)

    def forget(self) -> None:
        """Another writer may have added fields."""
        self.kind = None


def check(decoding: "Decoding | None", ledger: Ledger, place: str) -> None:
    """PipelineError for rows that would lack what the others have."""
    if decoding is None and ledger.decoded:
        raise PipelineError(
            f"the table {place} has decoded values: give --decode and its schema, as before"
        )


def check_before(
    decoding: "Decoding | None", topics: Iterable[str], ledger: Ledger | None, place: str
) -> None:
    """What can be known of it without Spark: also that the registry answers, and has the subjects
    of these topics. PipelineError.
    """
    if ledger is not None:
        check(decoding, ledger, place)
    if decoding is not None and any(topics):
        from replog_pipeline.values.column import schemas

        schemas(decoding, sorted(topics))


def table_type(rows: "DataFrame") -> "pa.DataType | None":
    from pyspark.sql.pandas.types import to_arrow_type

    if DECODED not in rows.columns:
        return None
    return to_arrow_type(rows.schema[DECODED].dataType, timezone="UTC")


def with_values(
    rows: "DataFrame",
    decoding: "Decoding",
    kind: "pa.DataType",
    native: "NativeJson | None" = None,
) -> "DataFrame":
    """What `native` reads does not come to Python."""
    import pyarrow as pa
    from pyspark.sql.functions import col, when
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    from replog_pipeline.values.column import columns_type, decoded

    # Spark reads these annotations: no `from __future__ import annotations` in this module.
    def values(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return decoded(arrays, decoding, kind)

    # The stubs of Spark want the kind beside the annotations, which it warns of.
    returns = from_arrow_type(columns_type(kind))
    decode = arrow_udf(values, returnType=returns)  # type: ignore[call-overload]
    if native is None:
        found = rows.withColumn(DECODED, decode(col("value")))
        return found.select(*rows.columns, f"{DECODED}.{DECODED}", f"{DECODED}.{ERROR}")
    parsed, is_read = col(PARSED), native.is_read(col(PARSED))
    found = rows.withColumn(PARSED, native.parsed(col("value")))
    found = found.withColumn(DECODED, decode(when(~is_read, col("value"))))
    value = when(is_read, native.row(parsed)).otherwise(col(f"{DECODED}.{DECODED}"))
    return found.select(*rows.columns, value.alias(DECODED), f"{DECODED}.{ERROR}")
