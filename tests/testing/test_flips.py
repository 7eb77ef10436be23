"""Which flipped bits of a batch nothing can show."""

from __future__ import annotations

import pytest

from tests.log.batches import batch
from twisted_broker.testing.faults.storage import makes_a_likely_epoch
from twisted_broker.wire.records import set_offsets_and_epoch


@pytest.mark.parametrize(
    ("epoch", "likely"), [(0, set(range(10))), (3, set(range(10))), (-1, set())]
)
def test_a_likely_epoch(epoch: int, likely: set[int]) -> None:
    """RELIABILITY 2.7: of the second batch's leader epoch, bits whose flip leaves one that may have
    been led: no checksum, no order, no metadata tells (`CHECKED`). Whatever else flips, shows.
    """
    batches = [bytearray(batch(b"%d" % number)) for number in range(3)]
    for number, each in enumerate(batches):
        set_offsets_and_epoch(each, number, epoch)
    data, begin = bytearray(b"".join(batches)), len(batches[0])
    found = {
        (position, bit)
        for position in range(begin, begin + len(batches[1]))
        for bit in range(8)
        if makes_a_likely_epoch(position, bit, data)
    }
    assert found == {(begin + 15 - number // 8, number % 8) for number in likely}
