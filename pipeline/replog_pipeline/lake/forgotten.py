"""Keys that a table has forgotten: marks in `_replog/forgotten`, which `replay` obeys.

1. A mark is written before a row is deleted, so a forgetting that was killed shows.
2. It holds no key, but digests of keys with a salt of its own; and how far the table was: a record
   that is archived later, under the same key, is a record like any other.
3. Marks are never removed. They keep rows from a topic that came back, by RESTORE or from a copy.

Source: our own. Not here: deleting the rows (`delta`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.files import IFiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FOLDER = "_replog/forgotten"


@dataclass(frozen=True)
class Mark:
    """Of keys by their digests; records at `before` and later are not meant."""

    salt: bytes
    digests: tuple[str, ...]
    before: Offsets

    def to_text(self) -> str:
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in self.before.items():
            topics.setdefault(topic, {})[str(partition)] = offset
        found = {"salt": self.salt.hex(), "digests": [*self.digests], "before": topics}
        return json.dumps(found)

    def of_key(self) -> str:
        """SQL: whether a row has one of the keys. A log that keeps it does not name them."""
        digests = ", ".join(f"'{each}'" for each in self.digests)
        return f"coalesce(sha2(concat(X'{self.salt.hex()}', key), 256) in ({digests}), false)"

    def of_row(self) -> Column:
        """Whether it is forgotten."""
        from pyspark.sql import functions as f

        def place(topic: str) -> Column:
            ends = [(key[1], end) for key, end in self.before.items() if key[0] == topic]
            end = f.create_map(*(f.lit(each) for pair in ends for each in pair))[f.col("partition")]
            return (f.col("topic") == topic) & (f.col("offset") < end)

        found = f.lit(False)
        for topic in sorted({topic for topic, _ in self.before}):
            found = found | f.coalesce(place(topic), f.lit(False))
        return f.expr(self.of_key()) & found


def of(keys: Sequence[bytes], before: Offsets) -> Mark:
    salt = uuid.uuid4().bytes
    return Mark(salt, tuple(sorted(sha256(salt + key).hexdigest() for key in keys)), before)


def parsed(content: bytes, place: str) -> Mark:
    """PipelineError for what is no mark."""
    try:
        found = json.loads(content)
        before = {
            (topic, int(partition)): int(offset)
            for topic, ends in found["before"].items()
            for partition, offset in ends.items()
        }
        return Mark(bytes.fromhex(found["salt"]), tuple(map(str, found["digests"])), before)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PipelineError(
            f"{place} is damaged, and says which keys are forgotten: restore it from a copy"
        ) from None


def write(files: IFiles, mark: Mark) -> None:
    files.create(f"{FOLDER}/{mark.salt.hex()}.json", mark.to_text().encode())


def marks(files: IFiles) -> list[Mark]:
    """PipelineError for one that is damaged."""
    names = [f"{FOLDER}/{each}" for each in files.names(FOLDER) if each.endswith(".json")]
    return [parsed(files.read(name), files.path(name)) for name in names if "/." not in name]


def without(rows: DataFrame, files: IFiles) -> DataFrame:
    """The rows that are not forgotten."""
    for mark in marks(files):
        rows = rows.where(~mark.of_row())
    return rows
