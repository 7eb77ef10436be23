"""What the cleaner makes of one log, for people.

Source: our own. Not here: how it comes about (`log_cleaner.py`), what it means
(`replication/explain/cleaning_state.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class CleanerView(NamedTuple):
    """What the cleaner makes of one compacted log now. `last`: (calendar ms of its end, bytes read,
    bytes kept) of this run's last round. `uncleanable`: why, "" where it can be cleaned.
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
