"""The producer id of a replay, and the sequence of a record.

1. The id follows from the target's topic id alone: all writers of all attempts have it without
   talking to one another, before the first record.
2. Controllers hand out ids from 0 upwards, in blocks of a thousand. Ours lie above 2^62, where no
   cluster will come.
3. A topic that is created again has another id, hence other writers.

Source: KIP-98, KIP-730 (blocks of producer ids), KIP-516 (topic ids).
"""

from __future__ import annotations

from hashlib import sha256

EPOCH = 0
_BASE = 1 << 62


def producer_id(topic_id: bytes) -> int:
    """For the 16 bytes of a topic id."""
    return _BASE | int.from_bytes(sha256(b"replog replay " + topic_id).digest()[:7], "big")


def sequence(offset: int) -> int:
    """The sequence of the record at this offset: after 2^31 - 1 comes 0."""
    return offset & 0x7FFFFFFF
