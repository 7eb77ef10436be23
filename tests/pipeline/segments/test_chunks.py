"""A segment in chunks shows what a scan of the whole file shows, whatever the chunks' size."""

from __future__ import annotations

import numpy as np
import pytest

from replog_pipeline.decoder import Stop, crc_ok, scan
from replog_pipeline.segments.chunks import chunks, headers
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch


def segment(sizes):
    """Batches of one record of that many bytes each, at offsets 0, 1, 2..."""
    made = bytearray()
    for offset, size in enumerate(sizes):
        builder = BatchBuilder()
        builder.append(1000 + offset, b"k", bytes(size))
        batch = bytearray(builder.build())
        set_offsets_and_epoch(batch, offset, 3)
        made += batch
    return bytes(made)


SIZES = [10, 5000, 1, 300, 70000, 2, 2, 2, 900, 40]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "00000000000000000000.log"


@pytest.mark.parametrize("size", [61, 100, 1000, 4096, 65536, 1 << 20])
@pytest.mark.parametrize(
    "tail",
    [b"", bytes(500), b"\0" * 5, segment([30])[:-3], b"no batch at all " * 9, segment([9])[:20]],
)
def test_chunks_of_any_size_show_the_whole_file(file, size, tail):
    content = segment(SIZES) + tail
    file.write_bytes(content)
    whole = scan(content)
    found = list(chunks(file, size))
    assert np.array_equal(np.concatenate([chunk.headers for chunk in found]), whole.headers)
    assert (found[-1].end, found[-1].stop) == (whole.end, whole.stop)
    assert all(chunk.stop is None for chunk in found[:-1])


def test_a_chunk_holds_the_bytes_of_its_batches(file):
    content = segment(SIZES)
    file.write_bytes(content)
    for chunk in chunks(file, 1000):
        table = chunk.headers.copy()
        table["position"] -= chunk.position
        assert crc_ok(chunk.data, table).all()
        assert bytes(chunk.data) == content[chunk.position : chunk.end]


def test_an_end_on_the_edge_of_a_chunk(file):
    content = segment([10, 10, 10, 10])
    file.write_bytes(content)
    table, end, stop = headers(file)
    assert len(list(chunks(file, len(content) // 2))) == 3
    assert (len(table), end, stop) == (4, len(content), Stop.END)


def test_a_length_beyond_the_file_is_a_batch_cut_short(file):
    content = bytearray(segment([10, 500]))
    second = len(segment([10]))
    content[second + 8 : second + 12] = (1 << 30).to_bytes(4, "big")
    file.write_bytes(content)
    table, end, stop = headers(file)
    assert (len(table), end, stop) == (1, second, Stop.CUT_SHORT)


def test_an_empty_file_has_no_batches(file):
    file.write_bytes(b"")
    table, end, stop = headers(file)
    assert (len(table), end, stop) == (0, 0, Stop.END)
