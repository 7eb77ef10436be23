"""The base of the native classes of messages and their codecs. Only a compiled broker has it.

A family of `compiled/families.txt` becomes such classes when a wheel is compiled
(`native_source.py`): one class per struct with typed attributes, one function that reads it and one
that writes it, for all versions.

1. A codec here is the fast way for what is usual. Whatever it refuses goes to the generated codec
   of the version (`reader_source.py`, `writer_source.py`), which decides: it refuses in its own
   words, or reads in slices. So nothing is refused or accepted here that is not there.
2. A frame that is no `bytes` is read by the generated codec: what is long in it are records, of
   which a view is taken.
3. Integers keep any size in an attribute; one that its field cannot hold is refused when written.

Source: Kafka's message JSON, as the descriptions have it; KIP-482. Not here: descriptions
(`messages/`), the text of the classes (`native_source.py`).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final, final

from librt.strings import (
    BytesWriter,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from twisted_broker.wire import structs
from twisted_broker.wire.fields import FRESH, Field, VersionRange, version_range
from twisted_broker.wire.primitives import FEW_ELEMENTS, MAX_TAGGED_FIELDS, NULL_UUID

__all__ = [
    "FRESH",
    "NULL_UUID",
    "Codec",
    "Field",
    "FrameBytes",
    "MessageBytes",
    "NativeMessage",
    "NativeRecord",
    "NativeRequest",
    "NativeResponse",
    "NativeStruct",
    "Refused",
    "bound",
    "described",
    "fields",
]

_MOST: Final = 1 << 62
_VERSIONS: Final = version_range("none")


class Refused(Exception):
    """For the generated codec to decide."""


class NativeStruct:  # noqa: PLW1641  it is no key, as `structs.Struct`
    """As `structs.Struct`, of which `isinstance` holds it one."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        return structs.shown(self)


class NativeMessage(NativeStruct):
    """As `structs.Message`."""

    versions: ClassVar[VersionRange] = _VERSIONS
    flexible: ClassVar[VersionRange] = _VERSIONS
    readers: ClassVar[dict[int, structs.Reader]] = {}
    writers: ClassVar[dict[int, structs.Writer]] = {}
    allows_trailing_bytes: ClassVar[bool] = False


class NativeRequest(NativeMessage):
    """As `structs.Request`."""

    api_key: ClassVar[int] = -1
    allows_trailing_bytes: ClassVar[bool] = True


class NativeResponse(NativeMessage):
    """As `structs.Response`."""

    api_key: ClassVar[int] = -1
    allows_trailing_bytes: ClassVar[bool] = True


class NativeRecord(NativeMessage):
    """As `structs.Record`."""

    record_type: ClassVar[int] = -1


