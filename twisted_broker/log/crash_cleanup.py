"""Removes the files that a crash left between the segments of a partition's directory.

Owns the resolution of `.deleted`, `.cleaned`, `.swap` and `.tmp` files and of indexes without a
log, and `base_offset_of`.

1. `.deleted` files were being removed, `.cleaned` and `.tmp` files being written: all are removed.
2. `.swap`: the replacement was whole before its first file got that name, so it wins over the
   segments it covers; but swaps at or above the smallest `.cleaned` base were still being made, and
   lose.
3. Running it again changes nothing. A file with a name that no broker gives is left alone and
   decides nothing; Kafka's loader removes whatever ends with `.deleted`, and fails at others.
4. `.cleaned` and `.swap` files say that a cleaner was at work below, perhaps Apache Kafka's, whose
   checkpoints may be older than what it replaced: offsets missing there are no torn tail
   (`gaps.py`).

Source: Kafka's `LogLoader`; RL 3.6.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.batch_scan import scan
from twisted_broker.log.checkpoints import LEADER_EPOCH, PARTITION_METADATA
from twisted_broker.log.segment import CLEANED, DELETED, INDEX, LOG, SWAP, TIME_INDEX, TXN_INDEX
from twisted_broker.wire.records import CorruptRecordError

_SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
_NAME = re.compile(
    r"([0-9]{20})\.(?:log|index|timeindex|txnindex|snapshot)(?:\.(?:deleted|cleaned|swap))?"
)
_ASIDE = frozenset(f"{name}.tmp" for name in (LEADER_EPOCH, PARTITION_METADATA))
"""what `checkpoints.write_aside` may leave in a partition's directory"""


def base_offset_of(name: str) -> int:
    """The base offset in the name of a segment's file or a snapshot, whatever becomes of it; -1 for
    any other name.
    """
    found = _NAME.fullmatch(name)
    return -1 if found is None else int(found[1])


def _named(names: Iterable[str]) -> dict[str, int]:
    """Those that a broker gives to the files of segments and to snapshots, with their base offsets,
    in order.
    """
    return {name: base for name in names if (base := base_offset_of(name)) >= 0}


def clean_up_after_crash(files: IFileSystem, directory: str) -> int:
    """Brings the directory to exactly one state. Returns the offset below which a cleaner was at
    work, so that offsets may be missing (0: none). Raises OSError.
    """
    # In this order: an unfinished swap must not be completed, and only then is it known which
    # indexes have a log.
    unfinished = _remove_unfinished(files, directory)
    swapped = _complete_swaps(files, directory)
    _remove_orphans(files, directory)
    return max(unfinished, swapped)


def _remove_unfinished(files: IFileSystem, directory: str) -> int:
    """Returns the first base offset that was not replaced yet (0: none): a cleaner works from the
    log's start on.
    """
    names = files.listdir(directory)
    named = _named(names)
    cleaned = {name: base for name, base in named.items() if name.endswith(CLEANED)}
    first = min(cleaned.values(), default=0)
    gone = [name for name in names if name in _ASIDE or (name in named and name.endswith(DELETED))]
    if cleaned:
        gone += [name for name, base in named.items() if name.endswith(SWAP) and base >= first]
    # The `.cleaned` files last: they say which swaps go.
    for name in (*gone, *cleaned):
        files.remove(posixpath.join(directory, name))
    return first


def _complete_swaps(files: IFileSystem, directory: str) -> int:
    """Returns the base offset of the segment after the last completed one; 0 without one."""
    behind = 0
    named = _named(files.listdir(directory))
    swaps = {name: base for name, base in named.items() if name.endswith(SWAP)}
    for name, base in swaps.items():
        if name.endswith(LOG + SWAP):
            end = _next_offset(files, posixpath.join(directory, name), base)
            for other, its_base in _named(files.listdir(directory)).items():
                if other.endswith(_SEGMENT_SUFFIXES) and base <= its_base < max(end, base + 1):
                    files.remove(posixpath.join(directory, other))
    for name in swaps:
        path = posixpath.join(directory, name)
        files.rename(path, path[: -len(SWAP)])
    if swaps:
        last = max(swaps.values())
        named = _named(files.listdir(directory))
        bases = [base for name, base in named.items() if name.endswith(LOG)]
        behind = min((base for base in bases if base > last), default=last)
    return behind


def _next_offset(files: IFileSystem, path: str, base: int) -> int:
    file = files.open(path, read_only=True)
    end = base
    try:
        for place in scan(file, 0, file.size()):
            end = place.last_offset + 1
    except CorruptRecordError:
        # Only what was surely replaced is removed: an end that is too low removes less.
        pass
    finally:
        file.close()
    return end


def _remove_orphans(files: IFileSystem, directory: str) -> None:
    named = _named(files.listdir(directory))
    for name in named:
        stem, suffix = posixpath.splitext(name)
        if suffix in _SEGMENT_SUFFIXES[1:] and stem + LOG not in named:
            files.remove(posixpath.join(directory, name))
