"""Builds the Spark session in which every job runs.

1. No master is named here. Spark's own rules decide: `spark-submit --master`, MASTER,
   PYSPARK_SUBMIT_ARGS, spark-defaults.conf, else all cores of this machine.
2. What only the JVM's start can set (the jars on its class path) goes to its command line. Under
   `spark-submit` the JVM runs already: then the jars must have come with `--jars`, and one line
   says so when they did not.
3. On this machine alone nothing listens but on loopback, and the workers run the Python that runs
   this. On a cluster both are Spark's business.
4. What the caller or the user's spark-defaults.conf sets is left as it is.
5. A setting that is a secret is on no command line: it reaches the JVM when that runs.
6. On this machine alone the jars of object stores are on the driver's class path, which serves the
   tasks as well: Spark would copy `spark.jars`, of which these have hundreds of MB, at every start.
7. The zone of the JVMs that it starts is UTC, as the session's: the connector's calendar changes
   timestamps before 1900 by it (`sources.connector`).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replog_pipeline.errors import TRACEBACK, PipelineError
from replog_pipeline.machine import jars, java, jvm_output
from replog_pipeline.sources import connector
from replog_pipeline.stores import places, s3_probe, spark_conf
from twisted_broker.installed import install

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

VERSION = "4.2"
NO_JVM = "JAVA_GATEWAY_EXITED"
PATIENCE_SECONDS = 10.0
IN_UTC = "-Duser.timezone=UTC"
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
NEEDED = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}
"""What the jobs rely on, also in a session that somebody else began."""
DEFAULTS = (
    NEEDED
    | {
        EXECUTOR_OPTIONS: IN_UTC,
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "20",
    }
    | connector.POOLS
)
"""Spark keeps the last jobs and queries with their plans (1,000 of each) also without its UI: a
continuous archive, which makes some with every batch, would fill the heap with them.
"""
OURS = {"spark.ui.showConsoleProgress": "false"}
"""What spark-submit sets by itself and is not wanted: the jobs show the progress."""
ALONE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
    "spark.databricks.delta.snapshotPartitions": "4",
}
"""On this machine alone: loopback, and not hundreds of tasks for what a few do (Spark's defaults
are 200 and Delta's 50).
"""
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
CLASS_PATH = "spark.driver.extraClassPath"
LOG_LEVELS = Path(__file__).absolute().with_name("log4j2.properties")
PROOFS = {
    "kafka": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "s3": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "gcs": "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
}
"""A class of each format, by which it is seen whether its jars are loaded."""


def silent(line: str) -> None:
    """Tells nobody."""


def build(
    app: str,
    *,
    conf: Mapping[str, str] | None = None,
    formats: Sequence[str] = ("kafka",),
    tell: jars.Tell = silent,
) -> SparkSession:
    """A session named `app` that can read and write `formats` ("kafka", "delta"; stores: "s3",
    "gcs"); the running one, if there is one.

    Raises PipelineError with one line when Spark, Java or a jar is missing.
    """
    check_spark()
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(
        "CRITICAL"
    )  # it prints every error's Java stack; the error itself is raised

    if SparkContext._active_spark_context is None:
        wanted = {"spark.app.name": app} | dict(conf or {})
        launch(wanted, formats, tell)
        settings = complete(wanted, formats)
    else:
        settings = NEEDED | dict(conf or {})
    spark = SparkSession.builder.config(map={**settings}).getOrCreate()
    for name in formats:
        check_loaded(spark, name)
    if "s3" in formats:
        quieten_sdk(spark)
    return spark


def check_spark() -> None:
    """Raises PipelineError unless the PySpark that the jars fit is installed."""
    try:
        import pyspark
    except ImportError:
        raise PipelineError(f"Spark is not installed: {install('spark')}") from None
    if not pyspark.__version__.startswith(f"{VERSION}."):
        raise PipelineError(
            f"pyspark {pyspark.__version__} is installed, the connector's jars are for "
            f"{VERSION}: {install('spark')}"
        )


def launch(wanted: Mapping[str, str], formats: Sequence[str], tell: jars.Tell) -> None:
    """Starts the JVM with the jars, unless `spark-submit` did."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    if started_by_spark_submit():
        return
    os.environ["JAVA_HOME"] = str(java.find().for_spark())
    known = spark_conf.known(wanted)
    spark_conf.check_memory(known)
    alone = (known.get("spark.master") or os.environ.get("MASTER") or "local").startswith("local")
    beside = [name for name in formats if alone and name in jars.STORES]
    paths = jars.provide(jars.of(name for name in formats if name not in beside), tell)
    large = jars.provide(jars.of(beside), tell)
    own = joined("spark.jars", ",", paths, wanted) | joined(CLASS_PATH, ":", large, known)
    if DRIVER_OPTIONS not in known:
        own[DRIVER_OPTIONS] = driver_options()
    on_command_line = {
        name: value for name, value in wanted.items() if not spark_conf.is_secret(name)
    }
    conf = SparkConf(loadDefaults=False).setAll(list((on_command_line | own).items()))
    printed = jvm_output.JvmOutput()
    try:
        with printed:
            SparkContext._ensure_initialized(conf=conf)
    except PySparkRuntimeError as error:
        if error.getCondition() != NO_JVM:
            raise
        cause = printed.cause() or "it ends without a word"
        if os.environ.get(TRACEBACK):
            printed.pass_on()
        raise PipelineError(
            f"Spark's Java does not start: {cause}: see --spark-conf, MASTER, PYSPARK_SUBMIT_ARGS "
            "and spark-defaults.conf"
        ) from error
    printed.pass_on()


def driver_options() -> str:
    """Who has a SPARK_CONF_DIR has his own levels of Spark's log there."""
    levels = f" -Dlog4j2.configurationFile={LOG_LEVELS.as_uri()}"
    return IN_UTC + ("" if "SPARK_CONF_DIR" in os.environ else levels)


def joined(
    setting: str, separator: str, paths: Sequence[Path], before: Mapping[str, str]
) -> dict[str, str]:
    """The setting with these paths and what it has without us; empty where there are none."""
    if not paths:
        return {}
    return {setting: separator.join([*map(str, paths), *filter(None, [before.get(setting)])])}


def check_stores(named: Iterable[tuple[str, str]], conf: Mapping[str, str]) -> tuple[str, ...]:
    """The formats that these (setting, place) need besides. PipelineError, before Spark starts, for
    a store that does not answer, or takes no credentials of ours, or lacks the bucket.
    """
    found = [(setting, place) for setting, place in named if places.jars_of([place])]
    if found:
        hadoop = spark_conf.hadoop(settings_known(conf))
        for setting, place in found:
            s3_probe.check(place, setting, hadoop)
    return places.jars_of(place for _, place in found)


def settings_known(conf: Mapping[str, str]) -> dict[str, str]:
    """Of Spark: read from files, or where `spark-submit` has started a JVM, from that."""
    if not started_by_spark_submit():
        return spark_conf.known(conf)
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll()) | dict(conf)


