"""Tables of records on a lake: Delta or Parquet, each batch of rows appended at once together with
the offsets it brings the table to.

A table holds the connector's columns (`columns.COLUMNS`) and `date`, the UTC day of the timestamp,
by which it is partitioned. What it has taken from its topics stands in its `Ledger`; who may append
is decided by the number of the batch: of two that append batch 8, one loses and writes nothing.
There is no checkpoint beside the table, so none can be lost.

| module | owns |
|---|---|
| `ledger` | what a table has taken, as text and back |
| `guards` | what may be appended next, and what stops an archive |
| `files` | the few calls on files, local or through Hadoop |
| `delta`, `parquet` | where each format keeps the ledger, and what makes an append atomic |
| `timestamps` | microseconds in UTC, in both |
| `table` | which of the two lies at a path |
"""
