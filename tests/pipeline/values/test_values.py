"""Values into `value_decoded` and `decode_error`: what each encoding says, and what does not stop
the others.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from replog_pipeline.columns import DECODED, ERROR
from replog_pipeline.errors import PipelineError, RegistryAwayError
from replog_pipeline.values.column import (
    column,
    columns_type,
    connection,
    decoded,
    file_schema,
    schemas,
    type_of,
)
from replog_pipeline.values.convert import CODES
from replog_pipeline.values.settings import Decoding, decoding
from tests.pipeline.schema_registry import SchemaRegistry, framed, serving
from tests.pipeline.values.protobuf_files import descriptor_set, file, message, message_class

UTC = datetime.UTC


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    connection.cache_clear()
    file_schema.cache_clear()


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving(SchemaRegistry()) as served:
        yield served


def by_file(kind: str, content: str | bytes, folder: Path, **more: Any) -> Decoding:
    place = folder / "schema"
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = decoding(kind, str(place), **more)
    assert found is not None
    return found


def by_registry(kind: str, registry: SchemaRegistry, **more: Any) -> Decoding:
    found = decoding(kind, None, registry.url, **more)
    assert found is not None
    return found


def read(
    chosen: Decoding, *values: bytes | None, table: pa.DataType | None = None
) -> list[tuple[Any, str | None]]:
    """(value_decoded, decode_error) of each."""
    kind = type_of(schemas(chosen, ["orders"]), table)
    (found,) = decoded(iter([pa.array(values, pa.binary())]), chosen, kind)
    assert found.type == columns_type(kind)
    return [(each[DECODED], each[ERROR]) for each in found.to_pylist()]


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"]},
        "to": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "first name": {"type": "string"},
        "node": {"$ref": "#/$defs/node"},
    },
    "$defs": {
        "place": {"properties": {"city": {"type": "string"}}},
        "node": {"properties": {"next": {"$ref": "#/$defs/node"}}},
    },
}


def test_json_by_a_json_schema(tmp_path: Path) -> None:
    chosen = by_file("json", json.dumps(JSON), tmp_path)
    value = {
        "id": 7,
        "price": 3,
        "to": {"city": "Sundsvall", "unknown": 1},
        "tags": ["a", "b"],
        "more": {"x": True},
        "any": [1, "é"],
        "first name": "Ada",
        "node": {"next": {"next": None}},
    }
    ((row, error),) = read(chosen, json.dumps(value).encode())
    assert error is None
    assert row == {
        "id": 7,
        "price": 3.0,
        "to": {"city": "Sundsvall"},
        "tags": ["a", "b"],
        "more": [("x", True)],
        "any": '[1,"é"]',
        "first_name": "Ada",
        "node": {"next": '{"next":null}'},
    }


def test_what_does_not_decode_is_an_error_beside_the_rows_that_do(tmp_path: Path) -> None:
    chosen = by_file("json", json.dumps(JSON), tmp_path)
    rows = read(
        chosen,
        b'{"id": 1}',
        None,
        b"\xff\xfe",
        b'{"id": "one"}',
        b'{"id": 9223372036854775808}',
        b'{"tags": ["a", "\\ud800"]}',
        b'{"tags": {}}',
        b'{"price": NaN}',
        b"[" * 100_000,
        b"",
        b'{"id": true}',
        b'{"to": {"city": 5}, "id": 2.0}',
        b"[1]",
    )
    errors = [error or "" for _, error in rows]
    assert [row is not None for row, _ in rows] == [n in (0, 11) for n in range(13)]
    assert [n for n, error in enumerate(errors) if not error] == [0, 1, 11]
    assert errors[2:11] == [
        *("malformed", "type: id", "range: id", "text", "type: tags", "malformed", "depth"),
        *("malformed", "type: id"),
    ]
    assert errors[12] == "type"
    assert rows[11][0]["to"] == {"city": "5"} and rows[11][0]["id"] == 2


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyError("a bug")])
def test_whatever_a_value_raises_is_its_error(error: Exception) -> None:
    def raising(value: bytes) -> int:
        if value == b"x":
            raise error
        return 7

    found = column([b"x", b"y"], raising, pa.int64())
    assert found.field(DECODED).to_pylist() == [None, 7]
    assert found.field(ERROR).to_pylist() == [f"internal: {type(error).__name__}", None]


@pytest.mark.parametrize("error", [RegistryAwayError("away"), ImportError("fastavro")])
def test_what_is_no_values_fault_is_raised(error: Exception) -> None:
    def raising(value: bytes) -> int:
        raise error

    with pytest.raises(type(error)):
        column([b"x"], raising, pa.int64())


LOGICAL = record(
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("time", {"type": "int", "logicalType": "time-millis"}),
    ("sum", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("raw", ["null", "bytes"]),
    ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}),
    ("counts", {"type": "map", "values": "int"}),
    ("lines", {"type": "array", "items": record(("n", "int"), name="Line")}),
    ("size", ["null", "int", "long"]),
    ("any", ["null", "string", "int", "Hash"]),
    ("inner", ["null", "Order"]),
)


def test_avro_with_its_logical_types(tmp_path: Path) -> None:
    value = {
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
        "time": datetime.time(1, 2, 3),
        "sum": decimal.Decimal("12.30"),
        "raw": b"\0\1",
        "hash": b"ab",
        "colour": "BLUE",
        "counts": {"a": 1},
        "lines": [{"n": 1}, {"n": 2}],
        "size": 1 << 40,
        "any": 5,
        "inner": None,
    }
    inner = {**value, "raw": None, "any": "text", "inner": value}
    chosen = by_file("avro", json.dumps(LOGICAL), tmp_path)
    (first, none), (second, error) = read(chosen, avro(LOGICAL, value), avro(LOGICAL, inner))
    assert (none, error) == (None, None)
    expected = {**value, "time": "01:02:03", "counts": [("a", 1)], "any": "5"}
    assert first == expected
    assert second["any"] == "text" and json.loads(second["inner"])["day"] == "2026-01-02"


def test_avro_must_be_read_to_its_last_byte_and_a_deep_value_ends_no_process(
    tmp_path: Path,
) -> None:
    schema = record(("id", "long"), ("next", ["null", "Order"]))
    chosen = by_file("avro", json.dumps(schema), tmp_path)
    whole = avro(schema, {"id": 1, "next": None})
    rows = read(chosen, whole, whole + b"\0", whole[:-1], b"\2" * 3_000_000, b"\xff" * 20)
    assert rows[0] == ({"id": 1, "next": None}, None)
    assert rows[1:] == [(None, each) for each in ("malformed", "malformed", "depth", "malformed")]


def test_an_avro_array_of_nothing_is_not_counted_to_its_end(tmp_path: Path) -> None:
    schema = record(("id", {"type": "array", "items": "null"}))
    chosen = by_file("avro", json.dumps(schema), tmp_path)
    ((row, error),) = read(chosen, b"\xfe\xff\xff\xff\xff\xff\xff\x7f\0")
    assert row is None and error == "range"


def test_schemas_of_a_registry_by_the_ids_of_the_values(registry: SchemaRegistry) -> None:
    """Fields of all versions are columns; a number becomes the wider; an unknown id is an error."""
    one = record(("id", "int"), ("gone", "string"))
    two = record(("id", "long"), ("price", "double"))
    registry.register("line-value", "AVRO", json.dumps(record(("n", "int"), name="Line")))
    first = registry.register("orders-value", "AVRO", json.dumps(one))
    other = registry.register("another", "JSON", "{}")
    chosen = by_registry("avro", registry)
    values = (framed(first, avro(one, {"id": 1, "gone": "x"})), framed(99, b""), b"\0\0", b"\1" * 9)
    before = read(chosen, *values, framed(other, b"{}"))
    assert before[0] == ({"id": 1, "gone": "x"}, None)
    assert [error for _, error in before[1:]] == ["schema", "frame", "frame", "schema"]
    second = registry.register("orders-value", "AVRO", json.dumps(two))
    value = framed(second, avro(two, {"id": 1 << 40, "price": 2.5}))
    rows = read(chosen, values[0], value)
    assert rows == [
        ({"id": 1, "gone": "x", "price": None}, None),
        ({"id": 1 << 40, "gone": None, "price": 2.5}, None),
    ]
    # A table's column stays what it is: what does not fit it is an error.
    rows = read(chosen, values[0], value, table=pa.struct([("id", pa.int32())]))
    assert rows[0][0] == {"id": 1, "gone": "x", "price": None}
    assert rows[1] == (None, "range: id")
    assert len([path for path in registry.paths if "/schemas/ids/99" in path]) == 1


def test_a_field_whose_case_changes_stays_one_column(registry: SchemaRegistry) -> None:
    """Spark knows columns by their names whatever the case: of a table, and of an earlier schema,
    at the top and within.
    """
    one = record(("Id", "int"), ("to", record(("City", "string"), name="Place")))
    two = record(("ID", "long"), ("to", record(("city", "string"), name="Place")), ("price", "int"))
    first = registry.register("orders-value", "AVRO", json.dumps(one))
    second = registry.register("orders-value", "AVRO", json.dumps(two))
    values = (
        framed(first, avro(one, {"Id": 1, "to": {"City": "Umea"}})),
        framed(second, avro(two, {"ID": 1 << 40, "to": {"city": "Lulea"}, "price": 3})),
    )
    chosen = by_registry("avro", registry)
    assert read(chosen, *values) == [
        ({"Id": 1, "to": {"City": "Umea"}, "price": None}, None),
        ({"Id": 1 << 40, "to": {"City": "Lulea"}, "price": 3}, None),
    ]
    table = pa.struct([("iD", pa.int32())])
    assert read(chosen, values[0], table=table)[0][0] == {
        "iD": 1,
        "to": {"City": "Umea"},
        "price": None,
    }
    assert read(chosen, values[1], table=table) == [(None, "range: iD")]


def test_of_two_fields_that_are_one_column_the_first_has_it(
    registry: SchemaRegistry, tmp_path: Path
) -> None:
    """Unless the other has the table's name. They stop no archive."""
    schema = {"properties": {"Id": {"type": "integer"}, "id": {}, "n": {"type": "integer"}}}
    chosen = by_file("json", json.dumps(schema), tmp_path)
    both = b'{"id": "x", "Id": 7, "n": 1}'
    assert read(chosen, both) == [({"Id": 7, "n": 1}, None)]
    assert read(chosen, both, table=pa.struct([("id", pa.string())])) == [
        ({"id": "x", "n": 1}, None)
    ]
    registry.register("orders-value", "JSON", '{"properties": {"ID": {"type": "integer"}}}')
    number = registry.register("orders-value", "JSON", json.dumps(schema))
    assert read(by_registry("json", registry), framed(number, both)) == [(None, "type: ID")]


