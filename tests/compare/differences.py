"""Two answers, field by field.

1. An answer becomes a flat dictionary: path -> value. An element of a list is named by what
   identifies it, not by its place: Kafka's order is often that of a hash map.
2. Records are compared as bytes, by length and checksum.
3. An element that only one answer has is one difference, with the element's own fields as its
   value; so is an answer that only one side gave, with the error codes in it.
4. Sentences are our own. Whether there is one, an empty one or none is compared.
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
        "mechanism",
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
        "user",
        "topic_name",
    }
)
_CODES = {int(code): code.name for code in ErrorCode}
ABSENT, SENTENCE, ANSWER = "(absent)", "(a sentence)", "(an answer:"


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
        elif isinstance(value, list) and isinstance(field.element, type):
            yield here, "(a list)"
            for name, element in _named(value, version, normal):
                yield f"{here}.{name}", _element(element, version, normal)
                yield from _fields(element, version, normal, f"{here}.{name}")
        else:
            yield here, text(field.name, normal(value))


def _element(element: Struct, version: int, normal: Callable[[Any], Any]) -> str:
    """The plain fields of an element, in a line: what a difference says of one that is not there
    on the other side.
    """
    fields = (
        (field.name, getattr(element, field.name))
        for field in element.FIELDS
        if field.is_in(version)
    )
    shown = (
        f"{name}: {text(name, normal(value))}"
        for name, value in fields
        if not isinstance(value, Struct) and not (isinstance(value, list) and value)
    )
    return f"{{{', '.join(shown)}}}"


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
    if name.endswith("error_message") and value:
        return SENTENCE
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return data.hex() if len(data) <= 16 else f"{len(data)} bytes, {zlib.crc32(data):08x}"
    return repr(value) if isinstance(value, str) else str(value)


def compared(
    api: str, version: int, label: str, kafka: dict[str, str], ours: dict[str, str]
) -> list[Difference]:
    """What is not the same in two flat answers."""
    found = []
    lacking: set[str] = set()  # elements that one side has not: their fields say nothing more
    first, second = _beside(kafka, ours)
    for path in sorted(first.keys() | second.keys()):
        values = first.get(path, ABSENT), second.get(path, ABSENT)
        if values[0] == values[1] or path.startswith(tuple(lacking)):
            continue
        if ABSENT not in values and values[0].startswith("{"):
            continue  # both have the element: its fields follow
        if ABSENT in values:
            lacking.add(f"{path}.")
        found.append(Difference(api, version, label, path, *values))
    return found


def _beside(kafka: dict[str, str], ours: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Both, or both as one line where one side has no answer."""
    if kafka and ours and "" not in kafka and "" not in ours:
        return kafka, ours
    return _in_a_line(kafka), _in_a_line(ours)


def _in_a_line(found: dict[str, str]) -> dict[str, str]:
    if not found or "" in found:
        return {"": found.get("", ABSENT)}
    codes = {value for path, value in found.items() if path.endswith("error_code")}
    return {"": f"{ANSWER} {', '.join(sorted(codes)) or 'no error code'})"}
