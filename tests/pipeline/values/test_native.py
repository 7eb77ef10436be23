"""JSON that Spark decodes itself: the same columns as by Python, value for value."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replog_pipeline.columns import DECODED, ERROR
from replog_pipeline.jobs.archive.native_json import native_json
from replog_pipeline.jobs.archive.value_columns import with_values
from replog_pipeline.values import native
from replog_pipeline.values.column import decoded, schemas, type_of
from replog_pipeline.values.json_schema import JsonSchema
from replog_pipeline.values.settings import Decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"]},
        "on": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "to_city": {"type": "string"},
        "tags": {"type": "array", "items": {"properties": {"n": {"type": "integer"}}}},
    }
}
BY_SPARK = [
    b'{"id": 1, "price": 12.5, "on": true, "day": "2026-01-31", "to_city": "Sundsvall"}',
    b' {"id": -9223372036854775808, "price": -3, "tags": [{"n": 1}, null, {}, {"n": null}]} ',
    b'{"id": 1, "id": 2, "unknown": {"x": [1, 2.5, "}]"]}}',
    '{"to_city": "Malmö \\u00e9 \\n"}'.encode(),
    *(b"{}", b"null", b'{"to_city": null}'),
]
BY_PYTHON = [
    *(b'{"id": 1} x', b'{"id": 1}{"id": 2}', b'{"id": 1},{"id": 2}', b'{"id": 1}]}', b'{"id": 1'),
    *(b"", b" ", b"5", b"[1]", b'"text"', b"\xff", b'{"to_city": "\xff"}'),
    *(b'{"ID": 1}', b'{"id": 1, "Id": 2}', b'{"to city": "a"}', b'{"to\\tcity": "a"}'),
    *(b'{"id": "1"}', b'{"id": 1.0}', b'{"id": 1.5}', b'{"id": true}', b'{"id": 1e2}'),
    *(b'{"id": 9223372036854775808}', b'{"id": 01}', b"{'id': 1}", b"{id: 1}", b'{"id": 1,}'),
    *(b'{"price": 1e999}', b'{"price": NaN}', b'{"price": "NaN"}', b'{"x": 1e9999}'),
    *(b'{"price": ""}', b'{"on": "true"}', b'{"on": 1}', b'{"day": "2026-1-1"}', b'{"day": 7}'),
    *(b'{"day": "2026-02-30"}', b'{"day": "2026-01-31T00:00:00Z"}', b'{"day": "02026-01-01"}'),
    *(b'{"to_city": "\\ud800"}', b'{"to_city": "\\ud83d\\ude00"}', b'{"\\u0049d": 1}'),
    *(b'{"tags": {"n": 1}}', b'{"tags": [{"n": "1"}]}', b'{"tags": [1]}', b'{"tags": "a"}'),
    *(b'{"to_city": 1.50}', b'{"to_city" : {"a": [1, 2e1]}}', b'{"to_city":[]}'),
    *(b'{"id": 1} // x', b'\xef\xbb\xbf{"id": 1}', '{"id": 1}'.encode("utf-16")),
    *(
        b"[" * 2000,
        b'{"x": ' + b"[" * 1500 + b"]" * 1500 + b"}",
        b'{"price": 1' + b"0" * 400 + b"}",
    ),
]


def chosen(schema: Any, framed: bool = False) -> Decoding:
    return Decoding("json", json.dumps(schema).encode(), "here", framed)


@pytest.mark.parametrize("framed", [False, True])
def test_what_spark_decodes_is_what_python_decodes(spark: SparkSession, framed: bool) -> None:
    decoding = chosen(SCHEMA, framed)
    found = schemas(decoding, ["t"])
    kind = type_of(found)
    values: list[bytes | None] = [*BY_SPARK, *BY_PYTHON, None]
    if framed:
        values = [None if each is None else b"\0\0\0\0\7" + each for each in values]
        values += [b"\1\0\0\0\7{}", b"\0\0\0\7", b"{}"]
    (expected,) = decoded(iter([pa.array(values, pa.binary())]), decoding, kind)
    rows = spark.createDataFrame([(each,) for each in values], "value binary").coalesce(1)
    by_spark = native_json(decoding, found, kind)
    assert by_spark is not None
    told = with_values(rows, decoding, kind, by_spark).toArrow().to_pylist()
    for value, mine, python in zip(values, told, expected.to_pylist(), strict=True):
        assert (mine[DECODED], mine[ERROR]) == (python[DECODED], python[ERROR]), value
    parsed = rows.select(by_spark.parsed(rows.value).alias("p"))
    count = parsed.where(by_spark.is_read(parsed.p)).count()
    assert count == len(BY_SPARK)


def test_which_schemas_are_sparks() -> None:
    def is_native(schema: Any) -> bool:
        found = JsonSchema(json.dumps(schema), "here")
        return native.can_read(found.type, [found])

    def of(field: Any) -> Any:
        return {"properties": {"a": field}}

    assert is_native(SCHEMA) and is_native(of({"type": ["string", "null"]}))
    for field in (
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "string", "format": "date-time"},
        {"type": "number", "multipleOf": 0.01},
        {"type": ["string", "integer"]},
        {"type": "object"},
        {},
        True,
    ):
        assert not is_native(of(field)), field
    assert not is_native({"type": "array", "items": SCHEMA})
    assert not is_native({"properties": {"ä": {"type": "integer"}}})


def test_a_key_that_is_spelled_otherwise_is_pythons() -> None:
    kind = pa.struct([("to_city", pa.string()), ("a/b", pa.list_(pa.struct([("k", pa.int64())])))])
    pattern = re.compile(native.unsure(kind))
    for text in (
        '{"to_city": "1", "a/b": 2, "k": 3}',
        '{"xto_city": "TO"}',
        r'{"x": "\u00e9"}',
        "1e99",
    ):
        assert not pattern.search(text), text
    for text in (
        '"To_city"',
        '"to city"',
        r'"to\ncity"',
        r'"A\/b"',
        '"K"',
        '"\u212a"',
        "1E+100",
        '"to_city": 1',
    ):
        assert pattern.search(text), text
    assert pattern.search(r"\uD83D") and pattern.search(r"\u0041") and pattern.search("9" * 300)
