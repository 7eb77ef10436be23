"""Seeded messages of any API and version: sensible, strange, and broken on purpose."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import Field, Struct

NAMES = (
    "t",
    "t",
    "t",
    "g",
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "x\0y",
    "a\nb",
    "n" * 249,
    "n" * 250,
    "ü",
    "__consumer_offsets",
    "__cluster_metadata",
)
NUMBERS: dict[str, tuple[int, ...]] = {
    "int8": (0, 0, 1, -1, 2, 4, 127, -128),
    "int16": (0, 0, 1, -1, 2, 32767, -32768),
    "uint16": (0, 1, 9092, 65535),
    "int32": (0, 0, 0, 1, 1, -1, -2, 5, 1000, 2**31 - 1, -(2**31)),
    "int64": (0, 0, 0, 1, -1, -2, -3, 10, 2**63 - 1, -(2**63)),
}


def random_message(
    random: Random, cls: Any, version: int, topic_ids: tuple[bytes, ...] = ()
) -> Any:
    """A message that can be encoded at `version`."""
    made = cls()
    for field in cls.FIELDS:
        if field.is_in(version) and random.random() < 0.9:
            setattr(made, field.name, _value(random, field, version, topic_ids))
    return made


def _value(random: Random, field: Field, version: int, topic_ids: tuple[bytes, ...]) -> Any:
    if field.is_nullable(version) and random.random() < 0.15:
        return None
    if field.kind == "array":
        count = random.choice((0, 1, 1, 1, 2, 3))
        return [_element(random, field.element, version, topic_ids) for _ in range(count)]
    if field.kind == "structure":
        return random_message(random, field.element, version, topic_ids)
    return _scalar(random, field.kind, topic_ids)


def _element(random: Random, element: Any, version: int, topic_ids: tuple[bytes, ...]) -> Any:
    if isinstance(element, type) and issubclass(element, Struct):
        return random_message(random, element, version, topic_ids)
    return _scalar(random, element, topic_ids)


def _scalar(random: Random, kind: str, topic_ids: tuple[bytes, ...]) -> Any:
    if kind in NUMBERS:
        return random.choice(NUMBERS[kind])
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice((0.0, 1.5, -1.0, float("inf")))
    if kind == "string":
        return random.choice(NAMES)
    if kind == "uuid":
        return random.choice((bytes(16), random.randbytes(16), *topic_ids))
    if kind == "binary":
        return random.randbytes(random.choice((0, 1, 4, 16, 40)))
    assert kind == "record_bytes", kind
    return random_records(random)


def random_records(random: Random) -> bytes:
    """Batches: good, damaged, cut, or no batches at all."""
    builder = BatchBuilder()
    for _ in range(random.choice((1, 1, 3))):
        builder.append(1_700_000_000_000, None, random.randbytes(random.choice((0, 10, 300))))
    good = builder.build()
    return random.choice(
        (
            good,
            good,
            good + good,
            good[: random.randrange(len(good))],
            mutated(random, good),
            random.randbytes(80),
            b"",
        )
    )


def mutated(random: Random, data: bytes) -> bytes:
    """The bytes with one to four changes: flipped bits, cuts, insertions, large numbers."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = random.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff")
            )
        elif kind == 2:
            del changed[at : at + random.randint(1, 8)]
        elif kind == 3:
            changed[at:at] = random.randbytes(random.randint(1, 8))
        else:
            changed[at : at + 1] = b"\xff" * 5
    return bytes(changed)
