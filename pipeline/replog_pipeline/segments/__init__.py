"""Log directories as data: their files, what a consumer may see of them, and their rows, with no
broker running.

| module | owns |
|---|---|
| `log_folder` | partitions, segment files, checkpoints |
| `chunks` | a segment's bytes, whole batches at a time |
| `log_view` | from which offset to which a consumer sees, and what was aborted |
| `options`, `filters` | what a query requests, and what it rules out |
| `plan`, `stream` | which files are read for it, in a batch and in a stream |
| `splits` | the pieces of a large file |
| `rows` | the rows of one file |
| `check` | all that can be wrong inside one segment |
| `datasource` | all of that as Spark's `kafka-segments` |

Only `datasource` knows Spark. Bytes are the business of `pipeline.decoder`.
"""
