"""A compacted log explained: how dirty it is, when it was cleaned, and why it is not.

Owns `Cleaning` and `cleaning_state`.

1. It is computed when it is asked for, as the cleaner would decide now; nothing is remembered but
   the last round (`log/cleaner/log_cleaner.py`).

Source: our own; Kafka's `LogCleanerManager`. Not here: which log is next
(`log/cleaner/selection.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted_broker.replication.explain.reasons import Moment, duration

if TYPE_CHECKING:
    from twisted_broker.log.cleaner.cleaner_view import CleanerView


@dataclass(frozen=True, slots=True)
class Cleaning:
    """`phase`: off, uncleanable, cleaning, due, clean enough. `clean_up_to`: the offset in the
    checkpoint; `dirty_ratio` 0 to 1, due above `min_ratio`; `last_ms`: when the last round
    of this run ended (calendar), -1 none.
    """

    phase: str
    clean_up_to: int
    dirty_bytes: int
    clean_bytes: int
    dirty_ratio: float
    min_ratio: float
    last_ms: int
    why: str


def cleaning_state(view: CleanerView | None, now: Moment) -> Cleaning | None:
    """None: the log is not compacted."""
    if view is None:
        return None
    share = f"{view.dirty_ratio:.0%} dirty ({view.dirty_bytes:,} bytes never cleaned)"
    if view.uncleanable:
        phase = "uncleanable"
        why = f"not compacted until a restart or a change of its settings: {view.uncleanable}"
    elif not view.is_enabled:
        phase, why = "off", f"not compacted: log.cleaner.enable is false; {share}"
    elif view.is_running:
        phase, why = "cleaning", f"being cleaned; {share} when it began"
    elif view.is_due:
        phase, why = "due", f"to be cleaned next: {share}"
    else:
        phase = "clean enough"
        why = f"{share}, cleaned above {view.min_ratio:.0%} (min.cleanable.dirty.ratio)"
    if view.last is not None:
        at_ms, read, kept = view.last
        why += f"; last cleaned {duration(now.wall_ms - at_ms)} ago: {read:,} bytes to {kept:,}"
    elif view.clean_up_to > view.log_start:
        why += f"; cleaned up to offset {view.clean_up_to} before this broker started"
    return Cleaning(
        phase,
        view.clean_up_to,
        view.dirty_bytes,
        view.clean_bytes,
        round(view.dirty_ratio, 4),
        view.min_ratio,
        -1 if view.last is None else view.last[0],
        why,
    )
