"""The names in a request or its answer: topics, partitions, groups, transactional ids.

Owns `names_of`, which finds them by the names that fields have in Kafka's messages, and
`elements`, the structures of an answer that are of one partition each.

Source: Kafka's message definitions. Not here: which of them a fault strikes (`request_rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from twisted_broker.wire.structs import Struct

_TOPIC = ("topic", "name", "topic_name")
_PARTITION = ("partition_index", "partition", "index", "partition_id")
_PARTITIONS = ("partitions", "partition_indexes")
_GROUP, _GROUPS = ("group_id", "group"), ("groups", "groups_names")
_TRANSACTION, _TRANSACTIONS = ("transactional_id",), ("transactional_ids",)
_NO_ID = bytes(16)

Where = tuple[str, int | None]
"""Topic and partition; None: a request for the topic as a whole"""


class Names(NamedTuple):
    """Sets; empty: it has none."""

    partitions: set[Where]
    groups: set[str]
    transactional_ids: set[str]


def names_of(request: Any, topic_named: Callable[[bytes], str | None]) -> Names:
    """`topic_named(id)`: the topic with that id."""
    found = Names(set(), set(), set())
    for struct, topic, partition in _walk(request, None, False, topic_named):
        if topic is not None:
            found.partitions.add((topic, partition))
        for field in struct.FIELDS:
            value = getattr(struct, field.name)
            if field.name in _GROUP or field.name in _TRANSACTION:
                kind = found.groups if field.name in _GROUP else found.transactional_ids
                if isinstance(value, str):
                    kind.add(value)
            elif field.name in _GROUPS or field.name in _TRANSACTIONS:
                kind = found.groups if field.name in _GROUPS else found.transactional_ids
                kind.update(each for each in value or () if isinstance(each, str))
    if hasattr(request, "key_type"):  # FindCoordinator
        kind = found.transactional_ids if request.key_type == 1 else found.groups
        kind.update([*request.coordinator_keys, request.key])
    found.groups.discard("")
    found.transactional_ids.discard("")
    numbered = {topic for topic, partition in found.partitions if partition is not None}
    found.partitions.difference_update([(topic, None) for topic in numbered])
    return found


def elements(
    answer: Struct, topic_named: Callable[[bytes], str | None]
) -> Iterator[tuple[str, int | None, Struct]]:
    """Topic, partition and structure of each that has an error of its own."""
    for struct, topic, partition in _walk(answer, None, False, topic_named):
        if topic is not None and hasattr(struct, "error_code"):
            yield topic, partition, struct


def _walk(
    struct: Any, topic: str | None, of_topics: bool, topic_named: Callable[[bytes], str | None]
) -> Iterator[tuple[Any, str | None, int | None]]:
    """Every structure, with its topic and its partition. `of_topics`: it is one of a list of
    topics.
    """
    own = topic_of(struct, topic_named) if of_topics else None
    topic = own or topic
    partition: int | None = None
    parts: list[int] = []
    if topic is not None:
        partition = number_of(struct) if own is None else None
        for name in _PARTITIONS:
            value = getattr(struct, name, None)
            if isinstance(value, list | tuple):
                parts += [each for each in value if isinstance(each, int)]
    for each in parts:
        yield struct, topic, each
    if not parts:
        yield struct, topic, partition
    for field in struct.FIELDS:
        held: Any = getattr(struct, field.name)
        inner = "topic" in field.name or field.name == "responses"
        for each in held if isinstance(held, list | tuple) else (held,):
            if isinstance(each, Struct):
                yield from _walk(each, topic, inner, topic_named)
            elif isinstance(each, str) and inner and each is not held:
                yield struct, each, None


def number_of(part: Any) -> int | None:
    """Of a partition: a number, or a structure that has it."""
    if isinstance(part, int):
        return part
    for name in _PARTITION:
        value = getattr(part, name, None)
        if isinstance(value, int):
            return value
    return None


def topic_of(struct: Any, topic_named: Callable[[bytes], str | None]) -> str | None:
    """The name of a topic's structure, also where that has its id."""
    for name in _TOPIC:
        value = getattr(struct, name, None)
        if value:
            return str(value)
    identity = getattr(struct, "topic_id", _NO_ID)
    return None if identity == _NO_ID else topic_named(identity)
