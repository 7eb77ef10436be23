"""Every wrong argument of every job is one line and status 2, before Spark is so much as
imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replog_pipeline.lake.delta import LOG
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import LEDGERS, ParquetTable
from replog_pipeline.lake.table import claim
from tests.pipeline.replica_folders import batch, high_watermarks, partition

RUN = """
import json, sys
from click.testing import CliRunner
from replog_pipeline.cli import pipeline
told = []
for arguments in json.load(sys.stdin):
    done = CliRunner().invoke(pipeline, arguments)
    loaded = sorted({"pyspark", "py4j"} & sys.modules.keys())
    told.append([done.exit_code, done.stdout, done.stderr, loaded])
print(json.dumps(told))
"""
UNWRITABLE = "/proc/lake"
"""Not even for root."""
KAFKA = "kafka://127.0.0.1:1/t"
ARCHIVE, REPLAY, REPORT = (
    ("archive", "--to", "{new}"),
    ("replay", "--to", KAFKA),
    ("report", "--to", "{new}"),
)
NO_S3 = "--spark-conf=spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:1"
DECODE = (*ARCHIVE, "--from", "segments:{log}?topics=a", "--decode")
UPSERT = ("archive", "--mode", "upsert", "--from", "segments:{log}?topics=a", "--to")
REGISTRY = ("--schema-registry", "http://127.0.0.1:1")
WRONG: list[tuple[tuple[str, ...], str]] = [
    ((*ARCHIVE, "--from", "mysql://x"), "is no source"),
    ((*ARCHIVE, "--from", "kafka://127.0.0.1:1"), "names no topic"),
    ((*ARCHIVE, "--from", "kafka://nowhere/t"), "no HOST:PORT"),
    ((*ARCHIVE, "--from", "kafka://me:hush@127.0.0.1:1/t"), "--from: no user in a kafka:// URL"),
    ((*ARCHIVE, "--from", "segments:{new}"), "is no directory"),
    ((*ARCHIVE, "--from", "segments:{other}"), "no TOPIC-PARTITION folder"),
    ((*ARCHIVE, "--from", "segments:{log}?topics=none"), "no partition of none"),
    ((*ARCHIVE, "--from", "segments:{log}?topic=a"), "is not known"),
    ((*ARCHIVE, "--from", "segments:{loose}"), "no replication-offset-checkpoint"),
    ((*ARCHIVE, "--from", KAFKA, "--interval", "nan"), "'--interval': 'nan' is no number"),
    ((*ARCHIVE, "--from", KAFKA, "--interval", "inf"), "'--interval': 'inf' is no number"),
    ((*ARCHIVE, "--from", KAFKA, "--target-file-mb", "9999999"), "9999999 is not in the range"),
    (("archive", "--from", KAFKA, "--to", ""), "--to: it is empty: name a folder"),
    (("archive", "--from", KAFKA + "-.*", "--to", ""), "--to: it is empty: name a folder"),
    (("archive", "--from", KAFKA, "--to", KAFKA), "--to kafka://127.0.0.1:1/t: it is no table"),
    ((*ARCHIVE, "--from", KAFKA, "--available-now", "--continuous"), "exclude one another"),
    (("archive", "--from", KAFKA, "--to", "{file}"), "is a file, not a table"),
    (("archive", "--from", KAFKA, "--to", "{file}/lake"), "Not a directory: name a folder"),
    (("archive", "--from", KAFKA, "--to", "{other}"), "holds notes.txt and is no table"),
    (("archive", "--from", KAFKA, "--to", UNWRITABLE), "--to: /proc: "),
    (("archive", "--from", KAFKA, "--to", "file:" + UNWRITABLE), "--to: /proc: "),
    (
        ("archive", "--from", KAFKA, "--to", "{lake}", "--format", "delta"),
        "is parquet; leave --format out",
    ),
    ((*ARCHIVE, "--from", KAFKA, "--format", "iceberg"), "Iceberg has no runtime for Spark 4.2"),
    ((*ARCHIVE, "--from", KAFKA, "--format", "orc"), "'orc' is not one of 'delta', 'parquet'"),
    (("archive", "--from", KAFKA, "--to", "{iceberg}"), "{iceberg} is an Iceberg table: Apache"),
    (("archive", "--from", "segments:{log}?topics=a", "--to", "{lake}"), "is the table of t, not"),
    (("archive", "--from", "segments:{log}", "--to", "{future}"), "a ledger of version 9, but"),
    (("archive", "--from", "segments:{log}", "--to", "{lost}"), "is in no ledger, so"),
    (("archive", "--from", "segments:{log}", "--to", "{short}"), "0.json is cut short: restore"),
    (("archive", "--from", KAFKA, "--to", "{locked}"), "--to: {locked}/_delta_log: "),
    ((*ARCHIVE, "--from", KAFKA), "--from: no broker accepts a connection (127.0.0.1:1: "),
    ((*ARCHIVE, "--from", KAFKA, "--max-records", "0"), "Invalid value for '--max-records': 0 is"),
    ((*ARCHIVE, "--from", KAFKA, "--on-bad-record", "skip"), "'skip' is not one of 'fail', 'null'"),
    ((*ARCHIVE, "--from", KAFKA, "--since", "noon"), "--since noon: write a time, as 2026-01-31T"),
    ((*ARCHIVE, "--from", KAFKA, "--until", '{{"0": "x"}}'), "or offsets, as"),
    ((*ARCHIVE, "--from", KAFKA, "--until", "2026-01-01", "--continuous"), "does not end: leave"),
    (("archive", "--from", KAFKA), "Missing option '--to'. (pipeline archive --help lists"),
    (("archive", "--frm", KAFKA), "No such option '--frm'"),
    ((*ARCHIVE, "--from", KAFKA, "--schema", "{file}"), "name the encoding with --decode"),
    ((*ARCHIVE, "--from", KAFKA, "--decode", "xml"), "Invalid value for '--decode'"),
    ((*DECODE, "json"), "--decode json: name one of --schema FILE and --schema-registry URL"),
    ((*DECODE, "json", "--schema", "{new}"), "--schema {new}: No such file"),
    ((*DECODE, "json", "--schema", "{file}"), "--schema {file} is no JSON Schema"),
    ((*DECODE, "avro", "--schema", "{file}"), "--schema {file} is no Avro schema"),
    ((*DECODE, "protobuf", "--schema", "{file}"), "--schema {file} is no descriptor set"),
    ((*DECODE, "avro", "--schema", "{file}", "--message", "M"), "only Protobuf has messages"),
    ((*DECODE, "avro", "--schema", "{file}", "--subject", "s"), "of --schema-registry alone"),
    ((*DECODE, "avro", *REGISTRY, "--schema", "{file}"), "name one of --schema FILE"),
    ((*DECODE, "avro", *REGISTRY, "--framing", "none"), "use --schema FILE"),
    ((*DECODE, "avro", *REGISTRY, "--schema-registry-config", "{new}"), "config {new}: No such"),
    ((*DECODE, "avro", "--schema-registry", "registry:8081"), "write http://HOST:PORT"),
    ((*DECODE, "avro", "--schema-registry", "http://me:pw@h"), "no user in the URL"),
    ((*DECODE, "avro", *REGISTRY), "does not answer (--schema-registry http://127.0.0.1:1): Conn"),
    (
        ("archive", "--from", "segments:{log}?topics=a", "--to", "{decoded}"),
        "{decoded} has decoded values: give --decode and its schema",
    ),
    (
        ("archive", "--from", "segments:{log}?topics=a", "--to", "{lake}", "--mode", "upsert"),
        "--mode upsert needs a Delta table",
    ),
    ((*UPSERT, "{new}", "--format", "parquet"), "--mode upsert needs a Delta table"),
    (
        (*UPSERT, "{new}", "--from", KAFKA, "--format", "parquet", "--table-per-topic"),
        "--mode upsert needs a Delta table",
    ),
    ((*UPSERT, "{every}", "--key"), "the table {every} holds every record"),
    (
        ("archive", "--from", "segments:{log}?topics=a", "--to", "{last}"),
        "the table {last} holds the last value of each key: give --mode upsert",
    ),
    ((*ARCHIVE, "--from", KAFKA, "--key"), "--key: of --mode upsert alone"),
    ((*REPLAY, "--from", "{last}"), "{last} holds the last value of each key, not every record"),
    (("replay", "--from", "{lake}", "--to", "{new}"), "'{new}' is no topic: write kafka://HOST"),
    (("replay", "--from", "{lake}", "--to", "segments:{new}"), "is no topic: write kafka://"),
    (("replay", "--from", "{lake}", "--to", KAFKA + ",u"), "must name one topic"),
    ((*REPLAY, "--from", "{new}"), "there is no table"),
    ((*REPLAY, "--from", "{other}"), "is no table"),
    ((*REPLAY, "--from", ""), "--from: it is empty"),
    ((*REPLAY, "--from", "{lake}", "--topic", "u"), "--topic u: --from"),
    ((*REPLAY, "--from", "{lake}", "--replication", "0"), "--replication 0"),
    ((*REPLAY, "--from", "{future}"), "a ledger of version 9, but this replog knows 1"),
    ((*REPLAY, "--from", "{lost}"), "is in no ledger, so"),
    ((*REPLAY, "--from", "{short}"), "0.json is cut short: restore"),
    ((*REPLAY, "--from", "{lake}"), "--to: no broker accepts a connection (127.0.0.1:1: "),
    ((*REPLAY, "--from", "segments:{new}"), "is no directory"),
    ((*REPLAY, "--from", "segments:{log}"), "holds a, b: choose one with --topic"),
    ((*REPLAY, "--from", "kafka://127.0.0.1:1/a,b"), "holds a, b: choose one with --topic"),
    (("maintain", "{new}"), "maintain {new}: there is no table; name the --to of an archive"),
    (("maintain", "{tables}"), "a folder of tables: name one of them, as {tables}/orders"),
    ((*REPLAY, "--from", "{tables}"), "name one of them, as {tables}/orders"),
    (("archive", "--from", KAFKA, "--to", "{tables}"), "name one of them, as {tables}/orders"),
    (("maintain", "{lake}", "--spark-conf", "spark.driver.memory=12"), "and its unit, as 2g"),
    (("maintain", "{lake}", "--spark-conf", "spark.driver.memory=2gb"), "and its unit, as 2g"),
    (("maintain", ""), "maintain: it is empty: name a folder"),
    (("maintain", KAFKA), "maintain kafka://127.0.0.1:1/t: it is no table"),
    (("maintain", "{lake}", "--retain-hours", "9999999999"), "9999999999 is not in the range"),
    (("maintain", "{lake}", "--target-file-mb", "9999999"), "9999999 is not in the range"),
    (("maintain", "{other}"), "holds notes.txt and is no table"),
    (("maintain", "{future}"), "a ledger of version 9, but"),
    (("maintain", "{lost}"), "is in no ledger, so"),
    (("maintain", "{short}"), "0.json is cut short: restore"),
    (("maintain", "{locked}"), "maintain: {locked}/_delta_log: "),
    (("maintain", "{lake}", "--retain-hours", "24"), "24 is not in the range 168<=x"),
    (("audit", "--from", "segments:{new}"), "is no directory"),
    (("audit", "--from", "kafka://127.0.0.1:1/"), "names no topic"),
    (("audit", "--from", KAFKA, "--cleanup-policy", "shred"), "is no cleanup policy"),
    (
        ("audit", "--from", KAFKA, "--cleanup-policy", "other=compact"),
        "other is no topic of kafka://",
    ),
    (
        ("audit", "--from", "segments:{log}", "--cleanup-policy", "t=compact"),
        "t is no topic of segments:",
    ),
    (("audit", "--from", KAFKA), "--from: no broker accepts a connection (127.0.0.1:1: "),
    (("compare", "{log}"), "two or more different"),
    (("compare", "{log}", "{new}"), "is no directory"),
    (("compare", "{log}", "{log2}", "--topics", "none"), "no partition of none"),
    (("compare", "{log}", "{loose}"), "no replication-offset-checkpoint"),
    ((*REPORT, "--from", "segments:{new}"), "is no directory"),
    ((*REPORT, "--from", "kafka://:1/t"), "no HOST:PORT"),
    (("report", "--from", KAFKA, "--to", "{file}"), "is a file"),
    (("report", "--from", KAFKA, "--to", ""), "--to: it is empty: name a directory"),
    (("report", "--from", KAFKA, "--to", "{other}"), "holds other files"),
    (("report", "--from", KAFKA, "--to", UNWRITABLE), "--to: /proc: "),
    (
        ("report", "--from", "segments:{log}", "--to", "{file}/out"),
        "Not a directory: name a folder",
    ),
    ((*REPORT, "--from", KAFKA), "--from: no broker accepts a connection (127.0.0.1:1: "),
    (("archive", "--from", KAFKA, "--to", "s3://b/t"), "--to: Hadoop's connector for S3 is s3a"),
    (("archive", "--from", KAFKA, "--to", "s3a://b"), "--to s3a://b: name a bucket and a folder"),
    (
        ("archive", "--from", KAFKA, "--to", "s3a://b/t", "--format", "parquet"),
        "--to: s3a://b/t: the ledger of a Parquet table needs renames that are atomic, which "
        "s3a:// has not: use Delta",
    ),
    (
        ("archive", "--from", KAFKA + "-.*", "--to", "gs://b", "--format", "parquet"),
        "which gs:// has not: use Delta",
    ),
    (
        ("archive", "--from", "segments:{log}", "--to", "s3a://b/t", NO_S3),
        "--to s3a://b/t: no S3 server answers at http://127.0.0.1:1 (Connection refused): set",
    ),
    (("archive", "--from", KAFKA, "--to", "s3a://k:s@b/t"), "a s3a:// URI holds no credentials"),
    ((*REPLAY, "--from", "s3a://b"), "--from s3a://b: name a bucket and a folder"),
    (("maintain", "s3a://b/t", NO_S3), "maintain s3a://b/t: no S3 server answers at"),
    (("maintain", "{lake}", "--spark-conf", "secret"), "--spark-conf: write NAME=VALUE, as"),
    (("sql", "select 1", "--from", "s3a://b/t", NO_S3), "--from s3a://b/t: no S3 server answers"),
    (("sql", "select 1", "--from", "{lake}", "--format", "csv", "--to", "s3://b/t"), "is s3a"),
    (("report", "--from", KAFKA, "--to", "s3a://b/t"), "is written to a directory of this mach"),
    (("sql", "select 1", "--from", ""), "--from: it is empty"),
    (("sql", "delete from lake", "--from", "{lake}"), "only queries run, which change nothing: 'd"),
    (("sql", "with a as (select 1) insert into lake select * from a", "--from", "{lake}"), "'ins"),
    (("sql", "explain select 1", "--from", "{lake}"), "'explain' is none; begin with select"),
    (("sql", "drop table lake", "--from", "{lake}"), "change nothing: 'drop' is none"),
    (("sql", "select 1; select 2", "--from", "{lake}"), "the query is 2 statements: write one"),
    (("sql", "selec 1", "--from", "{lake}"), "the query is none: line 1, column 7: Invalid expr"),
    (
        ("sql", "select 1", "--from", "segments:{log}", "--engine", "duckdb"),
        "no table on this mach",
    ),
    (
        ("sql", "select 1", "--from", "{lake}", "--engine", "pandas"),
        "'pandas' is not one of 'auto'",
    ),
    (("sql", " ; ", "--from", "{lake}"), "the query is empty: write one"),
    (("sql", "select 1", "--from", KAFKA, "--format", "csv", "--to", ""), "--to: it is empty"),
    (("sql", "select 1", "--from", f"1x={KAFKA}"), "the name of a view is letters, digits and _"),
    (("sql", "select 1", "--from", f"a-b={KAFKA}"), "the name of a view is letters, digits and _"),
    (("--frm",), "No such option '--frm'. (pipeline --help lists what there is)"),
    (("--traceback=x", "doctor"), "pipeline --help lists what there is"),
    (("demo", "--data", "{file}"), "--data: {file} is a file"),
    (("demo", "--data", "{other}"), "is not empty"),
    (("demo", "--data", UNWRITABLE), "--data: /proc: "),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("arguments")
    found = {
        name: base / name
        for name in (
            *("new", "file", "other", "log", "log2", "loose"),
            *("lake", "future", "lost", "short", "locked", "decoded", "iceberg"),
            *("every", "last", "tables"),
        )
    }
    found["file"].write_text("")
    found["other"].mkdir()
    (found["other"] / "notes.txt").write_text("")
    for name in ("log", "log2", "loose"):
        for topic in ("a", "b"):
            partition(found[name], f"{topic}-0", {0: [batch(0)]})
        if name != "loose":
            high_watermarks(found[name], {"a-0": 10, "b-0": 10})
    table = ParquetTable(None, LocalFiles(found["lake"]))
    after = Ledger().after({"t": None}, {("t", 0): 2})
    table.commit(
        after, {"replog": after.to_json(), "files": [], "staging": "_replog/staging/1", "rows": 0}
    )
    decoded = replace(Ledger().after({"a": None}, {("a", 0): 2}), decoded=True)
    entry = {"replog": decoded.to_json(), "files": [], "staging": "_replog/staging/1", "rows": 0}
    ParquetTable(None, LocalFiles(found["decoded"])).commit(decoded, entry)
    first = Ledger().after({"a": None}, {("a", 0): 2})
    for name, ledger in (("every", first), ("last", replace(first, upsert=True))):
        commit = {"commitInfo": {"userMetadata": ledger.to_text()}}
        LocalFiles(found[name]).create(f"{LOG}/{0:020d}.json", json.dumps(commit).encode())
    LocalFiles(found["future"]).create(f"{LEDGERS}/{1:020d}.json", b'{"replog": {"version": 9}}')
    lost = LocalFiles(found["lost"])
    claim(ParquetTable(None, lost))
    lost.create("date=2023-01-01/part-0.parquet", b"")
    found["locked"].mkdir()
    (found["locked"] / LOG).symlink_to("/proc/sys")  # where not even root makes files
    LocalFiles(found["tables"] / "orders").create(f"{LOG}/{0:020d}.json", b"")
    LocalFiles(found["iceberg"]).create("metadata/v1.metadata.json", b"{}")
    LocalFiles(found["short"]).create(f"{LOG}/{0:020d}.json", b'{"commitInfo": {"operat')
    return {name: str(path) for name, path in found.items()}


@pytest.fixture(scope="module")
def outcomes(places: dict[str, str]) -> list[list[Any]]:
    """All of them in one process, in which nothing of Spark is loaded at first."""
    lines = [[each.format(**places) for each in arguments] for arguments, _ in WRONG]
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told: list[list[Any]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    "number", range(len(WRONG)), ids=[" ".join(arguments) for arguments, _ in WRONG]
)
def test_a_wrong_argument_is_one_line_without_spark(
    outcomes: list[list[Any]], places: dict[str, str], number: int
) -> None:
    status, output, error, modules = outcomes[number]
    assert (status, output, modules) == (2, "", []), error
    assert error.startswith("replog pipeline: ") and error.count("\n") == 1
    assert WRONG[number][1].format(**places) in error and "hush" not in error


def test_nothing_was_written(outcomes: list[list[Any]], places: dict[str, str]) -> None:
    assert not Path(places["new"]).exists() and [
        path.name for path in Path(places["other"]).iterdir()
    ] == ["notes.txt"]
