"""`report`: what is in topics, as CSV tables and as one HTML page.

`counts` asks the source, `batch_sizes` its segments; `pipeline.report` draws; `job` is the whole,
`command` the command line.
"""

from replog_pipeline.jobs.report.job import ReportConfig, ReportResult, run

__all__ = ["ReportConfig", "ReportResult", "run"]
