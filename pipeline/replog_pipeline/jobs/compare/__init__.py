"""`compare`: do the replicas in several log directories hold the same?

`ranges` says what may be compared, `task` reads one piece of all replicas, `findings` says what the
rows of all tasks mean together; `job` is the whole, `command` the command line.
"""

from replog_pipeline.jobs.compare.job import CompareConfig, CompareResult, planned, run

__all__ = ["CompareConfig", "CompareResult", "planned", "run"]
