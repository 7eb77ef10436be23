"""What is checked in a segment alone: CRCs, and that the records are as many as the header says."""

from __future__ import annotations

import pytest

from replog_pipeline.decoder import Stop
from replog_pipeline.segments.check import check
from twisted_broker.wire.records import BatchBuilder, batch_crc, set_offsets_and_epoch

CODECS = [0, 1, 2, 3, 4]


def batches(codecs, count=20):
    made = []
    for index, codec in enumerate(codecs):
        builder = BatchBuilder(codec=codec)
        for number in range(count):
            builder.append(1000 + number, b"key %d" % number, b"value " * number)
        batch = bytearray(builder.build())
        set_offsets_and_epoch(batch, index * count, 0)
        made.append(batch)
    return made


def written(tmp_path, made):
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(b"".join(made))
    return file


def with_count(batch, count):
    """The batch says `count` records, and its CRC agrees."""
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    batch[17:21] = batch_crc(batch, 0, len(batch)).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize("codecs", [CODECS, [0, 0, 0], [4]], ids=str)
def test_a_sound_segment_has_no_faults_and_tells_the_records_sizes(tmp_path, codecs):
    found = check(written(tmp_path, batches(codecs)))
    assert (found.faults, found.stop) == ([], Stop.END)
    plain = len(batches([0])[0]) - 61
    assert found.inflated.tolist() == [plain] * len(codecs)


def test_a_flipped_bit_is_a_wrong_crc_of_its_batch_alone(tmp_path):
    made = batches(CODECS)
    made[2][-1] ^= 4
    found = check(written(tmp_path, made))
    assert [(fault.kind, fault.row) for fault in found.faults] == [("crc", 2)]
    assert found.inflated[2] == -1 and (found.inflated[[0, 1, 3, 4]] > 0).all()


@pytest.mark.parametrize("count", [19, 21, 0, -1, 2**31 - 1])
@pytest.mark.parametrize("codec", [0, 4])
def test_records_that_are_not_as_many_as_counted(tmp_path, codec, count):
    made = batches([codec] * 5)
    with_count(made[3], count)
    found = check(written(tmp_path, made))
    assert [(fault.kind, fault.row) for fault in found.faults] == [("records", 3)]


def test_bytes_that_do_not_inflate_are_reported_with_their_batch(tmp_path):
    made = batches([4] * 40)
    for row in (7, 30):
        made[row][61:] = b"\xff" * (len(made[row]) - 61)
        with_count(made[row], 20)
    found = check(written(tmp_path, made))
    assert [(fault.kind, fault.row) for fault in found.faults] == [("records", 7), ("records", 30)]
    assert "cannot be read" in found.faults[0].problem and "byte" not in found.faults[0].problem


def test_a_torn_tail_is_not_a_fault_of_a_batch(tmp_path):
    made = batches([0, 0])
    found = check(written(tmp_path, [made[0], made[1][:-10]]))
    assert (len(found.headers), found.faults, found.end, found.stop) == (
        1,
        [],
        len(made[0]),
        Stop.CUT_SHORT,
    )
