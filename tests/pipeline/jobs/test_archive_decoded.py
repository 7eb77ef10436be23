"""`archive --decode`: typed columns beside the raw bytes, which stay what they are; fields that
come later; what does not decode; a registry that is away; the example of the docs.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from click.testing import CliRunner

from replog_pipeline.cli import pipeline
from replog_pipeline.errors import JobFailedError, PipelineError
from replog_pipeline.jobs import archive, maintain
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.lake import table
from replog_pipeline.progress import Progress
from replog_pipeline.values.settings import Decoding, decoding
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, Written, produce
from tests.pipeline.schema_registry import SchemaRegistry, framed, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[3] / "docs" / "PIPELINE.md"
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
SECOND = {
    **FIRST,
    "fields": [
        *FIRST["fields"],
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "to", "type": ["null", PLACE], "default": None},
    ],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving(SchemaRegistry()) as served:
        yield served


def written(*values: bytes | None) -> list[Written]:
    return [Written(0, b"key", value, OLD_MS) for value in values]


def avro(number: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return framed(number, out.getvalue())


def chosen(registry: SchemaRegistry) -> Decoding:
    found = decoding("avro", None, registry.url)
    assert found is not None
    return found


def decoded_rows(spark: SparkSession, lake: Path) -> list[tuple[Any, str | None]]:
    rows = table.existing(spark, str(lake)).read().orderBy("offset").collect()
    return [
        (row.value_decoded and row.value_decoded.asDict(recursive=True), row.decode_error)
        for row in rows
    ]


@pytest.mark.parametrize("form", [pytest.param("delta", marks=pytest.mark.long), "parquet"])
def test_values_are_columns_fields_are_added_and_the_bytes_stay(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: SchemaRegistry,
    topic: str,
    tmp_path: Path,
    form: str,
) -> None:
    lake = tmp_path / "lake"
    number = registry.register(f"{topic}-value", "AVRO", json.dumps(FIRST))
    first = written(
        avro(number, FIRST, {"id": 1}), b"nothing", None, framed(99, b"\2"), framed(number, b"\2\2")
    )
    tables.create(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, first)
    url = f"kafka://{broker.bootstrap}/{topic}"
    config = archive.ArchiveConfig(url, str(lake), form, decoding=chosen(registry))
    assert archive.run(spark, config).rows == 5
    old: list[tuple[Any, str | None]] = [
        ({"id": 1}, None),
        (None, "frame"),
        (None, None),
        (None, "schema"),
        (None, "malformed"),
    ]
    assert decoded_rows(spark, lake) == old
    number = registry.register(f"{topic}-value", "AVRO", json.dumps(SECOND))
    order = {"id": 2, "price": 1.5, "to": {"city": "Sundsvall"}}
    second = written(avro(number, SECOND, order))
    produce(broker.bootstrap, topic, second)
    assert archive.run(spark, config).rows == 1
    more = dict.fromkeys(["price", "to"])
    new = [(row and {**row, **more}, error) for row, error in old] + [(order, None)]
    assert decoded_rows(spark, lake) == new
    maintain.run(spark, maintain.MaintainConfig(str(lake)))
    assert decoded_rows(spark, lake) == new
    assert tables.table_rows(spark, lake) == tables.expected([*first, *second])
    plain = archive.ArchiveConfig(url, str(lake))
    produce(broker.bootstrap, topic, second)
    with pytest.raises(PipelineError, match="has decoded values: give --decode"):
        archive.run(spark, plain)


def test_a_registry_that_is_away_meanwhile_is_waited_for_and_makes_no_error_rows(
    spark: SparkSession, broker: BrokerProcess, registry: SchemaRegistry, topic: str, tmp_path: Path
) -> None:
    """First for the driver, which wants the versions; then for a task, which wants a schema that
    it does not know.
    """
    number = registry.register(f"{topic}-value", "AVRO", json.dumps(FIRST))
    other = registry.register("other", "AVRO", json.dumps(SECOND))
    first = written(avro(number, FIRST, {"id": 1}))
    second = written(avro(other, SECOND, {"id": 2, "price": None, "to": None}))
    tables.create(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, first)

    class Looks(Stopper):
        count = 0

        def wait(self, seconds: float) -> bool:
            self.count += 1
            registry.status = 503 if self.count < 3 else None
            registry.down = "" if self.count == 1 else "/schemas/ids"
            if self.count == 1:
                produce(broker.bootstrap, topic, second)
            return self.count == 4

    said, lake = io.StringIO(), tmp_path / "lake"
    url = f"kafka://{broker.bootstrap}/{topic}"
    config = archive.ArchiveConfig(url, str(lake), interval=0.1, decoding=chosen(registry))
    assert archive.run(spark, config, Progress(stream=said), Looks()).rows == 2
    lines = [line for line in said.getvalue().splitlines() if "registry" in line]
    assert lines == [
        "archive: the schema registry does not answer; going on as soon as it does",
        "archive: the schema registry is back",
    ]
    assert decoded_rows(spark, lake) == [({"id": 1}, None), ({"id": 2}, None)]
    registry.status = 503
    produce(broker.bootstrap, topic, written(framed(77, b"\2")))
    with pytest.raises(JobFailedError) as failure:  # it comes from a task
        archive.run(spark, archive.ArchiveConfig(url, str(lake), decoding=chosen(registry)))
    assert f"does not answer (--schema-registry {registry.url}): HTTP" in str(failure.value)


def test_the_example_of_the_docs_runs_as_it_stands(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = DOCS.read_text().partition("### Values as columns: `--decode`")[2]
    example = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    said = ""
    tables.create(broker.bootstrap, "orders-example", 1)
    for step in re.split(r"^(?=replog |cat |python )", example, flags=re.MULTILINE):
        step = step.replace("127.0.0.1:9092", broker.bootstrap)
        if step.startswith("replog pipeline "):
            line = shlex.split(step.replace("\\\n", " "))[2:]
            result = CliRunner().invoke(pipeline, [*line, "--quiet"])
            assert result.exit_code == 0, result.output
            said = result.stdout
        elif step.strip():
            step = step.replace("python ", f"{sys.executable} ", 1)
            subprocess.run(["bash", "-e", "-c", step], check=True)
    assert "malformed" in said and "Sundsvall" in said and "12.5" in said
