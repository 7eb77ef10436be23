"""The same query by DuckDB, in this process: for tables of this machine, without Spark's start.

1. The query is Spark SQL and is translated. `auto` takes DuckDB only where both are known to mean
   the same: no function but those of `SAME`, and columns that both name alike. `duckdb` takes it
   for whatever can be translated.
2. A Delta table is read through `deltalake`, at the version that is there when the query begins; a
   Parquet table by the files that its ledgers name.
3. Timestamps are UTC without a zone, as Spark hands them on. Bytes as text are UTF-8.

Not here: topics and log directories, which only Spark reads; files as a result.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.sql import results
from replog_pipeline.jobs.sql.query import DIALECT
from replog_pipeline.jobs.sql.views import Named, named_once, view_name
from replog_pipeline.lake import table
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.lake.parquet import ParquetTable
from twisted_broker.installed import install

if TYPE_CHECKING:
    from replog_pipeline.jobs.sql.job import SqlConfig

SAME = (
    *(exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg, exp.Coalesce, exp.Case, exp.If, exp.Upper),
    *(exp.Lower, exp.Abs, exp.Cast, exp.TryCast, exp.And, exp.Or, exp.RowNumber, exp.Exists),
)
ROWS_AT_ONCE = 1_000


class NotHereError(Exception):
    """Why DuckDB does not run this query."""


def run(config: SqlConfig, tree: exp.Expr, out: TextIO, *, is_free: bool) -> None:
    """The query's result. NotHereError before anything is written; `is_free`: Spark may run it."""
    check(config, tree, is_free=is_free)
    try:
        import duckdb
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise NotHereError(f"it needs {error.name}: {install('duckdb')}") from None
    connection = duckdb.connect()
    try:
        for name, each in named_once((view_name(each), each) for each in config.named):
            view(connection, name, each)
        found = connection.execute(translated(connection, tree))
        columns = [each[0] for each in found.description or ()]
        first = found.fetchmany(ROWS_AT_ONCE)
    except (duckdb.Error, DeltaError, SqlglotError) as error:
        raise NotHereError(str(error).partition("\n")[0]) from None
    write(config, columns, rows(found, first), out)


def check(config: SqlConfig, tree: exp.Expr, *, is_free: bool) -> None:
    """NotHereError for what only Spark does; where it is free to, also for what may differ."""
    if config.to is not None:
        raise NotHereError("files (--to) are written by Spark")
    for each in config.named:
        if each.source is not None or not table.is_here(each.place):
            raise NotHereError(f"--from {each.place} is no table on this machine")
        if each.at and not each.at.startswith("v"):
            raise NotHereError("a table at a time is read by Spark")
    if not is_free:
        return
    for function in tree.find_all(exp.Func):
        if not isinstance(function, SAME):
            raise NotHereError(f"{function.sql_name()} may mean something else")
    for column in tree.selects if isinstance(tree, exp.Query) else ():
        is_plain = isinstance(column, exp.Alias | exp.Column | exp.Dot | exp.Star)
        if not is_plain and not (
            isinstance(column, exp.AggFunc) and isinstance(column.this, exp.Column | exp.Star)
        ):
            raise NotHereError("a column without a name would have another")


def view(connection: Any, name: str, named: Named) -> None:
    """The table as a view of this name."""
    found = table.existing(None, named.place)
    base = f"replog_{name}"
    if isinstance(found, DeltaTable):
        from deltalake import DeltaTable as Library

        version = int(named.at[1:]) if named.at else None
        connection.register(base, Library(found.files.path(), version).to_pyarrow_dataset())
    else:
        assert isinstance(found, ParquetTable), "a format that this reads"
        places = found.committed_files()
        if not places:
            raise NotHereError(f"{named.place} has no rows")
        files = ", ".join("'" + place.replace("'", "''") + "'" for place in places)
        options = "hive_partitioning=true, union_by_name=true, hive_types={'date': DATE}"
        connection.execute(f"create view {quoted(base)} as from read_parquet([{files}], {options})")
    plain = 'select * replace (make_timestamp(epoch_us("timestamp")) as "timestamp") from '
    connection.execute(f"create view {quoted(name)} as {plain}{quoted(base)}")


def translated(connection: Any, tree: exp.Expr) -> str:
    """In DuckDB's words; a text of bytes is what they are in UTF-8, which a cast of DuckDB is
    not.
    """
    query = copy.deepcopy(tree)
    for each in query.selects if isinstance(query, exp.Query) else ():
        if isinstance(each, exp.Func):
            each.replace(exp.alias_(each.copy(), spark_name(each), quoted=True))
    views = connection.execute(
        "select table_name, column_name, data_type from information_schema.columns"
    ).fetchall()
    tables: dict[str, dict[str, str]] = {}
    for name, column, kind in views:
        is_bytes = kind == "BLOB"
        tables.setdefault(name, {})[column] = "binary" if is_bytes else "string"
    schema: dict[str, object] = {**tables}
    typed = qualify(
        query, schema=schema, dialect=DIALECT, validate_qualify_columns=False, expand_stars=False
    )
    typed = annotate_types(typed, schema=schema, dialect=DIALECT)
    for cast in list(typed.find_all(exp.Cast, exp.TryCast)):
        if cast.to.is_type(*exp.DataType.TEXT_TYPES) and cast.this.is_type("binary"):
            cast.replace(exp.Anonymous(this="decode", expressions=[cast.this]))
    return typed.sql(dialect="duckdb")


def spark_name(each: exp.Expr) -> str:
    """As Spark calls a column without a name."""
    name = each.sql(dialect=DIALECT, normalize_functions="lower", identify=False)
    return name.replace("count(*)", "count(1)")


def rows(found: Any, first: Sequence[Sequence[object]]) -> Iterator[Sequence[object]]:
    while first:
        yield from first
        first = found.fetchmany(ROWS_AT_ONCE)


def write(
    config: SqlConfig, columns: Sequence[str], found: Iterator[Sequence[object]], out: TextIO
) -> None:
    if config.form == "csv":
        results.to_csv(columns, found, out)
    else:
        results.to_table(columns, found, config.limit, out)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def attempted(config: SqlConfig, tree: exp.Expr | None, out: TextIO) -> bool:
    """Whether DuckDB answered. PipelineError where it alone was chosen and cannot."""
    if config.engine == "spark":
        return False
    is_free = config.engine == "auto"
    try:
        if tree is None:
            raise NotHereError("the query is not understood")
        run(config, tree, out, is_free=is_free)
    except NotHereError as error:
        if is_free:
            return False
        raise PipelineError(f"--engine duckdb: {error}; --engine spark may") from None
    return True
