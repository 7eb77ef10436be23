"""What is read of a source: columns, offsets, isolation; the same for both sources, for a batch and
for a stream.

Not here: which of it a source supports (`connector`, `directories` check that).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replog_pipeline.columns import COLUMNS, Offsets
from replog_pipeline.segments.log_view import UNCOMMITTED


@dataclass(frozen=True)
class Wanted:
    """`columns` in their order, from `start` to `end`; a partition that these do not name goes from
    its earliest to its latest offset. With `only_named` a partition that `start` does not name is
    not read: whoever remembers `end` and goes on from there would read one that was added meanwhile
    twice. A stream takes no `only_named`.

    A stream has no `end`. `isolation`: read_uncommitted or read_committed. `options` go to the
    source as they are. `run`: a name that several reads of the same source with the same options
    have in common, so that they may share what they keep. `at_most`: how many records a read of
    that run brings; None: not bounded. `lenient`: a timestamp that Spark cannot hold is null, and
    `timestampMs`, which may be read then, has it.
    """

    columns: Sequence[str] = COLUMNS
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    only_named: bool = False
    isolation: str = UNCOMMITTED
    options: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    at_most: int | None = None
    lenient: bool = False


EVERYTHING = Wanted()
