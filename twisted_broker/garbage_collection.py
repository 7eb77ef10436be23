"""When Python looks for cycles of objects that nothing uses any more. Reference counting frees all
else at once, and nearly everything here: what lives long makes no cycles, or breaks them at its end
(`tests/test_garbage_collection.py` holds it for connections, logs and groups).

Owns the process's settings of the `gc` module.

1. A collection of everything holds the reactor: 0.3 s with 10,000 partitions and 20,000 groups. So
   what survives a full collection is frozen: an object is walked by one full collection only, and
   each full collection walks only what came since the last one, 10 ms.
2. During the start nearly nothing is collected: what is imported stays. It is frozen at its
   beginning and at its end, and in the middle of a load of many groups (`freeze_loaded`).
3. A cycle that becomes garbage after it was frozen is found only by a full collection that walks
   everything. That is every hundredth one, where the process has twice the blocks of memory, or
   twice the resident memory, of its least since the last such walk: where nothing leaks no request
   waits for a walk, and a leak takes at most as much again as what is in use.

Ring 2: it is the whole process's. Source: CPython's `Modules/gcmodule.c`; Instagram's use of
`gc.freeze`. Not here: loads of many groups (`coordinator/coordinator_loader.py`).
"""

from __future__ import annotations

import contextlib
import gc
import sys

_AT_START = (100_000, 10, 10)
_SERVING = (700, 10, 5)  # CPython's own, but for full collections: more often, so each is shorter
_FULL = 2  # generation
_WALKS_ALL = 100
_GROWTH = 2


def spare_start() -> None:
    """Collects rarely while the broker starts. A start that lasts, because it waits for its
    controller, still frees its garbage.
    """
    _survivors.freezes = True
    gc.freeze()
    gc.set_threshold(*_AT_START)


def settle() -> None:
    """The start is over: what there is stays, and the collector works in small portions."""
    gc.freeze()
    gc.set_threshold(*_SERVING)
    if _survivors.collected not in gc.callbacks:
        _survivors.least = _in_use()
        gc.callbacks.append(_survivors.collected)


def freeze_loaded() -> None:
    """Keeps the collector from walking over what a large load has made so far, and over all else
    that lives by now.

    It would walk over all groups again and again while they become more: 0.2 s for 100,000 of them,
    in the middle of a step. Counting references frees them still; only cycles that are garbage at
    this moment stay. Does nothing in a process whose collector is not ours (`spare_start`): a
    program that embeds a broker may leave more cycles.
    """
    # A flag: to ask the collector how many objects are frozen, it would count all of them.
    if _survivors.freezes:
        gc.collect(1)
        gc.freeze()


class _Survivors:
    """What full collections leave. `freezes`: this process does so. `least`: the least that was in
    use since the last one that walked everything, or since the start.
    """

    __slots__ = ("_walks_all", "freezes", "least")

    def __init__(self) -> None:
        self.least, self._walks_all, self.freezes = (0, 0), False, False

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """The `gc` module calls it before ("start") and after each collection."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            collections = gc.get_stats()[_FULL]["collections"]
            self._walks_all = collections % _WALKS_ALL == _WALKS_ALL - 1 and self._has_grown()
            if self._walks_all:
                gc.unfreeze()
            return
        gc.freeze()
        blocks, pages = _in_use()
        if not self._walks_all:
            blocks, pages = min(blocks, self.least[0]), min(pages, self.least[1])
        self.least = blocks, pages

    def _has_grown(self) -> bool:
        return any(now >= least * _GROWTH for now, least in zip(_in_use(), self.least, strict=True))


def _in_use() -> tuple[int, int]:
    """(blocks of memory of Python's objects, pages of resident memory). To count a million blocks
    takes 0.3 ms. Where the system does not tell its pages they are 0, and have always doubled.
    """
    pages = 0
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/self/statm", "rb") as file,
    ):
        pages = int(file.read().split()[1])
    return sys.getallocatedblocks(), pages


_survivors = _Survivors()
