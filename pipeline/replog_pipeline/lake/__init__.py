"""Tables of records on a lake: Delta or Parquet, each batch of rows appended at once together with
the offsets it brings the table to.

A table holds the connector's columns (`columns.COLUMNS`) and `date`, the UTC day of the timestamp,
by which it is partitioned. Its `Ledger` has the offsets that it took from its topics. The number of
the batch decides who may append: of two that append batch 8, one fails and writes nothing.
There is no checkpoint beside the table, so none can be lost.

| module | owns |
|---|---|
| `ledger` | which offsets a table has taken, as text and back |
| `guards` | what may be appended next, and what stops an archive |
| `files` | the few calls on files, local or through Hadoop |
| `delta`, `parquet` | where each format keeps the ledger, and what makes an append atomic |
| `last_values` | what a batch makes of a table that holds the last value of each key |
| `timestamps` | microseconds in UTC, in both |
| `file_sizing` | how many files a batch becomes, and which are merged |
| `maintained` | what merging came to |
| `table` | which of the two lies at a path |
"""