def test_an_avro_schema_that_refers_to_another(registry: SchemaRegistry) -> None:
    line, order = record(("n", "int"), name="Line"), record(("line", "Line"))
    registry.register("line-value", "AVRO", json.dumps(line))
    number = registry.register("orders-value", "AVRO", json.dumps(order), ("Line", "line-value", 1))
    value = framed(number, avro(line, {"n": 5}))
    assert read(by_registry("avro", registry), value) == [({"line": {"n": 5}}, None)]


PLACE = file("place.proto", message("Place", ("city", "string")))
ORDER = file(
    "order.proto",
    message(
        "Order",
        ("id", "uint64"),
        ("to", ".shop.Place"),
        ("colour", "enum .shop.Colour"),
        ("at", ".google.protobuf.Timestamp"),
        ("tags", "string", "repeated"),
        ("limit", ".google.protobuf.Int64Value"),
        ("parent", ".shop.Order"),
        ("raw", "bytes"),
        ("any", ".google.protobuf.Struct"),
    ),
    message("Refund", ("id", "uint64")),
    imports=[
        "place.proto",
        *(f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers", "struct")),
    ],
)
ORDER.enum_type.add(name="Colour").value.add(name="RED", number=0)
ORDER.enum_type[0].value.add(name="BLUE", number=1)


def order(**fields: Any) -> bytes:
    made = message_class("shop.Order", PLACE, ORDER)(id=(1 << 63) + 1, colour=1, **fields)
    made.to.city, made.at.seconds, made.limit.value = "Sundsvall", 1, 4
    made.parent.id = 3
    made.any["x"] = 1
    content: bytes = made.SerializeToString()
    return content


ORDER_ROW = {
    "id": decimal.Decimal((1 << 63) + 1),
    "to": {"city": "Sundsvall"},
    "colour": "BLUE",
    "at": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    "tags": ["a"],
    "limit": 4,
    "parent": '{"id": "3"}',
    "raw": b"\1",
    "any": '{"x": 1.0}',
}


def test_protobuf_by_a_descriptor_set(tmp_path: Path) -> None:
    chosen = by_file("protobuf", descriptor_set(PLACE, ORDER), tmp_path)
    rows = read(chosen, order(tags=["a"], raw=b"\1"), b"\xff", b"")
    assert rows[0] == (ORDER_ROW, None)
    assert rows[1][0] is None and rows[1][1] == "malformed"
    assert rows[2][0]["id"] == 0 and rows[2][0]["to"] is None and rows[2][0]["colour"] == "RED"
    refunds = by_file("protobuf", descriptor_set(PLACE, ORDER), tmp_path, message="Refund")
    assert read(refunds, b"\x08\x05") == [({"id": 5}, None)]


def test_protobuf_of_a_registry_with_the_indexes_of_its_message(registry: SchemaRegistry) -> None:
    texts = [base64.b64encode(each.SerializeToString()).decode() for each in (PLACE, ORDER)]
    registry.register("place", "PROTOBUF", texts[0])
    number = registry.register(
        "orders-value",
        "PROTOBUF",
        texts[1],
        ("place.proto", "place", 1),
    )
    value, chosen = order(tags=["a"], raw=b"\1"), by_registry("protobuf", registry)
    rows = read(
        chosen,
        framed(number, b"\0" + value),
        framed(number, b"\2\0" + value),
        framed(number, b"\2\2\x08\x05"),
        framed(number, b"\2\x7e"),
        framed(number, b""),
    )
    assert rows[:2] == [(ORDER_ROW, None)] * 2
    assert [error for _, error in rows[2:]] == ["message", "message", "frame"]
    assert all("format=serialized" in path for path in registry.paths if "/versions/" in path)
    refunds = by_registry("protobuf", registry, message="shop.Refund")
    assert read(refunds, framed(number, b"\2\2\x08\x05")) == [({"id": 5}, None)]


def test_a_registry_that_is_down_or_refuses_is_raised_and_is_no_records_error(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.dumps(record(("id", "int")))
    number = registry.register("orders-value", "AVRO", schema)
    value = framed(number, b"\2")
    assert read(by_registry("avro", registry), value) == [({"id": 1}, None)]
    monkeypatch.setattr("replog_pipeline.values.registry.PATIENCE", {"max.retries": 0})
    connection.cache_clear()
    kind = pa.struct([("id", pa.int32())])
    registry.status = 503
    with pytest.raises(RegistryAwayError, match=r"does not answer .*HTTP status 503"):
        schemas(by_registry("avro", registry), ["orders"])
    with pytest.raises(PipelineError, match="does not answer"):
        list(decoded(iter([pa.array([value])]), by_registry("avro", registry), kind))
    registry.status, registry.user = None, "reader:secret-word"
    connection.cache_clear()
    with pytest.raises(PipelineError, match="HTTP status 401") as refused:
        schemas(by_registry("avro", registry), ["orders"])
    user = (("schema.registry.basic.auth.user.info", "reader:secret-word"),)
    known = by_registry("avro", registry, config=user)
    assert read(known, value) == [({"id": 1}, None)]
    assert "secret-word" not in f"{known!r} {refused.value}"
    with pytest.raises(PipelineError, match="has no subject none: name the one"):
        schemas(by_registry("avro", registry, config=user, subjects=["none"]), ["orders"])
    with pytest.raises(
        PipelineError, match=r"Unrecognized properties: basic\.auth\.usr\.info"
    ) as odd:
        wrong = (("basic.auth.usr.info", "reader:secret-word"),)
        schemas(by_registry("avro", registry, config=wrong), ["orders"])
    assert "secret-word" not in str(odd.value)


def test_a_registry_that_is_gone_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog_pipeline.values.registry.PATIENCE", {"max.retries": 0})
    with serving(SchemaRegistry()) as registry:
        chosen = by_registry("avro", registry)
    with pytest.raises(RegistryAwayError, match=rf"\(--schema-registry {registry.url}\): Connect"):
        schemas(chosen, ["orders"])


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("json", "{", "is no JSON Schema"),
        ("json", "[]", "is no JSON Schema: it is no object"),
        ("json", b"\xff", "is no text"),
        ("avro", "{}", "is no Avro schema"),
        ("avro", '"unknown"', "is no Avro schema"),
        ("protobuf", b"syntax = 'proto3';", "is no descriptor set: make one with protoc"),
        ("protobuf", b"", "is no descriptor set"),
        ("protobuf", descriptor_set(ORDER), "is no Protobuf schema"),
        ("protobuf", descriptor_set(file("empty.proto")), "has no Protobuf message"),
    ],
)
def test_a_wrong_schema_file_is_one_line(
    kind: str, content: str | bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=said):
        by_file(kind, content, tmp_path)


