"""Random messages made from their descriptions, and the list of all messages: what the codec
tests have in common.
"""

import importlib
import pkgutil
import re
from random import Random
from typing import Any

from twisted_broker.wire import messages
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.schema import Field, Message, Request, Struct, binary

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LETTERS = "abcxyzéλ漢😀 /\0"


class Blob(Request, api_key=0, versions="0-1", flexible="1+"):
    """Bytes and nothing else: no message of Kafka's that we serve is as plain."""

    data: bytes = binary("0+")


def snake_case(name: str) -> str:
    """A name of Kafka's as ours."""
    return re.sub(
        r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])",
        lambda match: "_".join(part for part in match.groups() if part),
        name,
    ).lower()


def all_messages() -> list[type[Message]]:
    """Every request, response and record of every family, by name."""
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(messages.__path__, messages.__name__ + "."):
        for cls in vars(importlib.import_module(module.name)).values():
            if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.name:
                found[cls.__name__] = cls
    return [found[name] for name in sorted(found)]


def all_versions() -> list[tuple[type[Message], int]]:
    return [
        (cls, version)
        for cls in all_messages()
        for version in range(cls.versions.min, cls.versions.max + 1)
    ]


def version_name(value: Any) -> str:
    """For pytest's ids."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


class Sampler:
    """Makes messages out of a source of randomness.

    `tame` keeps to values that every other implementation accepts.
    """

    def __init__(self, random: Random, tame: bool = False) -> None:
        self.random = random
        self.tame = tame

    def message(self, cls: type[Struct], version: int) -> Any:
        """Valid at `version`: fields that it lacks keep their defaults, null only where it may
        be.
        """
        return cls(
            **{
                field.name: self.value(field, version)
                for field in cls.FIELDS
                if field.is_in(version)
            }
        )

    def value(self, field: Field, version: int) -> Any:
        if field.is_nullable(version) and self.random.randrange(4) == 0:
            return None
        if field.kind == "array":
            count = self.random.choice((0, 1, 1, 2))
            return [self.one(field.element, field.name, version) for _ in range(count)]
        return self.one(
            field.element if field.kind == "structure" else field.kind, field.name, version
        )

    def one(self, kind: Any, name: str, version: int) -> Any:
        if isinstance(kind, type):
            return self.message(kind, version)
        if kind in BITS:
            return self.integer(name, BITS[kind])
        return getattr(self, kind)()

    def integer(self, name: str, bits: int) -> int:
        if name == "error_code":
            return int(self.random.choice(list(ErrorCode)))
        if self.tame:
            return self.random.choice((0, 1, 2, 100))
        top = 1 << (bits - 1)
        return self.random.choice((-top, -1, 0, 1, top - 1, self.random.randrange(-top, top)))

    def uint16(self) -> int:
        return self.random.choice((0, 1, 9092, 65535))

    def float64(self) -> float:
        return self.random.choice((0.0, -1.5, 1e300))

    def boolean(self) -> bool:
        return self.random.random() < 0.5

    def uuid(self) -> bytes:
        return bytes(
            [self.random.randrange(256), 1, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 2]
        )

    def string(self) -> str:
        if self.random.randrange(20) == 0:
            return "long" * self.random.choice((31, 32, 4095))
        return "".join(self.random.choice(LETTERS) for _ in range(self.random.randrange(6)))

    def binary(self) -> bytes:
        if self.random.randrange(20) == 0:
            return bytes(self.random.choice((126, 127, 20000)))
        return self.random.choice((b"", b"\0", b"bytes \xff\xfe"))

    def record_bytes(self) -> bytes:
        return self.binary()
