"""`forget`: all records of some keys out of a table, for good.

`job` is the whole, `command` the command line; the mark is `lake.forgotten`'s.
"""

from replog_pipeline.jobs.forget.job import ForgetConfig, ForgetResult, run

__all__ = ["ForgetConfig", "ForgetResult", "run"]
