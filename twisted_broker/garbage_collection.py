"""When Python looks for cycles of objects that nothing uses any more. Reference counting frees all
else at once, and nearly everything here: what lives long makes no cycles, or breaks them at its end
(`tests/test_garbage_collection.py` holds it for connections, logs and groups).

Owns the process's settings of the `gc` module.

1. A collection of everything holds the reactor: 0.3 s with 10,000 partitions and 20,000 groups. So
   what survives a full collection is frozen: an object is walked by one full collection only, and
   each full collection walks only what came since the last one, 10 ms.
2. During the start nearly nothing is collected: what is imported stays. It is frozen at its
   beginning and at its end; by the first, loads of many groups know that this process freezes.
3. A cycle that becomes garbage after it was frozen is found by every hundredth full collection
   only, which walks everything: what leaves cycles is bounded, and rare because of the test.

Ring 2: it is the whole process's. Source: CPython's `Modules/gcmodule.c`; Instagram's use of
`gc.freeze`. Not here: loads of many groups, which freeze in between
(`coordinator/coordinator_loader.py`).
"""

from __future__ import annotations

import gc

_AT_START = (100_000, 10, 10)
_SERVING = (700, 10, 5)  # CPython's own, but for full collections: more often, so each is shorter
_FULL = 2  # generation
_WALKS_ALL = 100


def spare_start() -> None:
    """From now on what the start makes is hardly looked at: a start that waits for long, for its
    controller say, still collects its garbage.
    """
    gc.freeze()
    gc.set_threshold(*_AT_START)


def settle() -> None:
    """The start is over: what there is stays, and the collector works in small portions."""
    gc.freeze()
    gc.set_threshold(*_SERVING)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if info["generation"] != _FULL:
        return
    if phase == "stop":
        gc.freeze()
    elif gc.get_stats()[_FULL]["collections"] % _WALKS_ALL == _WALKS_ALL - 1:
        gc.unfreeze()