def test_a_message_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"--message Oder: .* has shop.Order, shop.Refund"):
        by_file("protobuf", descriptor_set(PLACE, ORDER), tmp_path, message="Oder")


def test_a_framed_value_by_the_schema_of_a_file(tmp_path: Path) -> None:
    schema = record(("id", "int"))
    chosen = by_file("avro", json.dumps(schema), tmp_path, framing="confluent")
    rows = read(chosen, framed(12, b"\2"), b"\2")
    assert rows[0] == ({"id": 1}, None) and rows[1][1] == "frame"


def test_a_number_that_its_column_cannot_hold_is_an_error(tmp_path: Path) -> None:
    """A table whose `float` became `double` in a later schema; a JSON number beyond all doubles."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "double"}]}
    chosen = by_file("avro", json.dumps(schema), tmp_path)
    table = pa.struct([pa.field("a", pa.float32())])
    values = [avro(schema, {"a": each}) for each in (0.5, 0.1, 1e300, float("inf"))]
    assert read(chosen, *values, table=table) == [
        ({"a": 0.5}, None),
        (None, "range: a"),
        (None, "range: a"),
        ({"a": float("inf")}, None),
    ]
    properties = {"n": {"type": "number"}, "t": {"type": "string"}}
    chosen = by_file("json", json.dumps({"type": "object", "properties": properties}), tmp_path)
    assert read(chosen, b'{"n": 1e400}', b'{"t": [-1e400]}', b'{"n": 1e308}') == [
        (None, "range"),
        (None, "range"),
        ({"n": 1e308, "t": None}, None),
    ]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_a_value_that_is_null_itself_has_neither(kind: str, tmp_path: Path) -> None:
    schema = ["null", "string"] if kind == "avro" else {"type": ["null", "string"]}
    null = avro(schema, None) if kind == "avro" else b"null"
    assert read(by_file(kind, json.dumps(schema), tmp_path), null) == [(None, None)]


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hushhush@host:80a",
        "me:hushhush@host:8081",
        "http://me:hu/shhush@host:8081",
        "http://host:8081,me:hushhush@host",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(PipelineError, match=r"write basic\.auth\.user\.info") as raised:
        decoding("json", None, url)
    assert "shhush" not in str(raised.value)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_an_error_never_has_what_the_value_says(kind: str, tmp_path: Path) -> None:
    """Only a code and names of the schema: no text, number or key of a map."""
    if kind == "json":
        schema = {
            "properties": {
                "id": {"type": "integer"},
                "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        }
        values = [
            b'{"id": "HUSH"}',
            b'{"m": {"HUSH": "x"}}',
            b'{"m": "HUSH"}',
            b'{"HUSH": ',
            b'{"iD": "HUSH"}',
        ]
        chosen = by_file("json", json.dumps(schema), tmp_path)
    else:
        text = record(("id", {"type": "enum", "name": "E", "symbols": ["A"]}), ("b", "string"))
        values = [b"\4\10HUSH", b"\0\10HUSHHUSH", b"\0\20HUSH"]
        chosen = by_file("avro", json.dumps(text), tmp_path)
    for _, error in read(chosen, *values):
        assert error and "hush" not in error.lower()
        assert error.partition(":")[0] in CODES


FORMATS = {
    "properties": {
        "day": {"type": "string", "format": "date"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "price": {"type": "number", "multipleOf": 0.01},
        "half": {"type": "number", "multipleOf": 0.5},
        "mail": {"type": "string", "format": "email"},
        "any": {},
    }
}


def test_json_dates_timestamps_and_decimals(tmp_path: Path) -> None:
    chosen = by_file("json", json.dumps(FORMATS), tmp_path)
    rows = read(
        chosen,
        b'{"day": "2026-01-31", "at": "2026-01-31T12:00:00.25+02:00", "price": 0.10, "half": 1.5,'
        b' "mail": "a@b", "any": [1.50]}',
        b'{"price": 12345678901234567890.12, "at": "2026-01-31t12:00:00z", "day": null}',
        b'{"price": 7}',
    )
    assert [error for _, error in rows] == [None] * 3
    first, second, third = (row for row, _ in rows)
    assert first["day"] == datetime.date(2026, 1, 31) and first["any"] == "[1.5]"
    at = datetime.datetime(2026, 1, 31, 10, 0, 0, 250_000, tzinfo=datetime.UTC)
    assert first["at"] == at and first["half"] == 1.5 and first["mail"] == "a@b"
    assert first["price"] == decimal.Decimal("0.10")
    assert second["price"] == decimal.Decimal("12345678901234567890.12")
    assert second["at"] == at.replace(hour=12, microsecond=0)
    assert third["price"] == 7
    errors = {
        b'{"day": "2026-1-31"}': "type: day",
        b'{"day": "2026-02-30"}': "range: day",
        b'{"day": 20000}': "type: day",
        b'{"at": "2026-01-31T12:00:00"}': "type: at",
        b'{"at": "2026-01-31T25:00:00Z"}': "range: at",
        b'{"at": 1769860800}': "type: at",
        b'{"price": 0.125}': "range: price",
        b'{"price": "0.10"}': "type: price",
        b'{"any": 1e999}': "range",
    }
    assert [error for _, error in read(chosen, *errors)] == [*errors.values()]


def test_a_text_column_stays_one_where_the_schema_gets_a_format(tmp_path: Path) -> None:
    chosen = by_file("json", json.dumps(FORMATS), tmp_path)
    table = pa.struct([("day", pa.string()), ("price", pa.float64())])
    ((row, error),) = read(chosen, b'{"day": "2026-01-31", "price": 0.10}', table=table)
    assert error is None and (row["day"], row["price"]) == ("2026-01-31", 0.1)
