"""Two answers, field by field.

1. An answer becomes a flat dictionary: path -> value. An element of a list is named by what
   identifies it, not by its place: Kafka's order is often that of a hash map.
2. Records are compared as bytes, by length and checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.schema import Struct

_KEYS = frozenset(
    {
        "api_key",
        "broker_id",
        "feature",
        "group_id",
        "index",
        "key",
        "log_dir",
        "member_id",
        "name",
        "node_id",
        "partition",
        "partition_id",
        "partition_index",
        "producer_id",
        "replica_id",
        "resource_name",
        "resource_type",
        "source",
        "topic",
        "topic_id",
        "topic_name",
    }
)
_CODES = {int(code): code.name for code in ErrorCode}
ABSENT = "(absent)"


class Difference(NamedTuple):
    """One field that is not the same."""

    api: str
    version: int
    label: str
    path: str
    kafka: str
    ours: str


def flat(answer: Any, version: int, normal: Callable[[Any], Any]) -> dict[str, str]:
    """Every field of an answer that this version carries; `normal` replaces what must differ."""
    if not isinstance(answer, Struct):
        return {"": str(answer)}
    return dict(_fields(answer, version, normal, ""))


def _fields(
    struct: Struct, version: int, normal: Callable[[Any], Any], path: str
) -> Iterator[tuple[str, str]]:
    for field in struct.FIELDS:
        if not field.is_in(version):
            continue
        value = getattr(struct, field.name)
        here = f"{path}.{field.name}" if path else field.name
        if isinstance(value, Struct):
            yield from _fields(value, version, normal, here)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            yield f"{here}.count", str(len(value))
            for name, element in _named(value, version, normal):
                yield from _fields(element, version, normal, f"{here}.{name}")
        else:
            yield here, text(field.name, normal(value))


def _named(
    elements: list[Struct], version: int, normal: Callable[[Any], Any]
) -> Iterator[tuple[str, Struct]]:
    """Each element with the name that it has in paths; a name that comes again is numbered."""
    seen: dict[str, int] = {}
    for element in elements:
        keys = {
            field.name: text("", normal(getattr(element, field.name)))
            for field in element.FIELDS
            if field.name in _KEYS and field.is_in(version)
        }
        if len(keys) > 1 and getattr(element, "name", None):
            keys.pop("topic_id", None)
        name = "/".join(keys.values()) or "-"
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), element


def text(name: str, value: Any) -> str:
    if name.endswith("error_code"):
        return _CODES.get(value, str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return data.hex() if len(data) <= 16 else f"{len(data)} bytes, {zlib.crc32(data):08x}"
    return repr(value) if isinstance(value, str) else str(value)


def compared(
    api: str, version: int, label: str, kafka: dict[str, str], ours: dict[str, str]
) -> list[Difference]:
    """What is not the same in two flat answers."""
    return [
        Difference(api, version, label, path, kafka.get(path, ABSENT), ours.get(path, ABSENT))
        for path in sorted(kafka.keys() | ours.keys())
        if kafka.get(path, ABSENT) != ours.get(path, ABSENT)
    ]
