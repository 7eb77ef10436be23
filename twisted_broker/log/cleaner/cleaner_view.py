"""How one log stands with the cleaner, to be shown to people.

Owns `CleanerView`.

Source: our own. Not here: how it comes about (`log_cleaner.py`), what it means
(`replication/explain/cleaning_state.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class CleanerView(NamedTuple):
    """How one compacted log stands now. `last`: (calendar ms of its end, bytes read, bytes kept) of
    the last round of this process. `uncleanable`: why, "" where it can be cleaned.
    """

    uncleanable: str
    is_enabled: bool
    is_running: bool
    is_due: bool
    log_start: int
    clean_up_to: int
    clean_bytes: int
    dirty_bytes: int
    dirty_ratio: float
    min_ratio: float
    last: tuple[int, int, int] | None
