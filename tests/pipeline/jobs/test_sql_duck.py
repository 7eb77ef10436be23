"""`sql` by DuckDB: the same answers without Spark, or why Spark is needed. No Spark here: the
tables are made by `deltalake` and by pyarrow. `test_sql` compares the engines.
"""

from __future__ import annotations

import datetime
import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.sql import duck, views
from replog_pipeline.jobs.sql.command import command
from replog_pipeline.jobs.sql.job import SqlConfig, check
from replog_pipeline.kafka_cluster import PLAINTEXT
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import ParquetTable

DAY = datetime.date(2023, 1, 1)
ROWS = pa.table(
    {
        "key": pa.array([b"a", None, b"b"], pa.binary()),
        "value": pa.array([b"x\xc3\xa9", b"\xff", None], pa.binary()),
        "partition": pa.array([0, 0, 1], pa.int32()),
        "offset": pa.array([1, 2, 1], pa.int64()),
        "timestamp": pa.array([1_672_531_200_000_000] * 2 + [None], pa.timestamp("us", "UTC")),
        "value_decoded": pa.array(
            [{"to": {"city": "Umea"}, "n": 1}, None, {"to": None, "n": 3}],
            pa.struct([("to", pa.struct([("city", pa.string())])), ("n", pa.int64())]),
        ),
    }
)


@pytest.fixture
def orders(tmp_path: Path) -> str:
    place = str(tmp_path / "orders")
    write_deltalake(
        place, ROWS.append_column("date", pa.array([DAY, DAY, None])), partition_by=["date"]
    )
    return place


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A Parquet table, a file of whose last batch waits in staging."""
    table = ParquetTable(None, LocalFiles(tmp_path / "plain"))
    after = Ledger()
    for number, folder in enumerate(("", "_replog/staging/2/")):
        name = f"date=2023-01-0{number + 1}/part.parquet"
        place = tmp_path / "plain" / folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(ROWS.slice(number * 2, 2), place)
        after = after.after({"t": None}, {("t", 0): number})
        staging = f"_replog/staging/{number + 1}"
        entry = {"replog": after.to_json(), "files": [name], "staging": staging}
        table.commit(after, entry)
    return str(tmp_path / "plain")


def asked(query: str, *froms: str, engine: str = "auto") -> str | None:
    """As CSV; None where Spark is needed."""
    config = SqlConfig(query, views.given(froms, PLAINTEXT), "csv", engine=engine)
    out = io.StringIO()
    return out.getvalue() if duck.attempted(config, check(config), out) else None


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("select count(*) from orders", "count(1)\n3\n"),
        ("SELECT COUNT(*), sum(offset) FROM orders", "count(1),sum(offset)\n3,4\n"),
        (
            "select date, count(*) as n from orders group by date order by date",
            "date,n\n,1\n2023-01-01,2\n",
        ),
        ("select cast(value as string) v from orders where key = 'a'", "v\nxé\n"),
        ("select string(key) as k from orders where value is null", "k\nb\n"),
        (
            "select value, timestamp from orders where offset = 2",
            "value,timestamp\n0xff,2023-01-01 00:00:00\n",
        ),
        (
            "select value_decoded.to.city from orders where value is not null and `offset` < 2",
            "city\nUmea\n",
        ),
        (
            "with k as (select key from orders) select string(key) k from k order by k desc",
            'k\nb\na\n""\n',
        ),
    ],
)
def test_a_delta_table_answers_as_spark_would(orders: str, query: str, answer: str) -> None:
    assert asked(query, orders) == answer


def test_a_parquet_table_answers_with_what_its_ledgers_name(plain: str) -> None:
    query = "select date, partition, count(*) as n from plain group by 1, 2 order by 1, 2"
    assert asked(query, plain) == "date,partition,n\n2023-01-01,0,2\n2023-01-02,1,1\n"


def test_tables_are_joined_under_names_of_their_own(orders: str, plain: str) -> None:
    query = "select count(*) as missing from a left anti join b using (partition, offset)"
    assert asked(query, f"a={orders}", f"b={plain}") == "missing\n0\n"
    with pytest.raises(PipelineError, match="orders and ORDERS would be one view"):
        asked("select 1 as x", orders, f"ORDERS={plain}")


@pytest.mark.parametrize(
    "query",
    [
        "select percentile(offset, 0.5) as p from orders",
        "select date_format(timestamp, 'yyyy') as y from orders",
        "select offset + 1 from orders",
        "select nothing as x from orders",
        "select x as y from missing",
        "select cast(value as string) as v from orders",
    ],
)
def test_what_may_differ_or_fails_is_left_to_spark(orders: str, query: str) -> None:
    """The last: bytes that are no UTF-8, of which Spark makes other text."""
    assert asked(query, orders) is None
    assert asked("select 1 as x", orders, engine="spark") is None


def test_a_delta_table_as_it_was(orders: str, plain: str) -> None:
    """At a version; what its folder is called may end alike."""
    write_deltalake(orders, ROWS.append_column("date", pa.array([DAY] * 3)), mode="append")
    query = "select count(*) as n from orders"
    assert (asked(query, f"{orders}@v0"), asked(query, orders)) == ("n\n3\n", "n\n6\n")
    assert asked(query, f"{orders}@v9") is None
    assert asked("select count(*) as n from o", f"o={orders}@v1") == "n\n6\n"
    assert asked(query, f"{orders}@2026-01-01") is None
    with pytest.raises(PipelineError, match=r"plain@v1: only a Delta table has versions"):
        asked("select 1 as x", f"{plain}@v1")
    with pytest.raises(PipelineError, match="2026-13-01 is no time: write @2026-01-31T12:00:00Z"):
        asked("select 1 as x", f"{orders}@2026-13-01")
    Path(f"{plain}@v1").symlink_to(plain)
    assert asked("select count(*) as n from p", f"p={plain}@v1") == "n\n3\n"


def test_a_time_is_utc_unless_it_says_otherwise() -> None:
    for text in ("2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00:00+01:00"):
        assert views.instant(text).isoformat() == "2026-01-31T12:00:00+00:00"


def test_who_chose_duckdb_is_told_why_not(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked("select offset + 1 as n from orders limit 0", orders, engine="duckdb") == "n\n"
    with pytest.raises(
        PipelineError, match=r"--engine duckdb: Binder Error: .* --engine spark may"
    ):
        asked("select nothing from orders", orders, engine="duckdb")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(PipelineError, match="--engine duckdb: it needs duckdb: pip install"):
        asked("select 1 as x", orders, engine="duckdb")
    assert asked("select 1 as x", orders) is None


def test_the_command_answers_without_spark(orders: str) -> None:
    done = CliRunner().invoke(command, ["select count(*) as n from orders", "--from", orders])
    assert (done.exit_code, done.stdout) == (0, "n\n-\n3\n1 row\n"), done.output