def started_by_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def complete(wanted: Mapping[str, str], formats: Sequence[str]) -> dict[str, str]:
    """`wanted` and our defaults for what neither it nor Spark's own configuration sets."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    given = SparkConf()
    check_master(master(given, wanted))
    local = is_local(given, wanted)
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = DEFAULTS | (ALONE if local else {}) | (DELTA if "delta" in formats else {})
    return (
        {name: value for name, value in defaults.items() if not given.contains(name)}
        | OURS
        | dict(wanted)
    )


def is_local(given: SparkConf, wanted: Mapping[str, str]) -> bool:
    """Whether nothing but this machine takes part."""
    found = master(given, wanted)
    return found.startswith(("local", "spark://127.0.0.1:", "spark://localhost:"))


def master(given: SparkConf, wanted: Mapping[str, str]) -> str:
    return wanted.get("spark.master") or given.get("spark.master", "local") or "local"


def check_master(url: str) -> None:
    """PipelineError when a standalone cluster's master accepts no connection: Spark waits a
    minute for it, and does not say what for. Other kinds of masters are Spark's business.
    """
    failures = []
    for address in url.removeprefix("spark://").split(",") if url.startswith("spark://") else ():
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE_SECONDS).close()
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    if failures:
        raise PipelineError(
            f"the Spark master {url} accepts no connection ({'; '.join(failures)}): is the "
            "address right, and does it run?"
        )


def lost_on_workers(spark: SparkSession, place: str) -> str:
    """One line if `place` would be a folder of each worker, who write to it; empty if not."""
    if ("://" in place and not place.startswith("file:")) or is_local(
        spark.sparkContext.getConf(), {}
    ):
        return ""
    return (
        f"warning: --to {place} is a folder of this machine, but workers of a cluster write "
        "the files, each to its own folder "
        "of that name: name a URI that all of them reach (s3a://, hdfs://) unless it is a "
        "shared mount"
    )


def check_loaded(spark: SparkSession, name: str) -> None:
    """Raises PipelineError if the JVM has not the classes of a format."""
    java_lang = spark._jvm.java.lang  # type: ignore[union-attr]
    try:
        java_lang.Class.forName(
            PROOFS[name], False, java_lang.Thread.currentThread().getContextClassLoader()
        )
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        store = f" --store {name}" if name in jars.STORES else ""
        cure = (
            'start it by `replog pipeline submit`, or with spark-submit --jars "$(replog '
            f'pipeline jars{store} --list)"'
        )
        raise PipelineError(f"this Spark runs without the jars for {name!r}: {cure}") from None


def quieten_sdk(spark: SparkSession) -> None:
    """Let the AWS SDK look for its logger while standard error leads nowhere: a copy of SLF4J in it
    says there, in three lines, that it has none.
    """
    jvm = spark._jvm
    system, before = jvm.java.lang.System, jvm.java.lang.System.err  # type: ignore[union-attr]
    system.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))  # type: ignore[union-attr]
    try:
        jvm.software.amazon.awssdk.thirdparty.org.slf4j.LoggerFactory.getILoggerFactory()  # type: ignore[union-attr]
    finally:
        system.setErr(before)
