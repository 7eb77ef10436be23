"""Which bytes of a batch no checksum covers."""

from __future__ import annotations

from tests.log.batches import batch
from twisted_broker.simulation.faults.storage import is_in_head


def test_the_head_of_each_batch_is_no_place_for_a_flip() -> None:
    """RELIABILITY 2.7: base offset, length and leader epoch; a torn tail ends the search."""
    batches = [batch(b"%d" % number) for number in range(3)]
    data = bytearray(b"".join(batches) + bytes(100))
    found = {position for position in range(len(data)) if is_in_head(position, data)}
    begins = [0, len(batches[0]), len(batches[0]) * 2, len(batches[0]) * 3]
    assert found == {begin + byte for begin in begins for byte in range(16)}
