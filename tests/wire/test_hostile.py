"""What broken and hostile peers send ends in WireError, quickly and in little memory
(RELIABILITY 5.1, 5.3; docs/ARCHITECTURE.md 8).
"""

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from time import perf_counter

import pytest

from tests.wire.sampling import Blob, Sampler, all_versions, version_name
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import decode_request_header
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest, OffsetFetchRequest
from twisted_broker.wire.messages.produce import ProduceRequest
from twisted_broker.wire.messages.quorum import FetchSnapshotRequest
from twisted_broker.wire.primitives import MAX_ELEMENTS, MAX_TAGGED_FIELDS, uvarint
from twisted_broker.wire.schema import Message, Request, Response, compile_reader, decode, encode


@contextmanager
def little_memory(most_bytes: int) -> Iterator[None]:
    """Fails when more than that was alive at once, beyond what was before."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < most_bytes
    finally:
        tracemalloc.stop()


def check_refused(cls: type[Message], body: bytes, version: int, match: str | None = None) -> None:
    """In little memory; the reader is compiled before that is measured."""
    compile_reader(cls, version)
    with suppress(WireError):
        decode(cls, body, version)  # compiles the reader in slices as well
    with little_memory(100_000), pytest.raises(WireError, match=match):
        decode(cls, body, version)


@pytest.mark.parametrize(("cls", "version"), all_versions(), ids=version_name)
def test_every_truncation_is_refused(cls: type[Message], version: int) -> None:
    """No prefix of a message is a message."""
    encoded = encode(Sampler(Random(f"{cls} {version}")).message(cls, version), version)
    for length in range(min(len(encoded), 300)):
        with pytest.raises(WireError):
            decode(cls, encoded[:length], version)


@pytest.mark.parametrize(("cls", "version"), all_versions(), ids=version_name)
def test_changed_bytes_are_a_message_or_refused(cls: type[Message], version: int) -> None:
    """Whatever bytes come, nothing but WireError is raised."""
    random = Random(f"{cls} {version}")
    encoded = encode(Sampler(random).message(cls, version), version)[:2000]
    for _ in range(30):
        changed = bytearray(encoded + b"\0")
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(changed))] = random.choice((0, 1, 2, 127, 128, 255))
        with suppress(WireError):
            decode(cls, bytes(changed), version)


@pytest.mark.parametrize(("cls", "version"), all_versions(), ids=version_name)
def test_trailing_bytes(cls: type[Message], version: int) -> None:
    """Refused in records; behind an answer later versions of a peer may have put something, and
    behind a request stock clients do.
    """
    message = Sampler(Random(f"{cls} {version}")).message(cls, version)
    longer = encode(message, version) + b"\0"
    if issubclass(cls, Request | Response):
        assert decode(cls, longer, version) == message
    else:
        with pytest.raises(WireError, match="too many"):
            decode(cls, longer, version)


def header(api_key: int, version: int, tags: bytes = b"", client_id: bytes = b"\0\1c") -> bytes:
    return struct.pack(">hhi", api_key, version, 7) + client_id + tags


def test_two_million_empty_tags_in_a_header() -> None:
    """CVE-2026-111115: an unauthenticated frame of millions of empty tagged fields costs neither
    memory nor time.
    """
    repeated = header(18, 3, uvarint(2_000_000) + b"\0\0" * 2_000_000)
    ascending = header(
        18, 3, uvarint(2_000_000) + b"".join(uvarint(tag) + b"\0" for tag in range(2_000_000))
    )
    start = perf_counter()
    for frame in (repeated, ascending):
        with little_memory(100_000), pytest.raises(WireError):
            decode_request_header(frame)
    assert perf_counter() - start < 3


def test_millions_of_empty_tags_in_a_body() -> None:
    """The same in a message, with and without known tagged fields; each section is limited, and
    so are many small sections.
    """
    body = encode(FetchRequest(), 12)[:-1]
    for tags in (
        uvarint(MAX_TAGGED_FIELDS + 1) + b"\0\0" * (MAX_TAGGED_FIELDS + 1),
        uvarint(2**31) + b"\0\0" * 100,
    ):
        check_refused(FetchRequest, body + tags, 12)
        with pytest.raises(WireError):
            decode(ApiVersionsRequest, b"\1\1" + tags, 3)


def test_unknown_tagged_fields_are_skipped_and_not_kept() -> None:
    """A peer of a later version may add fields; the message is what it is without them, and
    writes nothing of them.
    """
    plain = encode(ApiVersionsRequest(client_software_name="a"), 3)
    longer = plain[:-1] + b"\2" + b"\5\3abc" + b"\xff\7" + b"\0"
    message = decode(ApiVersionsRequest, longer, 3)
    assert encode(message, 3) == plain
    partition = FetchRequest(
        topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])]
    )
    raw = encode(partition, 12)
    # The fixed fields and the number of topics, the topic's name and number of partitions, the
    # partition.
    tags = 26 + 3 + 32
    assert decode(FetchRequest, raw[:tags] + b"\1\x09\2zz" + raw[tags + 1 :], 12) == partition


@pytest.mark.parametrize(
    "tags",
    [
        b"\2\1\0\0\0",
        b"\2\1\0\1\0",
        b"\1\1\5abc",
        b"\1\0\5\2x\0\0\0",
        b"\1\0\1\2x",
        b"\1\1\xff\xff\xff\xff\x0f",
    ],
    ids=[
        "out of order",
        "repeated",
        "beyond the end",
        "longer than its field",
        "shorter than its field",
        "size 2^32-1",
    ],
)
def test_misplaced_tagged_fields(tags: bytes) -> None:
    """Tags ascend, each once, and a known one is exactly as long as it says (tag 0 is the
    cluster id here).
    """
    body = encode(FetchRequest(), 12)[:-1]
    with pytest.raises(WireError):
        decode(FetchRequest, body + tags, 12)


@pytest.mark.parametrize("count", [-2, -1, 2**31 - 1, -(2**31), 2])
def test_classic_counts(count: int) -> None:
    """Negative, the largest, one more than fits: each refused; null is no array where it may not
    be.
    """
    check_refused(MetadataRequest, struct.pack(">i", count) + b"\0\1t", 0)


@pytest.mark.parametrize("count", [0, 2**31 - 1, 2**32 - 1, 4])
def test_compact_counts(count: int) -> None:
    """The same for compact arrays; 0 is null."""
    fixed = encode(FetchRequest(), 12)[:25]
    check_refused(
        FetchRequest, fixed + uvarint(count) + b"\2t\2" + bytes(33) + b"\0" + b"\1\1\0", 12
    )


def test_a_count_is_bounded_by_the_smallest_element() -> None:
    """CVE-2026-111108: a count that fits the remaining bytes, but not as elements, is refused
    before anything is made.
    """
    body = encode(FetchRequest(), 12)[:25] + uvarint(400_001) + bytes(1_000_000)
    check_refused(FetchRequest, body, 12, match="length 400000")


def test_elements_of_a_request_are_limited() -> None:
    """Three bytes a topic are many times that in objects: nothing but topics is refused before
    they are made, nested ones while they are.
    """
    body = uvarint(MAX_ELEMENTS + 2) + b"\1\0" * (MAX_ELEMENTS + 1) + b"\0\0\0\0"
    check_refused(MetadataRequest, body, 9)
    body = b"\2g\2" + b"\2t" + uvarint(MAX_ELEMENTS + 2) + bytes(4 * MAX_ELEMENTS + 100)
    check_refused(OffsetFetchRequest, body, 6)
    group = b"\2g" + uvarint(200_001) + b"\1\1\0" * 200_000 + b"\0"
    with pytest.raises(WireError):
        decode(OffsetFetchRequest, uvarint(4) + group * 3 + b"\0\0", 8)


@pytest.mark.parametrize("length", [-2, -1, 32767, 3])
def test_classic_string_lengths(length: int) -> None:
    """Negative, null where null is not allowed, beyond the end."""
    with pytest.raises(WireError):
        decode(MetadataRequest, struct.pack(">ih", 1, length) + b"tt", 0)


@pytest.mark.parametrize("length", [-2, 2**31 - 1, -(2**31), 5])
def test_classic_bytes_lengths(length: int) -> None:
    check_refused(Blob, struct.pack(">i", length) + b"abcd", 0)


@pytest.mark.parametrize(
    "length",
    [
        b"\0",
        b"\6",
        b"\xff\xff\xff\xff\x0f",
        b"\x80\x80\x80\x80\x80\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1",
        b"\xff\xff\xff\xff\x1f",
    ],
)
def test_compact_lengths(length: bytes) -> None:
    """Null, beyond the end, the largest, varints of more than five bytes or 32 bits."""
    with pytest.raises(WireError):
        decode(Blob, length + b"abcd\0", 1)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xe9 1", "caf\ufffd 1"),
        (b"\xe9\xe8", "\ufffd" * 2),
        (b"\xff\xfe", "\ufffd" * 2),
        (b"\xc0\x80", "\ufffd" * 2),
        (b"\xf8\x88\x80\x80\x80", "\ufffd" * 5),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xe2\x82", "\ufffd"),
        (b"g\xc3\xa9", "g\xe9"),
    ],
)
def test_strings_that_are_not_utf_8(raw: bytes, text: str) -> None:
    """What does not fit becomes U+FFFD, byte for byte as Java has it; what goes back is U+FFFD's
    own bytes.
    """
    request = decode(MetadataRequest, struct.pack(">ih", 1, len(raw)) + raw, 0)
    assert [topic.name for topic in request.topics] == [text]
    assert encode(request, 0)[6:] == text.encode()
    nullable = decode(
        FindCoordinatorRequest, b"\0" + uvarint(2) + uvarint(len(raw) + 1) + raw + b"\0", 4
    )
    assert nullable.coordinator_keys == [text]
    assert (
        decode_request_header(header(3, 0, client_id=struct.pack(">h", len(raw)) + raw))[
            0
        ].client_id
        == text
    )


def test_empty_arrays_are_no_error() -> None:
    """CVE-2026-83525 began with an empty array that was not expected: decoding allows them, and
    they stay empty.
    """
    assert decode(FetchSnapshotRequest, encode(FetchSnapshotRequest(), 0), 0).topics == []
    assert decode(ProduceRequest, encode(ProduceRequest(), 3), 3).topic_data == []


def test_versions_that_do_not_exist() -> None:
    """A version nobody described can be neither read nor written."""
    for version in (-1, 14, 32767):
        with pytest.raises(WireError, match="no version"):
            decode(ProduceRequest, b"", version)
        with pytest.raises(ValueError, match="no version"):
            encode(ProduceRequest(), version)


def test_refusing_is_fast_for_large_frames() -> None:
    """A frame of the largest size that lies about a count is refused without looking through it."""
    frame = struct.pack(">hii", 1, 1000, 2**31 - 1) + bytes(50 << 20)
    start = perf_counter()
    with pytest.raises(WireError):
        decode(ProduceRequest, frame, 2)
    assert perf_counter() - start < 3