@final
class FrameBytes:
    """A frame that is read: where, and how many elements of arrays it may still have."""

    def __init__(self, data: bytes, position: i64, left: i64) -> None:
        self.data = data
        self.at = position
        self.end: i64 = len(data)
        self.left = left

    def boolean(self) -> bool:
        at = self.at
        self.at = at + 1
        return self.data[at] != 0

    def int8(self) -> int:
        at = self.at
        self.at = at + 1
        value = self.data[at]
        return value if value < 128 else value - 256

    def int16(self) -> int:
        at = self.at
        self.at = at + 2
        return read_i16_be(self.data, at)

    def uint16(self) -> int:
        value = self.int16()
        return value if value >= 0 else value + 65536

    def int32(self) -> int:
        at = self.at
        self.at = at + 4
        return read_i32_be(self.data, at)

    def int64(self) -> int:
        at = self.at
        self.at = at + 8
        return read_i64_be(self.data, at)

    def float64(self) -> float:
        at = self.at
        self.at = at + 8
        return read_f64_be(self.data, at)

    def uuid(self) -> bytes:
        return self.taken(16)

    def uvarint(self) -> i64:
        data, at = self.data, self.at
        byte: i64 = data[at]
        at += 1
        value: i64 = byte & 0x7F
        shift: i64 = 7
        while byte > 127:
            if shift > 28:
                raise Refused
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        if value > 0xFFFFFFFF:
            raise Refused
        self.at = at
        return value

    def short_length(self, compact: bool) -> i64:
        """Of a string; -1 is null."""
        if compact:
            return self.uvarint() - 1
        at = self.at
        self.at = at + 2
        return i64(read_i16_be(self.data, at))

    def length(self, compact: bool) -> i64:
        """Of bytes or an array; -1 is null."""
        if compact:
            return self.uvarint() - 1
        at = self.at
        self.at = at + 4
        return i64(read_i32_be(self.data, at))

    def taken(self, length: i64) -> bytes:
        at = self.at
        end = at + length
        if length < 0 or end > self.end:
            raise Refused
        self.at = end
        return self.data[at:end]

    def string(self, compact: bool) -> str:
        return self.taken(self.short_length(compact)).decode("utf-8", "replace")

    def nullable_string(self, compact: bool) -> str | None:
        length = self.short_length(compact)
        return None if length == -1 else self.taken(length).decode("utf-8", "replace")

    def binary(self, compact: bool) -> bytes:
        return self.taken(self.length(compact))

    def nullable_binary(self, compact: bool) -> bytes | None:
        length = self.length(compact)
        return None if length == -1 else self.taken(length)

    def records(self, compact: bool, nullable: bool) -> Any:
        length = self.length(compact)
        if nullable and length == -1:
            return None
        at = self.at
        end = at + length
        if length < 0 or end > self.end:
            raise Refused
        self.at = end
        return memoryview(self.data)[at:end]

    def count(self, compact: bool) -> i64:
        """Of an array that may not be null."""
        count = self.length(compact)
        self.left -= count
        if count < 0 or self.left < 0:
            raise Refused
        return count

    def nullable_count(self, compact: bool) -> i64:
        """As `count`; -1 is null."""
        count = self.length(compact)
        if count == -1:
            return count
        self.left -= count
        if count < 0 or self.left < 0:
            raise Refused
        return count

    def tags(self) -> i64:
        count = self.uvarint()
        if count > MAX_TAGGED_FIELDS:
            raise Refused
        return count

    def tag_end(self, tag: i64, last: i64) -> i64:
        """Where the value of a tagged field ends."""
        size = self.uvarint()
        end = self.at + size
        if tag <= last or end > self.end:
            raise Refused
        return end

    def skip_tags(self) -> None:
        """A section of tagged fields none of which is known."""
        count = self.tags()
        last: i64 = -1
        while count > 0:
            tag = self.uvarint()
            self.at = self.tag_end(tag, last)
            last = tag
            count -= 1


