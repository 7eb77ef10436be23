"""The base of a message's description: a class that is nothing but its fields.

Owns `Struct` and what is made of it: `Message`, and its kinds `Request`, `Response`, `Record`.

1. A class is nothing but slots, Kafka's defaults, keyword arguments, equality and a repr. Importing
   descriptions compiles nothing.
2. A field that is FRESH by default is created for each object.
3. A message of very many elements is freed in steps: at a stroke a million take 0.1 s.

Not here: the fields (fields.py); bytes (schema.py, which hands all of this on: descriptions
import from there).
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from twisted_broker.wire.fields import Field, VersionRange, version_range
from twisted_broker.wire.primitives import FEW_ELEMENTS, Buffer

Reader: TypeAlias = "Callable[[Buffer, int, int], tuple[Any, int]]"
Writer: TypeAlias = "Callable[[Any, list[Any]], None]"


NATIVE: dict[type, type] = {}
"""What a compiled broker has for the classes here (`native.py`): `isinstance` counts both."""


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Makes slots out of the fields of a description."""

    FIELDS: tuple[Field, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or (
            cls in NATIVE and issubclass(subclass, NATIVE[cls])
        )

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **facts: Any
    ) -> "StructType":
        fields = []
        for key, value in list(namespace.items()):
            if type(value) is Field:
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__slots__"] = tuple([field.name for field in fields])
        namespace["FIELDS"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace, **facts)


class Struct(metaclass=StructType):
    """Base of every description.

    The real `__init__`, with Kafka's defaults, is compiled when the class is first called.
    """

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        from twisted_broker.wire.init_source import compile_init

        cls = type(self)
        cls.__init__ = compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return shown(self)


def shown(struct: Any) -> str:
    """For logs: bytes only by their number, since they may be passwords and are never worth
    reading.
    """
    values = ", ".join(
        f"{field.name}={_shown(field, getattr(struct, field.name))}" for field in struct.FIELDS
    )
    return f"{type(struct).__name__}({values})"


def _shown(field: Field, value: Any) -> str:
    if value is not None and field.kind in ("binary", "record_bytes"):
        return f"<{sum(map(len, value)) if isinstance(value, list | tuple) else len(value)} bytes>"
    return repr(value)


class Message(Struct):
    """What can be encoded by itself, at a version.

    `readers` and `writers` hold the compiled codecs.
    """

    versions: ClassVar[VersionRange]
    flexible: ClassVar[VersionRange]
    readers: ClassVar[dict[int, Reader]]
    writers: ClassVar[dict[int, Writer]]
    allows_trailing_bytes: ClassVar[bool] = False

    def __init_subclass__(cls, versions: str = "none", flexible: str = "none") -> None:
        super().__init_subclass__()
        cls.versions = version_range(versions)
        cls.flexible = version_range(flexible)
        cls.readers = {}
        cls.writers = {}


class Request(Message):
    """Kafka does not look behind a request either: librdkafka's Metadata v9+ for all topics is
    three bytes too long.
    """

    api_key: ClassVar[int] = -1
    allows_trailing_bytes: ClassVar[bool] = True

    def __init_subclass__(
        cls, api_key: int = -1, versions: str = "none", flexible: str = "none"
    ) -> None:
        super().__init_subclass__(versions, flexible)
        cls.api_key = api_key


class Response(Message):
    """A later peer may append to an answer; Kafka's clients do not look."""

    api_key: ClassVar[int] = -1
    allows_trailing_bytes: ClassVar[bool] = True

    def __init_subclass__(
        cls, api_key: int = -1, versions: str = "none", flexible: str = "none"
    ) -> None:
        super().__init_subclass__(versions, flexible)
        cls.api_key = api_key


class Record(Message):
    """Key or value of a record that Kafka itself stores.

    `record_type` distinguishes its kinds in one log; -1 where there is only one.
    """

    record_type: ClassVar[int] = -1

    def __init_subclass__(
        cls, record_type: int = -1, versions: str = "none", flexible: str = "none"
    ) -> None:
        super().__init_subclass__(versions, flexible)
        cls.record_type = record_type


def emptied_in_steps(message: Struct) -> Iterator[None]:
    """Empties the message's arrays of structs, and theirs, FEW_ELEMENTS elements in a step; for
    a message that is not needed any more.
    """
    for name, nested in _arrays_of(type(message)):
        elements = getattr(message, name)
        if type(elements) is list:
            yield from _emptied(elements, nested)


def _emptied(elements: list[Any], nested: list[tuple[str, Any]]) -> Iterator[None]:
    count = 0
    while elements:
        if not nested:
            del elements[-FEW_ELEMENTS:]
            yield
            continue
        element = elements.pop()
        count += 1
        for name, deeper in nested:
            inner = getattr(element, name)
            if type(inner) is not list:
                continue
            if deeper or len(inner) > FEW_ELEMENTS:
                yield from _emptied(inner, deeper)
            else:
                count += len(inner)
        if count >= FEW_ELEMENTS:
            count = 0
            yield


def _arrays_of(cls: type[Struct]) -> list[tuple[str, Any]]:
    """The names of its arrays of structs, each with those of its elements."""
    return [
        (field.name, _arrays_of(field.element))
        for field in cls.FIELDS
        if field.kind == "array" and isinstance(field.element, type)
    ]
