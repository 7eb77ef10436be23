"""Tables of batch headers for tests, a row by a few words."""

from __future__ import annotations

import numpy as np

from replog_pipeline.decoder import HEADER
from twisted_broker.wire.records import CONTROL_FLAG, TRANSACTIONAL_FLAG


def batch(base: int, count: int = 10, **fields: int) -> dict[str, int]:
    """A batch of `count` records at offset `base`: no producer, leader epoch 0, a CRC of its
    own.
    """
    row = dict(
        baseOffset=base,
        lastOffsetDelta=count - 1,
        recordCount=count,
        length=100 + count,
        crc=base * 7919 % 2**32,
        magic=2,
        producerId=-1,
        producerEpoch=-1,
        baseSequence=-1,
        maxTimestamp=1000 + base,
    )
    return row | fields


def data(
    base: int,
    producer: int,
    sequence: int,
    count: int = 10,
    epoch: int = 0,
    *,
    inside: bool = False,
) -> dict[str, int]:
    """A batch of an idempotent producer; `inside` a transaction or not."""
    attributes = TRANSACTIONAL_FLAG if inside else 0
    return batch(
        base,
        count,
        producerId=producer,
        producerEpoch=epoch,
        baseSequence=sequence,
        attributes=attributes,
    )


def marker(base: int, producer: int, epoch: int = 0) -> dict[str, int]:
    """The end marker of a transaction."""
    return batch(
        base,
        1,
        producerId=producer,
        producerEpoch=epoch,
        attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
    )


def table(*rows: dict[str, int]) -> np.ndarray:
    """The rows as a table; positions follow from lengths."""
    made = np.zeros(len(rows), HEADER)
    for at, row in enumerate(rows):
        for name, value in row.items():
            made[name][at] = value
    made["position"][1:] = np.cumsum(made["length"] + 12)[:-1]
    return made
