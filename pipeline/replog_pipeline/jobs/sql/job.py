"""`sql`: a query of Spark SQL over topics, log directories and tables.

1. Only a query runs: no statement that makes, changes or drops something.
2. What the query names wrong is one line that says which views and columns there are.
3. `to` is written by Spark as a folder, and must not be there.

Source: Spark SQL. Not here: the same by DuckDB (`duck`); streams (`docs/STREAMING.md` has a
program).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from replog_pipeline.errors import PipelineError, as_pipeline_error, root_line
from replog_pipeline.jobs.sql import query, results, views
from replog_pipeline.lake import files
from replog_pipeline.stores import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp

ROWS_SHOWN = 1000
FORMATS = ("table", "csv", "parquet")
ENGINES = ("auto", "duckdb", "spark")


@dataclass(frozen=True)
class SqlConfig:
    """`form`: one of `FORMATS`; a table has no `to`, Parquet must have one, CSV goes to standard
    output without. `limit`: rows of a table. `engine`: of `ENGINES`; what calls `run` has Spark.
    """

    query: str
    named: Sequence[views.Named]
    form: str = "table"
    to: str | None = None
    limit: int = ROWS_SHOWN
    engine: str = ENGINES[0]


def check(config: SqlConfig) -> exp.Expr | None:
    """Without Spark: the query, where it is understood. Raises PipelineError."""
    tree = query.parsed(config.query, is_sure=config.engine != "spark")
    if config.form == "parquet" and config.to is None:
        raise PipelineError("--format parquet: say where to, with --to FOLDER")
    if config.form == "table" and config.to is not None:
        raise PipelineError("--to: choose --format csv or parquet")
    if config.to is not None:
        places.check(config.to, "--to")
    folder = None if config.to is None else files.local(config.to)
    if folder is not None:
        if folder.exists():
            raise PipelineError(f"--to {config.to}: it is there already; name a new folder")
        files.check_writable(folder)
    views.check(config.named)
    return tree


@as_pipeline_error
def run(spark: SparkSession, config: SqlConfig, out: TextIO | None = None) -> None:
    """Raises PipelineError. The session has the views while it runs."""
    with views.created(spark, config.named) as found:
        write(answer(spark, config.query, found), config, out or sys.stdout)


def write(frame: DataFrame, config: SqlConfig, out: TextIO) -> None:
    if config.to is not None:
        writer = frame.write.format(config.form).mode("errorifexists")
        (writer.option("header", "true") if config.form == "csv" else writer).save(config.to)
        return
    rows = frame.toLocalIterator()
    if config.form == "csv":
        results.to_csv(frame.columns, rows, out)
    else:
        results.to_table(frame.columns, rows, config.limit, out)


def answer(spark: SparkSession, asked: str, found: Sequence[str]) -> DataFrame:
    """Nothing has run yet."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException

    text = asked.strip().rstrip(";")
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parser.parseQuery(text)
        return spark.sql(text)
    except ParseException as error:
        raise PipelineError(f"the query is none that Spark can read: {first_line(error)}") from None
    except AnalysisException as error:
        there = ", ".join(map(views.quoted, found))
        hint = f"; there is: {there}" if "TABLE_OR_VIEW_NOT_FOUND" in str(error) else ""
        raise PipelineError(f"the query: {first_line(error)}{hint}") from None
    except Py4JJavaError as error:
        raise PipelineError(f"the query: {root_line(error)}") from None


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
