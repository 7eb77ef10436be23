"""Declarative descriptions of Kafka's messages, and the four calls that turn them into bytes and
back.

    class FetchTopic(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition, "0+")

    class FetchRequest(Request, api_key=1, versions="0-18", flexible="12+"): ...

1. One class serves all versions of a message; a field says which versions carry it. Names are those
   of Kafka's JSON in snake_case.
2. A class is nothing but its fields (structs.py). Importing descriptions compiles nothing.
3. A reader and a writer per (class, version) are written as typed source text (reader_source.py,
   writer_source.py), compiled when first used and kept. Everything about a field is decided while
   the text is written, nothing while it runs.
4. What a peer sent raises WireError and nothing else; counts never exceed remaining bytes /
   smallest element; unknown tagged fields are skipped.
5. A field that holds something, but that the version has no place for, is dropped when `ignorable`;
   otherwise encoding raises ValueError.
Source: Kafka's message JSON (4.3.1; 3.9 for versions 4.0 removed), MessageDataGenerator for rules 4
and 5, KIP-482. Not here: frames (net/), headers (header.py), record batches: a `record_bytes`
field is read as a view of the frame, written from bytes-like parts or anything with a length.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from twisted_broker.wire.errors import ManyElements, WireError
from twisted_broker.wire.fields import (
    FRESH,
    Field,
    VersionRange,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    record_bytes,
    string,
    structure,
    uint16,
    uuid,
    version_range,
)
from twisted_broker.wire.primitives import Buffer
from twisted_broker.wire.structs import (
    NATIVE,
    Message,
    Reader,
    Record,
    Request,
    Response,
    Struct,
    StructType,
    Writer,
    emptied_in_steps,
)

__all__ = [
    "FRESH",
    "Field",
    "Message",
    "Reader",
    "Record",
    "Request",
    "Response",
    "Struct",
    "StructType",
    "VersionRange",
    "Writer",
    "array",
    "binary",
    "boolean",
    "compile_reader",
    "compile_writer",
    "decode",
    "decode_few",
    "decode_from",
    "decode_in_slices",
    "emptied_in_steps",
    "encode",
    "encode_in_slices",
    "encode_into",
    "encode_parts",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "record_bytes",
    "smallest_size",
    "source_text",
    "string",
    "structure",
    "uint16",
    "uuid",
    "version_range",
]

READ_ERRORS = (struct.error, IndexError)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
# Apart from `readers` and `writers`: only requests of many elements ever need them.
_SLICED: dict[tuple[type[Message], int, str], Any] = {}


def decode(cls: type[M], buffer: Buffer, version: int, offset: int = 0) -> M:
    """The message that starts at `offset` and, unless `allows_trailing_bytes`, fills `buffer` to
    its end. Raises WireError when it does not.
    """
    try:
        return decode_few(cls, buffer, version, offset)
    except ManyElements:
        # Read again from the start: that costs as much as FEW_ELEMENTS, once for each long request.
        return run_whole(decode_in_slices(cls, buffer, version, offset))


def decode_few(cls: type[M], buffer: Buffer, version: int, offset: int = 0) -> M:
    """As `decode`, but ManyElements, early, for a request of more than FEW_ELEMENTS: it is for
    `decode_in_slices`.
    """
    reader = cls.readers.get(version) or compile_reader(cls, version)
    end = len(buffer)
    try:
        message, position = reader(buffer, offset, end)
    except READ_ERRORS:
        # The text of such an error would name an index of ours; where a frame ends too early is all
        # that can be said.
        raise wire_error(cls, version) from None
    if position != end and not cls.allows_trailing_bytes:
        raise WireError(f"{cls.__name__} v{version}: {end - position} bytes too many")
    return message  # type: ignore[no-any-return]


def decode_in_slices(
    cls: type[M], buffer: Buffer, version: int, offset: int = 0
) -> Generator[None, None, M]:
    """As `decode`, pausing after every FEW_ELEMENTS elements; returns the message."""
    from twisted_broker.wire.reader_source import reader_source

    read = _sliced(reader_source, cls, version, "read")
    try:
        message, position = yield from read(buffer, offset, len(buffer))
    except READ_ERRORS:
        raise wire_error(cls, version) from None
    if position != len(buffer) and not cls.allows_trailing_bytes:
        raise WireError(f"{cls.__name__} v{version}: {len(buffer) - position} bytes too many")
    return message  # type: ignore[no-any-return]


def encode_in_slices(
    message: Message, version: int, parts: list[Any]
) -> Generator[None, None, None]:
    """As `encode_into`, pausing after every FEW_ELEMENTS elements."""
    from twisted_broker.wire.writer_source import writer_source

    return _sliced(writer_source, type(message), version, "write")(message, parts)  # type: ignore[no-any-return]


def run_whole(work: Generator[None, None, T]) -> T:
    """What it returns, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _sliced(source: Callable[..., str], cls: type[Message], version: int, name: str) -> Any:
    found = _SLICED.get((cls, version, name))
    if found is None:
        if not cls.versions.holds(version):
            raise WireError(f"{cls.__name__} has no version {version}")
        text = source(cls, version, in_slices=True)
        found = _SLICED[cls, version, name] = _run(
            text, f"<{name} {cls.__name__} v{version} in slices>"
        )[name]
    return found


