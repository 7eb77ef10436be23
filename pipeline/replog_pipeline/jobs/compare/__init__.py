"""`compare`: checks whether the replicas in several log directories are equal.

`ranges` finds what may be compared, `task` reads one piece of all replicas, `findings` combines the
rows of all tasks; `job` is the whole, `command` the command line.
"""

from replog_pipeline.jobs.compare.job import CompareConfig, CompareResult, planned, run

__all__ = ["CompareConfig", "CompareResult", "planned", "run"]
