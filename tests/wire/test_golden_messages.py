"""Stored records and old versions that no Python library knows: the bytes, names and values of
Apache Kafka's own classes.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.sampling import all_messages
from twisted_broker.wire.primitives import uuid_from_text
from twisted_broker.wire.schema import Field, Struct, decode, encode

GOLDEN = Path(__file__).parent / "golden"


def lines_of(name: str) -> list[str]:
    return [line for line in (GOLDEN / name).read_text().splitlines() if line[0] != "#"]


LINES = lines_of("messages.txt")
CLASSES = {cls.__name__: cls for cls in all_messages()}


def built(cls: type[Struct], values: dict[str, Any]) -> Any:
    """The message out of Kafka's JSON; what is not in there keeps its default."""
    fields = {field.name: field for field in cls.FIELDS}
    names = {
        re.sub("[A-Z]", lambda match: "_" + match[0].lower(), key): value
        for key, value in values.items()
    }
    return cls(**{name: one_value(fields[name], value) for name, value in names.items()})


def one_value(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [one_value(field, one) for one in value]
    if isinstance(value, dict):
        return built(field.element, value)
    if "uuid" in (field.kind, field.element):
        return uuid_from_text(value)
    return b64decode(value) if field.kind == "binary" else value


@pytest.mark.parametrize("line", LINES, ids=lambda line: "-".join(line.split(" ")[:3])[:60])
def test_same_bytes_names_and_values(line: str) -> None:
    name, version, raw, text = line.split(" ", 3)
    encoded = bytes.fromhex(raw.strip("-"))
    message = built(CLASSES[name], json.loads(text))
    assert encode(message, int(version)) == encoded
    assert decode(CLASSES[name], encoded, int(version)) == message


def test_metadata_records_are_all_there() -> None:
    """Every record type that Kafka 4.3.1 writes to the metadata log, except that of ZooKeeper
    migrations, has bytes of Kafka's above.
    """
    names = {line.split(" ")[0] for line in LINES}
    assert (
        len([name for name in names if CLASSES[name].__module__.endswith("metadata_records")]) == 25
    )


def test_what_an_older_version_is_sent_without() -> None:
    """As in `test_kafka_python.py`, of messages that only brokers send."""
    theirs = dict(line.split(" ") for line in lines_of("ignorable.txt"))
    assert len(theirs) > 40
    ours = {
        path: "+" if field.ignorable else "-"
        for name, cls in CLASSES.items()
        for path, field in paths(name, cls)
    }
    assert {path: ours[path] for path in theirs} == theirs


def paths(prefix: str, cls: type[Struct]) -> Iterator[tuple[str, Field]]:
    for field in cls.FIELDS:
        path = f"{prefix}.{field.name}"
        yield path, field
        if isinstance(field.element, type) and issubclass(field.element, Struct):
            yield from paths(path, field.element)
