"""What the pipeline needs of this machine, found or fetched: a Java, and the jars that PySpark
lacks.

`java` finds the one, `jars` the others, through `ivy` (Spark's own resolver, with `trust` where
Java does not know a certificate), and keeps them in `cache`; `doctor` says what lacks,
`jars_command` fetches beforehand. Nothing here starts Spark.
"""
