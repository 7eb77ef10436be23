"""One package per job: in `job` a frozen configuration, `run(spark, config)` and a result with
`findings` and `to_json()`; in `command` the command.

What a job needs of Spark is imported when it runs; jobs do not import one another.
"""
