"""`archive`: a topic into a Delta or Parquet table, every record exactly once.

`bad_records` says what becomes of what cannot be a row, `bounds` where it begins and ends.

`job` plans and appends batches, `topics` runs it for each of several tables, `retry` waits while
brokers are away, `signals` ends between two batches; `figures` are shown by `heartbeat`, `metrics`
and `group`; `command` is the command line.
"""

from replog_pipeline.jobs.archive.job import ArchiveConfig, ArchiveResult, run, transform

__all__ = ["ArchiveConfig", "ArchiveResult", "run", "transform"]
