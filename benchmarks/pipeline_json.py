"""`archive --decode json` beside a plain connector job with `from_json`, and `kcat` with DuckDB.

    python -m benchmarks.pipeline_json [--records 300000] [--rounds 3] [--server ours]

1. Orders of five fields, about 120 bytes, in four partitions of one broker. The jobs run by turns,
   each into a new folder; one small turn of each comes before and is not counted.
2. The plain job is what a user would write: the connector with our session's poll settings, the
   same columns and types, a Delta table by day. `archive` gives the same and `decode_error`.
3. `kcat` writes the topic as JSON lines into a file, DuckDB makes a Parquet file with the same
   columns of it. Left out where kcat or DuckDB is not installed.
4. CPU is that of Spark's JVM and its workers, or of kcat and DuckDB, without the broker.

One table in Markdown on standard output; each turn as it ends on standard error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaProducer

from benchmarks.pipeline_archive import Job, Turn, address, rows_in, say, turn
from benchmarks.requests import Connection
from benchmarks.servers import Program, program
from replog_pipeline import session
from replog_pipeline.jobs import archive
from replog_pipeline.sources.connector import POLLING
from replog_pipeline.values.settings import Decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, WARM = "orders", "warm"
PARTITIONS, WARM_RECORDS = 4, 20_000
SCHEMA = {
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "customer": {"type": "string"},
        "to": {"properties": {"city": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
}
SPARKS = "id bigint, price double, customer string, to struct<city: string>, tags array<string>"
DUCKS = (
    '{"id":"BIGINT","price":"DOUBLE","customer":"VARCHAR","to":{"city":"VARCHAR"},'
    '"tags":["VARCHAR"]}'
)
LINES = (
    "{topic: 'VARCHAR', partition: 'INTEGER', \"offset\": 'BIGINT', ts: 'BIGINT', key: 'VARCHAR', "
    "payload: 'VARCHAR'}"
)


def order(number: int) -> bytes:
    return json.dumps(
        {
            "id": number,
            "price": number / 4,
            "customer": f"customer {number}",
            "to": {"city": f"Sundsvall {number % 50}"},
            "tags": ["a", "b"],
        }
    ).encode()


def fill(server: Program, topic: str, records: int) -> None:
    with Connection(server.address) as connection:
        connection.create(topic, PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=address(server), linger_ms=50, batch_size=1 << 18)
    for number in range(records):
        producer.send(topic, order(number), partition=number % PARTITIONS)
    producer.flush()
    producer.close()


def plain(spark: SparkSession, bootstrap: str, topic: str, to: str, form: str) -> int:
    from pyspark.sql import functions as f

    own = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    records = archive.transform(spark.read.format("kafka").options(**POLLING | own).load())
    value = f.from_json(f.col("value").cast("string"), SPARKS)
    rows = records.withColumn("value_decoded", value)
    rows.write.format(form).mode("append").partitionBy("date").save(to)
    return rows_in(to, form)


def ours(spark: SparkSession, bootstrap: str, topic: str, to: str, form: str) -> int:
    decoding = Decoding("json", json.dumps(SCHEMA).encode(), "schema")
    config = archive.ArchiveConfig(f"kafka://{bootstrap}/{topic}", to, form, decoding=decoding)
    return archive.run(spark, config).rows


def ducks(spark: SparkSession, bootstrap: str, topic: str, to: str, form: str) -> int:
    """Without Spark."""
    import duckdb

    folder = Path(to)
    folder.mkdir()
    with (folder / "lines").open("wb") as lines:
        line = ["kcat", "-C", "-e", "-q", "-J", "-b", bootstrap, "-t", topic, "-o", "beginning"]
        subprocess.run(line, check=True, stdout=lines)
    found = duckdb.connect().execute(
        f"copy (select * exclude (payload, ts), payload as value, make_timestamp(ts * 1000) as at,"  # noqa: S608
        f" json_transform(payload, '{DUCKS}') as value_decoded"
        f" from read_json('{folder}/lines', format='newline_delimited', columns={LINES}))"
        f" to '{folder}/rows.parquet' (format parquet)"
    )
    row = found.fetchone()
    return int(row[0]) if row else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="ours")
    given = parser.parse_args()
    jobs: dict[str, Job] = {"connector, `from_json`": plain, "`archive --decode json`": ours}
    if shutil.which("kcat") and importlib.util.find_spec("duckdb"):
        jobs["`kcat`, DuckDB"] = ducks
    server = program(given.server)
    spark = session.build("benchmark", formats=("kafka", "delta"))
    server.start()
    try:
        fill(server, WARM, WARM_RECORDS)
        fill(server, TOPIC, given.records)
        found: dict[str, list[Turn]] = {name: [] for name in jobs}
        for job in jobs.values():
            turn(job, spark, server, WARM, "delta", WARM_RECORDS)
        for number in range(given.rounds):
            for name in [*jobs][:: 1 if number % 2 == 0 else -1]:
                ended = os.times()
                spent = turn(jobs[name], spark, server, TOPIC, "delta", given.records)
                kcat = os.times()
                more = kcat.children_user + kcat.children_system
                more -= ended.children_user + ended.children_system
                found[name].append(Turn(spent.seconds, spent.cpu + (more if "kcat" in name else 0)))
                say(f"{name}: {found[name][-1]}, load {os.getloadavg()[0]:.0f}")
    finally:
        server.stop()
    spark.stop()
    print("| job | seconds, median | CPU s, median |\n|---|--:|--:|")
    for name, turns in found.items():
        seconds, cpu = (statistics.median(each) for each in zip(*turns, strict=True))
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