def decode_from(cls: type[M], buffer: Buffer, version: int, offset: int = 0) -> tuple[M, int]:
    """The message that starts at `offset`, and the offset after it."""
    reader = cls.readers.get(version) or compile_reader(cls, version)
    try:
        return reader(buffer, offset, len(buffer))
    except READ_ERRORS:
        raise wire_error(cls, version) from None


def wire_error(cls: type[Message], version: int) -> WireError:
    """What a reader met, as one kind of error."""
    return WireError(f"{cls.__name__} v{version}: ends too early")


def encode(message: Message, version: int) -> bytes:
    """ValueError for a field that the version cannot carry, or a version that does not exist."""
    parts: list[Any] = []
    cls = type(message)
    writer = cls.writers.get(version) or compile_writer(cls, version)
    writer(message, parts)
    return b"".join(parts)


def encode_into(message: Message, version: int, parts: list[Any]) -> None:
    """Appends the message's bytes; records that are not bytes-like stay the objects they are."""
    cls = type(message)
    writer = cls.writers.get(version) or compile_writer(cls, version)
    writer(message, parts)


def encode_parts(message: Message, version: int) -> list[Any]:
    """Bytes and opaque objects in the order of the wire, neighbouring bytes joined; the whole is
    sum(map(len, parts)) long.
    """
    parts: list[Any] = []
    encode_into(message, version, parts)
    return join_bytes(parts)


def join_bytes(parts: list[Any]) -> list[Any]:
    """Runs of small `bytes` made one, so that a gathered write has few pieces; large ones and
    other objects are left alone.
    """
    joined: list[Any] = []
    run: list[bytes] = []
    for part in parts:
        # A copy of more costs as much as one more buffer in the write.
        if type(part) is bytes and len(part) < 4096:
            run.append(part)
            continue
        if run:
            joined.append(b"".join(run))
            run.clear()
        joined.append(part)
    if run:
        joined.append(b"".join(run))
    return joined


def compile_reader(cls: type[Message], version: int) -> Reader:
    """The function that reads this version, kept in `cls.readers`.

    `WireError` for a version that it does not have.
    """
    if not cls.versions.holds(version):
        raise WireError(f"{cls.__name__} has no version {version}")
    reader = _native(cls, version).read if _is_native(cls) else generated_reader(cls, version)
    cls.readers[version] = reader
    return reader


def generated_reader(cls: type[Message], version: int) -> Reader:
    """Out of the text of `reader_source.py`."""
    from twisted_broker.wire.reader_source import reader_source

    text = reader_source(cls, version)
    return _run(text, f"<reader of {cls.__name__} v{version}>")["read"]  # type: ignore[no-any-return]


def compile_writer(cls: type[Message], version: int) -> Writer:
    """The function that writes this version, kept in `cls.writers`.

    ValueError for a version that it does not have: the caller's mistake.
    """
    if not cls.versions.holds(version):
        raise ValueError(f"{cls.__name__} has no version {version}")
    writer = _native(cls, version).write if _is_native(cls) else generated_writer(cls, version)
    cls.writers[version] = writer
    return writer


def generated_writer(cls: type[Message], version: int) -> Writer:
    """Out of the text of `writer_source.py`."""
    from twisted_broker.wire.writer_source import writer_source

    text = writer_source(cls, version)
    return _run(text, f"<writer of {cls.__name__} v{version}>")["write"]  # type: ignore[no-any-return]


def _is_native(cls: type[Message]) -> bool:
    return Message in NATIVE and issubclass(cls, NATIVE[Message])


def _native(cls: type[Message], version: int) -> Any:
    """The codec of a compiled broker."""
    from twisted_broker.wire.native import bound

    return bound(cls, version)


def _run(source: str, name: str) -> dict[str, Any]:
    """What a module of this source text defines; `name` stands in tracebacks."""
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def source_text(cls: type[Message], version: int) -> str:
    """A module with `read` and `write` for one version, as it would be written to a file."""
    from twisted_broker.wire.reader_source import reader_source
    from twisted_broker.wire.writer_source import writer_source

    return reader_source(cls, version) + "\n\n" + writer_source(cls, version)


def smallest_size(cls: type[Struct], version: int, flexible: bool | None = None) -> int:
    """The fewest bytes an encoded struct can have; a message knows itself whether the version is
    flexible, a nested struct needs it as an argument.
    """
    from twisted_broker.wire.source import struct_size

    if flexible is None:
        flexible = cls.flexible.holds(version) if issubclass(cls, Message) else False
    return struct_size(cls, version, flexible)
