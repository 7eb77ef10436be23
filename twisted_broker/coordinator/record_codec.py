"""Records of the newer kinds of groups and of the share coordinator: bytes <-> keys and values.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `StoredRecord`, `encode_record`, `RecordTypes`.

1. Keys and values are messages of `wire/messages`. Both are written as version
   0; a tombstone is a null value.
2. A value of a newer version is read as far as version 0 goes: the fields are flexible.
3. A key of another type is left alone (None).

Source: Apache Kafka 4.3.1 `CoordinatorRecordSerde`. Not here: offsets and classic groups
(`group_records.py`), which types a kind of groups has (`consumer/records.py`).
"""

from __future__ import annotations

import struct

from twisted_broker.coordinator.group_records import KeyValue, MalformedRecord
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.schema import decode, decode_from, encode
from twisted_broker.wire.structs import Record

StoredRecord = tuple[Record, Record | None]
"""A key and its value; None: a tombstone."""

_SHORT = struct.Struct(">h")
_VERSION = 0


def encode_record(record: StoredRecord) -> KeyValue:
    """The bytes of a record."""
    key, value = record
    return (
        _SHORT.pack(key.record_type) + encode(key, _VERSION),
        None if value is None else _SHORT.pack(_VERSION) + encode(value, _VERSION),
    )


class RecordTypes:
    """Those of one kind of groups: the classes of keys and of their values."""

    __slots__ = ("_types",)

    def __init__(self, *types: tuple[type[Record], type[Record]]) -> None:
        self._types = {key.record_type: (key, value) for key, value in types}

    def decode(self, key: bytes | None, value: bytes | None) -> StoredRecord | None:
        """One record; None when its key is of another type. Raises MalformedRecord."""
        if key is None or len(key) < _SHORT.size:
            raise MalformedRecord("a record without a key")
        types = self._types.get(_SHORT.unpack_from(key)[0])
        if types is None:
            return None
        if value is not None and (len(value) < _SHORT.size or _SHORT.unpack_from(value)[0] < 0):
            raise MalformedRecord("a value without a version")
        of_key, of_value = types
        try:
            name = decode(of_key, key, _VERSION, _SHORT.size)
            if value is None:
                return name, None
            return name, decode_from(of_value, value, _VERSION, _SHORT.size)[0]
        except WireError as error:
            raise MalformedRecord(str(error)) from None
