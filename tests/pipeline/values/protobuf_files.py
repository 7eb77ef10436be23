"""File descriptors of Protobuf without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

KINDS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def message(name: str, *fields: tuple[str, ...], **nested: Any) -> descriptor_pb2.DescriptorProto:
    """Fields are (name, type) or (name, type, label); a type with a dot is that of a message."""
    made = descriptor_pb2.DescriptorProto(name=name, **nested)
    for number, (field, kind, *label) in enumerate(fields, 1):
        added = made.field.add(name=field, number=number)
        added.label = added.LABEL_REPEATED if label == ["repeated"] else added.LABEL_OPTIONAL
        if kind.startswith("enum "):
            added.type, added.type_name = added.TYPE_ENUM, kind.removeprefix("enum ")
        elif "." in kind:
            added.type, added.type_name = added.TYPE_MESSAGE, kind
        else:
            added.type = KINDS[kind]
    return made


def file(
    name: str, *messages: Any, imports: Sequence[str] = (), enums: Sequence[Any] = ()
) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=name,
        package="shop",
        syntax="proto3",
        message_type=messages,
        enum_type=enums,
        dependency=imports,
    )


def descriptor_set(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def message_class(name: str, *files: descriptor_pb2.FileDescriptorProto) -> Any:
    """Of the full name, to write values with."""
    pool = descriptor_pool.DescriptorPool()
    for module in imported():
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for each in files:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def imported() -> tuple[Any, ...]:
    from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2

    return struct_pb2, timestamp_pb2, wrappers_pb2
