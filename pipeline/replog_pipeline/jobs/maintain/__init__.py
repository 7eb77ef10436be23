"""`maintain`: a table's small files merged, and what killed runs left removed.

`job` is the whole, `command` the command line; the formats do the work (`lake`).
"""

from replog_pipeline.jobs.maintain.job import MaintainConfig, MaintainResult, run

__all__ = ["MaintainConfig", "MaintainResult", "run"]