@final
class MessageBytes:
    """A message that is written: bytes, and between them records as the objects they are."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.out = BytesWriter()

    def boolean(self, value: bool) -> None:
        self.out.append(1 if value else 0)

    def int8(self, value: int) -> None:
        if not -128 <= value <= 127:
            raise Refused
        self.out.append(value & 0xFF)

    def int16(self, value: int) -> None:
        if not -32768 <= value <= 32767:
            raise Refused
        write_i16_be(self.out, value)

    def uint16(self, value: int) -> None:
        if not 0 <= value <= 65535:
            raise Refused
        write_i16_be(self.out, value if value < 32768 else value - 65536)

    def int32(self, value: int) -> None:
        if not -0x80000000 <= value <= 0x7FFFFFFF:
            raise Refused
        number: i32 = value
        write_i32_be(self.out, number)

    def int64(self, value: int) -> None:
        number: i64 = value  # OverflowError
        write_i64_be(self.out, number)

    def float64(self, value: float) -> None:
        write_f64_be(self.out, value)

    def uuid(self, value: bytes) -> None:
        if len(value) != 16:
            raise Refused
        self.out.write(value)

    def uvarint(self, value: i64) -> None:
        while value > 127:
            self.out.append((value & 0x7F) | 0x80)
            value >>= 7
        self.out.append(value)

    def short_length(self, length: i64, compact: bool) -> None:
        """Of a string; -1 is null."""
        if compact:
            self.uvarint(length + 1)
        elif length > 32767:
            raise Refused
        else:
            write_i16_be(self.out, i16(length))

    def length(self, length: i64, compact: bool) -> None:
        """Of bytes or an array; -1 is null."""
        if compact:
            self.uvarint(length + 1)
        elif length > 0x7FFFFFFF:
            raise Refused
        else:
            write_i32_be(self.out, i32(length))

    def string(self, value: str, compact: bool) -> None:
        raw = value.encode()
        self.short_length(len(raw), compact)
        self.out.write(raw)

    def nullable_string(self, value: str | None, compact: bool) -> None:
        if value is None:
            self.short_length(-1, compact)
        else:
            self.string(value, compact)

    def binary(self, value: bytes, compact: bool) -> None:
        self.length(len(value), compact)
        self.out.write(value)

    def nullable_binary(self, value: bytes | None, compact: bool) -> None:
        if value is None:
            self.length(-1, compact)
        else:
            self.binary(value, compact)

    def records(self, value: Any, compact: bool, nullable: bool) -> None:
        if value is None:
            if not nullable:
                raise Refused
            self.length(-1, compact)
            return
        is_list = type(value) is list or type(value) is tuple
        size: int = sum(map(len, value)) if is_list else len(value)
        self.length(size, compact)
        self.flush()
        if is_list:
            self.parts.extend(value)
        else:
            self.parts.append(value)

    def flush(self) -> None:
        if len(self.out):
            self.parts.append(self.out.getvalue())
            self.out = BytesWriter()

    def tagged(self, tag: i64, value: "MessageBytes") -> None:
        content = value.out.getvalue()
        self.uvarint(tag)
        self.uvarint(len(content))
        self.out.write(content)


class Codec:
    """Of one message, all versions."""

    def read(self, frame: FrameBytes, version: i64) -> NativeMessage:
        raise NotImplementedError

    def write(self, message: Any, out: MessageBytes, version: i64) -> None:
        raise NotImplementedError


@final
class BoundCodec:
    """Of one message at one version."""

    def __init__(self, codec: Codec, cls: Any, version: int) -> None:
        self._codec = codec
        self._cls = cls
        self._version: i64 = version
        self._left: i64 = FEW_ELEMENTS if issubclass(cls, NativeRequest) else _MOST
        self._reader: Callable[..., Any] | None = None
        self._writer: Callable[..., Any] | None = None

    def read(self, buffer: Any, position: int, end: int) -> tuple[Any, int]:
        if isinstance(buffer, bytes):
            frame = FrameBytes(buffer, position, self._left)
            try:
                return self._codec.read(frame, self._version), frame.at
            except Exception:  # noqa: S110  the generated reader says what it is
                pass
        if self._reader is None:
            from twisted_broker.wire.schema import generated_reader

            self._reader = generated_reader(self._cls, self._version)
        found: tuple[Any, int] = self._reader(buffer, position, end)
        return found

    def write(self, message: Any, parts: list[Any]) -> None:
        count = len(parts)
        try:
            out = MessageBytes(parts)
            self._codec.write(message, out, self._version)
            out.flush()
        except Exception:
            del parts[count:]
        else:
            return
        if self._writer is None:
            from twisted_broker.wire.schema import generated_writer

            self._writer = generated_writer(self._cls, self._version)
        self._writer(message, parts)


CODECS: Final[dict[Any, Codec]] = {}


def bound(cls: Any, version: int) -> BoundCodec:
    """The codec of a native message at a version that it has."""
    return BoundCodec(CODECS[cls], cls, version)


def fields(**described: Any) -> tuple[Field, ...]:
    """`FIELDS`, named as in a description."""
    for name, field in described.items():
        field.name = name
    return tuple(described.values())


def described(cls: Any, versions: str, flexible: str, number: int, codec: Codec) -> None:
    """Gives the class what a description says of a message; `number`: the key of its API, or
    the type of its record.
    """
    cls.versions = version_range(versions)
    cls.flexible = version_range(flexible)
    cls.readers = {}
    cls.writers = {}
    if issubclass(cls, NativeRecord):
        cls.record_type = number
    elif issubclass(cls, (NativeRequest, NativeResponse)):
        cls.api_key = number
    CODECS[cls] = codec


structs.NATIVE.update(
    {
        structs.Struct: NativeStruct,
        structs.Message: NativeMessage,
        structs.Request: NativeRequest,
        structs.Response: NativeResponse,
        structs.Record: NativeRecord,
    }
)
