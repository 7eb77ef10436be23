"""Columns of a run of records: what the record says, and what its batch says repeated for it.

1. Every column is made only when requested; those of `FROM_BATCH` need no look at the records.
2. A record's timestamp is the batch's maximum under LogAppendTime; its sequence is the batch's base
   advanced by the offset delta, modulo 2^31.
3. A timestamp that leaves 64 bits in microseconds is refused, or null where the run is `lenient`;
   `timestampMs` has it as it is written.
4. `crcOk` and `aborted` are the caller's findings, one per batch.

Source: FILE_FORMATS 2; Kafka's DefaultRecordBatch. Not here: where fields lie
(`fields`), which batches (`segment`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from twisted_broker.wire.compression import CODEC_NAMES
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
)

from .arrow_arrays import booleans, constant, header_lists, integers, slices, timestamps
from .arrow_types import TYPES
from .fields import Fields
from .headers import codecs, last_offsets
from .sections import refusal
from .varints import Ints

MOST_MILLISECONDS: Final = (2**63 - 1) // 1000
FROM_RECORD: Final = frozenset({"key", "value", "headers"})


class Run(NamedTuple):
    """Records of some batches.

    `batch` is each record's row in `headers`; `fields` is None when no column needs the records
    themselves.
    """

    topic: str
    partition: int
    headers: NDArray[np.void]
    crc_ok: NDArray[np.bool_]
    aborted: NDArray[np.bool_]
    batch: Ints
    offset_delta: Ints
    fields: Fields | None
    lenient: bool = False

    @property
    def offsets(self) -> Ints:
        return np.asarray(self.of_batch("baseOffset") + self.offset_delta)

    def of_batch(self, name: str) -> NDArray[Any]:
        """A header field of each record's batch."""
        return np.asarray(self.headers[name][self.batch])

    def flag(self, bit: int) -> NDArray[np.bool_]:
        return np.asarray(self.headers["attributes"] & bit != 0)[self.batch]

    def located(self) -> Fields:
        assert self.fields is not None, "a column of the records was asked for without them"
        return self.fields

    def part(self, chosen: NDArray[np.bool_]) -> Run:
        """The chosen records."""
        fields = None if self.fields is None else self.fields.part(chosen)
        return self._replace(
            batch=self.batch[chosen], offset_delta=self.offset_delta[chosen], fields=fields
        )


def column(run: Run, name: str) -> pa.Array:
    """The column `name` of these records, of its type in `TYPES`."""
    return _MAKERS[name](run)


def _timestamp(run: Run) -> pa.Array:
    if not run.lenient:
        return timestamps(_milliseconds(run))
    written = _written(run)
    is_right = (written <= MOST_MILLISECONDS) & (written >= -MOST_MILLISECONDS)
    found = timestamps(np.where(is_right, written, 0))
    return found if is_right.all() else pc.if_else(booleans(is_right), found, None)


def _written(run: Run) -> Ints:
    """Milliseconds as they are written; sums wrap, as Java's do."""
    appended = run.headers["attributes"] & LOG_APPEND_TIME_FLAG != 0
    newest = run.of_batch("maxTimestamp").astype(np.int64)
    if appended.all():
        return newest
    created = run.of_batch("baseTimestamp").astype(np.int64) + run.located().timestamp_delta
    return np.where(appended[run.batch], newest, created)


def _milliseconds(run: Run) -> Ints:
    appended = run.headers["attributes"] & LOG_APPEND_TIME_FLAG != 0
    if appended.all():
        return _within(run, run.of_batch("maxTimestamp").astype(np.int64))
    created = _within(run, run.of_batch("baseTimestamp").astype(np.int64)) + _within(
        run, run.located().timestamp_delta, 2
    )
    if appended.any():
        created = np.where(appended[run.batch], run.of_batch("maxTimestamp"), created)
    return _within(run, created)


def _within(run: Run, milliseconds: Ints, times: int = 1) -> Ints:
    """The same, none of which is too large in microseconds."""
    limit = MOST_MILLISECONDS * times
    if len(milliseconds) and (milliseconds.max() > limit or milliseconds.min() < -limit):
        index = int(np.argmax((milliseconds > limit) | (milliseconds < -limit)))
        raise refusal(
            run.headers[run.batch[index]],
            f"a timestamp of {milliseconds[index]} ms is more than a table can hold",
        )
    return milliseconds


def _sequence(run: Run) -> pa.Array:
    base = run.of_batch("baseSequence").astype(np.int64)
    return integers(
        np.where(base == NO_SEQUENCE, NO_SEQUENCE, base + run.offset_delta & 0x7FFFFFFF), pa.int32()
    )


def _codec(run: Run) -> pa.Array:
    found = codecs(run.headers)
    if (found == found[0]).all():
        return constant(CODEC_NAMES[found[0]], pa.string(), len(run.batch))
    return pa.array(CODEC_NAMES).take(pa.array(found[run.batch]))


def _header(name: str, kind: pa.DataType) -> Callable[[Run], pa.Array]:
    return lambda run: integers(run.of_batch(name), kind)


_MAKERS: Final[dict[str, Callable[[Run], pa.Array]]] = {
    "key": lambda run: slices(run.located().data, run.located().key_at, run.located().key_length),
    "value": lambda run: slices(
        run.located().data, run.located().value_at, run.located().value_length
    ),
    "topic": lambda run: constant(run.topic, pa.string(), len(run.batch)),
    "partition": lambda run: constant(run.partition, pa.int32(), len(run.batch)),
    "offset": lambda run: integers(run.offsets, pa.int64()),
    "timestamp": _timestamp,
    "timestampMs": lambda run: integers(_written(run), pa.int64()),
    "timestampType": lambda run: integers(run.flag(LOG_APPEND_TIME_FLAG), pa.int32()),
    "headers": lambda run: header_lists(run.located().data, run.located().headers),
    "producerId": _header("producerId", pa.int64()),
    "producerEpoch": _header("producerEpoch", pa.int32()),
    "sequence": _sequence,
    "leaderEpoch": _header("leaderEpoch", pa.int32()),
    "batchOffset": _header("baseOffset", pa.int64()),
    "batchLastOffset": lambda run: integers(last_offsets(run.headers)[run.batch], pa.int64()),
    "codec": _codec,
    "crcOk": lambda run: booleans(run.crc_ok[run.batch]),
    "transactional": lambda run: booleans(run.flag(TRANSACTIONAL_FLAG)),
    "control": lambda run: booleans(run.flag(CONTROL_FLAG)),
    "aborted": lambda run: booleans(run.aborted[run.batch]),
}
assert _MAKERS.keys() == TYPES.keys()
