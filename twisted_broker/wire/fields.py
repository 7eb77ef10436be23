"""The fields a description is written with: kind, versions, default, and what else Kafka's JSON
says of one.

1. A field is data; nothing is computed while descriptions are imported. `versions` and `nullable`
   stay texts until a codec is written.
2. The functions return Any, so that the annotation beside a field is what type checkers see.
Not here: the classes that fields make up, and reading and writing them (schema.py).
"""

from typing import Any, NamedTuple

from twisted_broker.wire.primitives import NULL_UUID

FRESH: Any = (
    object()
)  # stands for a default created for each message: an empty list, a struct of defaults
NEWEST = 32767


class VersionRange(NamedTuple):
    """Both ends inclusive; empty when max < min."""

    min: int
    max: int

    def holds(self, version: int) -> bool:
        return self.min <= version <= self.max


def version_range(text: str | None) -> VersionRange:
    """From Kafka's notation: "3-9", "4+", "2", and "none" or None for no version at all."""
    if text is None or text == "none":
        return VersionRange(0, -1)
    low, dash, high = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return VersionRange(int(low), NEWEST)
    return VersionRange(int(low), int(high if dash else low))


class Field:
    """One field of a description. `kind` is one of the functions' names below; `element` the class
    of a struct, the class or kind of an array's elements.
    """

    __slots__ = ("default", "element", "ignorable", "kind", "name", "nullable", "tag", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        default: Any,
        nullable: str | None,
        tag: int | None,
        ignorable: bool,
        element: Any = None,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.versions = versions
        self.default = default
        self.nullable = nullable
        self.tag = tag
        self.ignorable = ignorable
        self.element = element

    def is_in(self, version: int) -> bool:
        return version_range(self.versions).holds(version)

    def is_nullable(self, version: int) -> bool:
        return version_range(self.nullable).holds(version)


def boolean(
    versions: str, default: bool = False, tag: int | None = None, ignorable: bool = False
) -> Any:
    return Field("boolean", versions, default, None, tag, ignorable)


def int8(versions: str, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return Field("int8", versions, default, None, tag, ignorable)


def int16(versions: str, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return Field("int16", versions, default, None, tag, ignorable)


def uint16(versions: str, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return Field("uint16", versions, default, None, tag, ignorable)


def int32(versions: str, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return Field("int32", versions, default, None, tag, ignorable)


def int64(versions: str, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return Field("int64", versions, default, None, tag, ignorable)


def float64(
    versions: str, default: float = 0.0, tag: int | None = None, ignorable: bool = False
) -> Any:
    return Field("float64", versions, default, None, tag, ignorable)


def uuid(
    versions: str, default: bytes = NULL_UUID, tag: int | None = None, ignorable: bool = False
) -> Any:
    return Field("uuid", versions, default, None, tag, ignorable)


def string(
    versions: str,
    default: str | None = "",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    return Field("string", versions, default, nullable, tag, ignorable)


def binary(
    versions: str,
    default: bytes | None = b"",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """Kafka's `bytes`: copied out of the frame."""
    return Field("binary", versions, default, nullable, tag, ignorable)


def record_bytes(versions: str, nullable: str | None = None, ignorable: bool = False) -> Any:
    """Kafka's `records`: a memoryview of the frame when read; written from None, bytes-like,
    anything with a length, or a list of such.
    """
    return Field("record_bytes", versions, None, nullable, None, ignorable)


def array(
    element: Any,
    versions: str,
    default: None = FRESH,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """Elements of a Struct class, or of one of the functions above, as in `array(int32, "0+")`."""
    return Field(
        "array",
        versions,
        default,
        nullable,
        tag,
        ignorable,
        element if isinstance(element, type) else element.__name__,
    )


def structure(
    element: type,
    versions: str,
    default: None = FRESH,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    return Field("structure", versions, default, nullable, tag, ignorable, element)
