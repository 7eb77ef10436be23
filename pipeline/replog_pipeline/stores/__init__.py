"""Tables on object stores: which places those are, what is known of them before Spark starts.

| module | owns |
|---|---|
| `places` | which store a URI names, which jars it needs, and what is refused of it |
| `spark_conf` | `--spark-conf`, and Spark's settings as far as they are known without a JVM |
| `s3_probe` | whether an S3 server answers, takes the credentials and has the bucket |

Not here: the calls on files (`lake.hadoop_files`), the jars themselves (`machine.jars`).
"""
