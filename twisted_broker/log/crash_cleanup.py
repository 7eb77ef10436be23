"""What a crash left between the segments of a partition's directory.

Owns the resolution of `.deleted`, `.cleaned`, `.swap` and `.tmp` files and of indexes without a
log, and `base_offset_of`.

1. `.deleted` files were being removed, `.cleaned` and `.tmp` files being written: all are removed.
2. `.swap`: the replacement was whole before its first file got that name, so it wins over the
   segments it covers; but swaps at or above the smallest `.cleaned` base were still being made, and
   lose.
3. Running it again changes nothing.
4. `.cleaned` and `.swap` files say that a cleaner was at work below, perhaps Apache Kafka's, whose
   checkpoints may be older than what it replaced: offsets missing there are no torn tail
   (`gaps.py`).

Source: Kafka's `LogLoader`; RL 3.6.
"""

from __future__ import annotations

import posixpath

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.batch_scan import scan
from twisted_broker.log.segment import CLEANED, DELETED, INDEX, LOG, SWAP, TIME_INDEX, TXN_INDEX
from twisted_broker.wire.records import CorruptRecordError

_SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


def base_offset_of(name: str) -> int:
    """The base offset in a file's name, -1 when it carries none."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isdigit() else -1


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
    # A foreign file says nothing of a cleaner, whatever its name ends with.
    cleaned = [
        base for name in names if name.endswith(CLEANED) and (base := base_offset_of(name)) >= 0
    ]
    for name in names:
        unfinished_swap = name.endswith(SWAP) and cleaned and base_offset_of(name) >= min(cleaned)
        if name.endswith((DELETED, ".tmp")) or unfinished_swap:
            files.remove(posixpath.join(directory, name))
    for name in names:
        if name.endswith(CLEANED):
            files.remove(posixpath.join(directory, name))
    return min(cleaned, default=0)


def _complete_swaps(files: IFileSystem, directory: str) -> int:
    """Returns the base offset of the segment after the last completed one; 0 without one."""
    behind = 0
    swaps = [
        name
        for name in files.listdir(directory)
        if name.endswith(SWAP) and base_offset_of(name) >= 0
    ]
    for name in swaps:
        if name.endswith(LOG + SWAP):
            base = base_offset_of(name)
            end = _next_offset(files, posixpath.join(directory, name), base)
            for other in files.listdir(directory):
                if other.endswith(_SEGMENT_SUFFIXES) and base <= base_offset_of(other) < max(
                    end, base + 1
                ):
                    files.remove(posixpath.join(directory, other))
    for name in swaps:
        path = posixpath.join(directory, name)
        files.rename(path, path[: -len(SWAP)])
    if swaps:
        last = max(base_offset_of(name) for name in swaps)
        bases = [base_offset_of(name) for name in files.listdir(directory) if name.endswith(LOG)]
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
    names = files.listdir(directory)
    for name in names:
        stem, suffix = posixpath.splitext(name)
        if suffix in _SEGMENT_SUFFIXES[1:] and stem + LOG not in names:
            files.remove(posixpath.join(directory, name))
