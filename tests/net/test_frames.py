"""What `net/frames.py` promises."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.net.frames import BufferPool, FrameReader, NotKafka
from twisted_broker.wire.errors import WireError


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_any_cut_of_the_stream_gives_the_same_frames(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """However the bytes arrive, by feed or straight into the buffer, the frames are those that
    were sent.
    """
    stream = b"".join(map(framed, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader, found = FrameReader(1000), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        while (frame := reader.next_frame()) is not None:
            found.append(bytes(frame))
    assert found == payloads
    assert reader.pending == 0


def test_a_long_frame_is_read_straight_into_its_buffer() -> None:
    """Past 32 KiB the reader offers room to the socket; the offered room never exceeds twice
    what has come.
    """
    payload = bytes(range(256)) * 4096
    stream, reader = framed(payload), FrameReader(len(payload))
    reader.feed(stream[:40_000])
    assert reader.next_frame() is None
    position = 40_000
    while position < len(stream):
        room = reader.space()
        assert room is not None and 0 < len(room) <= max(position, 65_536)
        taken = min(len(room), 70_001, len(stream) - position)
        room[:taken] = stream[position : position + taken]
        room.release()
        reader.filled(taken)
        position += taken
        frame = reader.next_frame()
    assert frame == payload
    assert reader.next_frame() is None


def test_a_declared_length_allocates_nothing() -> None:
    """100 MiB announced and four bytes sent, on a thousand connections: memory does not move
    (RELIABILITY 5.3).
    """
    announced = (100 << 20).to_bytes(4, "big") + b"\0\0\0\0"
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        readers = [FrameReader(100 << 20) for _ in range(1000)]
        for reader in readers:
            reader.feed(announced)
            assert reader.next_frame() is None
        assert tracemalloc.get_traced_memory()[0] - before < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1001, (1 << 31) - 1])
def test_impossible_lengths_are_refused_at_once(size: int) -> None:
    """A negative length, or one above the limit, is refused before anything of the frame
    arrives.
    """
    reader = FrameReader(1000)
    reader.feed(size.to_bytes(4, "big", signed=True))
    with pytest.raises(WireError):
        reader.next_frame()


def test_a_buffer_is_used_again_only_when_nobody_looks_at_it() -> None:
    """A request that keeps a view of its frame keeps its bytes, whatever arrives next."""
    pool = BufferPool()
    reader = FrameReader(1 << 20, pool)
    first, second = b"a" * 100_000, b"b" * 100_000
    for payload in (first, second):
        reader.feed(framed(payload)[:50_000])
        assert reader.next_frame() is None
        reader.feed(framed(payload)[50_000:])
        if payload is first:
            kept = reader.next_frame()
    assert bytes(reader.next_frame() or b"") == second
    assert kept == first
    assert reader.next_frame() is None
    assert pool.held_bytes >= 100_000


def test_a_buffer_that_was_looked_at_is_used_again_later() -> None:
    """A mirror holds what it fetched until it is sent: no new memory for each answer."""
    pool = BufferPool()
    kept = []
    for number in range(3):
        buffer = pool.take(1_100_000)
        kept.append((memoryview(buffer)[:10], id(buffer)))
        pool.give(buffer)
        del buffer
        assert pool.held_bytes >= (number + 1) * 1_100_000
    first = kept.pop(0)[1]  # nobody looks at it any more
    again = pool.take(1_101_000)
    assert id(again) == first and id(pool.take(1_100_000)) not in [each for _, each in kept]


def test_the_pool_is_bounded() -> None:
    """Free buffers never hold more than the pool's limit."""
    pool = BufferPool()
    for _ in range(50):
        pool.give(bytearray(1 << 20))
    assert pool.held_bytes <= 16 << 20
    views = []
    for _ in range(50):
        buffer = bytearray(1 << 20)
        views.append(memoryview(buffer))
        pool.give(buffer)
    assert pool.held_bytes <= 16 << 20


def test_what_ends_keeps_nothing() -> None:
    """Sixty-four connections that ended with 8 MiB each stayed in memory (tests/hostile). A request
    that is being served keeps its own.
    """
    reader = FrameReader(1 << 20)
    data = framed(b"a" * 100_000)
    reader.feed(data[:50_000])
    assert reader.next_frame() is None
    reader.feed(data[50_000:])
    served = reader.next_frame()
    reader.feed(data[:70_000])
    assert reader.next_frame() is None and reader.pending == 69_996
    reader.close()
    assert reader.pending == 0 and reader.next_frame() is None and reader.space() is None
    assert reader._buffer is None and reader._used is None
    assert served == b"a" * 100_000


@pytest.mark.parametrize("begins", [b"HTTP/1.1 400", b"SSH-2.0-x", b"GET / HTTP/1.1"])
def test_text_is_named(begins: bytes) -> None:
    """Whoever came to the wrong port sees which protocol the other side speaks."""
    reader = FrameReader(1000)
    with pytest.raises(NotKafka, match=f"it begins with '{begins[:4].decode()}'"):
        reader.feed(begins)
        reader.next_frame()
