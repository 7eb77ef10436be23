"""`sql`: a query over topics, log directories and tables, as views.

`job` is the whole, `query` the query's text, `views` names them, `duck` answers without Spark,
`results` writes what comes out, `command` the command line.
"""

from replog_pipeline.jobs.sql.job import SqlConfig, run

__all__ = ["SqlConfig", "run"]
