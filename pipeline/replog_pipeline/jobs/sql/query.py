"""The query as text: whether it is one, before an engine starts.

1. Only one query, and nothing that makes, changes or drops something.
2. The parser reads nearly all of Spark's SQL. What it cannot read is refused, unless Spark alone
   was chosen: then Spark says whether it can.

Source: sqlglot, whose dialect is Spark's. Not here: what the names in it mean (`views`).
"""

from __future__ import annotations

import logging

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from replog_pipeline.errors import PipelineError

DIALECT = "spark"
OTHER_QUERIES = ("values", "table")
"""What begins so is a query of Spark, and none to the parser."""


def parsed(query: str, *, is_sure: bool) -> exp.Expr | None:
    """The one query in it. PipelineError for anything else; where the parser is not to be sure of
    what it cannot read, None.
    """
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # it warns of what it passes over
    try:
        found = [each for each in sqlglot.parse(query, read=DIALECT) if each is not None]
    except SqlglotError as error:
        if is_sure:
            raise PipelineError(f"the query is none: {said(error)}") from None
        return None
    if not found:
        raise PipelineError("the query is empty: write one, as 'select count(*) from TOPIC'")
    if len(found) > 1:
        raise PipelineError(f"the query is {len(found)} statements: write one")
    statement = found[0]
    if isinstance(statement, exp.Query) or query.split(None, 1)[0].lower() in OTHER_QUERIES:
        return statement
    kind = str(statement.this) if isinstance(statement, exp.Command) else statement.key
    raise PipelineError(
        f"only queries run, which change nothing: {kind.lower()!r} is none; begin with select, "
        "with or values"
    )


def said(error: SqlglotError) -> str:
    """One line, with the place."""
    for each in getattr(error, "errors", ()):
        place = f"line {each['line']}, column {each['col']}: " if each.get("line") else ""
        return f"{place}{str(each['description']).rstrip('.')} at {each.get('highlight')!r}"
    return str(error).partition("\n")[0]
