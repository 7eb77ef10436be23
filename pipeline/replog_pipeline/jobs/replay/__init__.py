"""`replay`: a table, a log directory or a topic back into a topic, as it was.

`origin` is what is read, `target_topic` what is written to, `job` runs the tasks of
`replog_pipeline.replay` that copy the one into the other; `command` is the command line.
"""

from replog_pipeline.jobs.replay.job import ReplayConfig, ReplayResult, run, transform

__all__ = ["ReplayConfig", "ReplayResult", "run", "transform"]
