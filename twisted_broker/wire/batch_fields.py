"""The fields of a `BatchHeader` by name.

Owns their indexes: `header[PRODUCER_ID]`. The header stays a plain tuple, as `struct` gives it:
a NamedTuple would cost every batch of every append and scan an object and a call.

Source: Kafka's record formats. Not here: where a field's bytes lie (`batch_header`, `*_AT`).
"""

from __future__ import annotations

from typing import Final

BASE_OFFSET: Final = 0
LENGTH: Final = 1
PARTITION_LEADER_EPOCH: Final = 2
MAGIC_FIELD: Final = 3
CRC: Final = 4
ATTRIBUTES: Final = 5
LAST_OFFSET_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
RECORDS_COUNT: Final = 12
