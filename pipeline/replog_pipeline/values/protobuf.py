"""Protobuf values, by the library protobuf: its descriptors, no generated code.

1. A file's schemas are a descriptor set, as `protoc --include_imports --descriptor_set_out` writes
   it; a registry's are file descriptors, which it serves itself.
2. A field without presence has its default; one with presence that is not set is null.
3. An enum is its name, `Timestamp` a timestamp, a wrapper (`Int64Value`) its value, `uint64` a
   decimal. A message within itself, `Any` and `Struct` are JSON text.

Source: Protobuf's language guide. Not here: fields that the schema does not know, which are left
out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from replog_pipeline.errors import PipelineError
from replog_pipeline.values.avro import text_of
from replog_pipeline.values.convert import MALFORMED, MESSAGE, SCHEMA, ConvertError
from replog_pipeline.values.types import TEXT, TIMESTAMP, struct_of

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
GOOGLES = "google.protobuf."
TIME = f"{GOOGLES}Timestamp"
AS_JSON = frozenset(
    f"{GOOGLES}{name}" for name in ("Any", "Struct", "Value", "ListValue", "Duration", "FieldMask")
)
WRAPPERS = frozenset(
    f"{GOOGLES}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TYPES: dict[str, pa.DataType] = {
    "CPPTYPE_INT32": pa.int32(),
    "CPPTYPE_INT64": pa.int64(),
    "CPPTYPE_UINT32": pa.int64(),
    "CPPTYPE_UINT64": pa.decimal128(20, 0),
    "CPPTYPE_DOUBLE": pa.float64(),
    "CPPTYPE_FLOAT": pa.float32(),
    "CPPTYPE_BOOL": pa.bool_(),
    "CPPTYPE_ENUM": TEXT,
}
Take = Callable[[Any], Any]


class ProtobufSchema:
    """`files`: serialized file descriptors, those that others import first; the last one has the
    messages. `message`: the name of the one that the columns are made of; None: its first.
    """

    def __init__(self, files: Sequence[bytes], place: str, message: str | None = None) -> None:
        """PipelineError that names `place`."""
        from google.protobuf import descriptor_pool

        self.pool = descriptor_pool.DescriptorPool()
        known(self.pool)
        try:
            self.file = [added(self.pool, each) for each in files][-1]
            self.messages = list(self.file.message_types_by_name.values())
            self.chosen = self.messages[0] if message is None else self.named(message)
        except IndexError:
            raise PipelineError(f"{place} has no Protobuf message") from None
        except KeyError:
            raise PipelineError(
                f"--message {message}: {place} has {', '.join(self.names()) or 'none'}"
            ) from None
        except Exception as error:
            # TypeError and others, by the implementation of the library in use.
            raise PipelineError(f"{place} is no Protobuf schema: {text_of(error)}") from None
        self.type, self.take = reader(self.chosen)
        self.made = message_class(self.chosen)

    def names(self) -> list[str]:
        return [each.full_name for each in self.messages]

    def named(self, message: str) -> Any:
        """A message by its full name, or by its own where the file has it at the top."""
        own = self.file.message_types_by_name.get(message)
        return own or self.pool.FindMessageTypeByName(message)

    def decode(self, value: bytes, at: int) -> Any:
        from google.protobuf.message import DecodeError

        message = self.made()
        try:
            message.ParseFromString(value[at:])
            return self.take(message)
        except (DecodeError, ValueError, OverflowError):
            raise ConvertError(MALFORMED) from None

    def check_indexes(self, indexes: tuple[int, ...]) -> None:
        """ConvertError unless they name the message that the columns are made of."""
        try:
            found = self.messages[abs(indexes[0])]
            for index in indexes[1:]:
                found = found.nested_types[abs(index)]
        except IndexError:
            raise ConvertError(MESSAGE) from None
        if found.full_name != self.chosen.full_name:
            raise ConvertError(MESSAGE)


def file_set(content: bytes, place: str) -> list[bytes]:
    """The file descriptors of a descriptor set. PipelineError."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(content)
    except DecodeError:
        found.Clear()
    if not found.file:
        raise PipelineError(
            f"{place} is no descriptor set: make one with protoc --include_imports "
            "--descriptor_set_out=FILE"
        )
    return [each.SerializeToString() for each in found.file]


def known(pool: Any) -> None:
    """Adds what every Protobuf has: registries do not serve Google's own files."""
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for module in (
        *(any_pb2, descriptor_pb2, duration_pb2, empty_pb2),
        *(field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
    ):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def added(pool: Any, content: bytes) -> Any:
    """A file in the pool; what is Google's own is there."""
    from google.protobuf import descriptor_pb2

    name = descriptor_pb2.FileDescriptorProto.FromString(content).name
    if not name.startswith("google/protobuf/"):
        pool.AddSerializedFile(content)
    return pool.FindFileByName(name)


def message_class(descriptor: Any) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)


def reader(descriptor: Any, above: tuple[str, ...] = ()) -> tuple[pa.DataType, Take]:
    """The type of a message, and what makes Python's values of one. `above`: the messages that it
    is in.
    """
    name = descriptor.full_name
    if name in above or name in AS_JSON:
        return TEXT, as_json
    if name == TIME:
        return TIMESTAMP, timestamp
    if name in WRAPPERS:
        kind, take = value_reader(descriptor.fields_by_name["value"], above)
        return kind, lambda message: take(message.value)
    fields = [
        (each.name, has_presence(each), *field_reader(each, (*above, name)))
        for each in descriptor.fields
    ]

    def read(message: Any) -> Any:
        return {
            field: None
            if presence and not message.HasField(field)
            else take(getattr(message, field))
            for field, presence, _, take in fields
        }

    return struct_of([(field, kind) for field, _, kind, _ in fields]), read


def has_presence(field: Any) -> bool:
    return bool(field.has_presence)


def field_reader(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Take]:
    if not field.is_repeated:
        return value_reader(field, above)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        kind, take = value_reader(entry.fields_by_name["value"], above)
        return pa.map_(TEXT, kind), lambda found: {key_text(key): take(found[key]) for key in found}
    kind, take = value_reader(field, above)
    return pa.list_(kind), lambda found: [take(each) for each in found]


def key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def value_reader(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Take]:
    """Of one value, in a repeated field of each."""
    if field.message_type is not None:
        return reader(field.message_type, above)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return TEXT, lambda number: names.get(number, str(number))
    if field.cpp_type == field.CPPTYPE_STRING:
        return (pa.binary() if field.type == field.TYPE_BYTES else TEXT), same
    kinds = {getattr(field, name): kind for name, kind in TYPES.items()}
    return kinds[field.cpp_type], same


def same(value: Any) -> Any:
    return value


def timestamp(message: Any) -> datetime.datetime:
    """Microseconds; what is finer is left out."""
    return EPOCH + datetime.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def as_json(message: Any) -> str:
    from google.protobuf import json_format

    try:
        text: str = json_format.MessageToJson(
            message, indent=None, preserving_proto_field_name=True, ensure_ascii=False
        )
        return text
    except (TypeError, ValueError, json_format.Error):
        # An Any whose type is elsewhere.
        raise ConvertError(SCHEMA, message.DESCRIPTOR.full_name) from None
