"""How old the records of a test's cluster are, whose calendar is moved on.

Owns `Skews`: what was appended at a calendar that is ahead of the one outside is not old because
of that. Clients stamp their records by their own clocks.

1. Before each step ahead it notes how far ahead the calendar was when each segment grew last.
2. Retention and compaction count a segment's age from its timestamps and that, unless they are of
   the calendar (LogAppendTime, or a client that goes by it). No timestamp is changed.

Source: our own. Not here: the clock (`live_clock.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from twisted_broker.log import retention
from twisted_broker.log.cleaner import selection
from twisted_broker.server.kafka_server import KafkaServer

_plain = retention.age_from


class Skews:
    """`ahead_ms()`: how far ahead the calendar is now of the one outside, `outside_ms()`."""

    active: ClassVar[list[Skews]] = []
    """of the clusters of this process"""

    def __init__(self, ahead_ms: Callable[[], int], outside_ms: Callable[[], int]) -> None:
        self._ahead_ms, self._outside_ms = ahead_ms, outside_ms
        self._noted: dict[tuple[int, str], tuple[int, int, int]] = {}
        """by file: its size, how far ahead it was then, and the time outside"""
        self._own: set[int] = set()
        self.active.append(self)
        retention.age_from = vars(selection)["age_from"] = _age_from

    def note(self, brokers: Iterable[KafkaServer]) -> None:
        """Before the calendar moves."""
        ahead, now = self._ahead_ms(), self._outside_ms()
        for broker in brokers:
            for log in broker.log_manager:
                files = id(log.pool.files)
                self._own.add(files)
                for segment in log.segments:
                    key, size = (files, segment.log.path), segment.size
                    known = self._noted.get(key)
                    if known is None or known[0] != size:
                        self._noted[key] = (size, ahead, now)

    def of(self, log: Any, segment: Any, stamp: int) -> int:
        """In ms; `stamp`: its last timestamp."""
        files = id(log.pool.files)
        if files not in self._own:
            return 0
        known = self._noted.get((files, segment.log.path))
        if known is not None and known[0] == segment.size:
            _, ahead, now = known
        else:
            ahead, now = self._ahead_ms(), self._outside_ms()
        is_of_calendar = stamp > now if ahead > 0 else stamp <= now + ahead
        return 0 if is_of_calendar else ahead

    def close(self) -> None:
        """Others count as they did."""
        self.active.remove(self)
        if not self.active:
            retention.age_from = vars(selection)["age_from"] = _plain


def _age_from(log: Any, segment: Any) -> int:
    stamp = _plain(log, segment)
    return stamp + sum(each.of(log, segment, stamp) for each in Skews.active)
