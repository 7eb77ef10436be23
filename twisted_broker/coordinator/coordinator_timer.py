"""The timers of one shard's groups. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `CoordinatorTimer`.

1. A group has one timer of a kind, of SESSION one for each member.
2. After `close` none fires any more, and none is set.
3. A session does not end because this process was stopped: see `session_timer.py`.

Source: Apache Kafka 4.3.1 `CoordinatorTimer`.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.effects import CancelTimer, ScheduleTimer, TimerKind
from twisted_broker.coordinator.session_timer import SessionTimer
from twisted_broker.interfaces import IClock

_Key = tuple[ClassicGroup, TimerKind, str]


class CoordinatorTimer:
    """`on_expired` is called with the group, the kind and the member id ("" but for SESSION)."""

    __slots__ = ("_clock", "_is_closed", "_on_expired", "_timers")

    def __init__(
        self, clock: IClock, on_expired: Callable[[ClassicGroup, TimerKind, str], None]
    ) -> None:
        self._clock, self._on_expired = clock, on_expired
        # By the group itself, not by its id: a group that was deleted may have left a successor.
        self._timers: dict[_Key, SessionTimer] = {}
        self._is_closed = False

    def schedule(self, timer: ScheduleTimer) -> None:
        """Sets the timer, or starts it again."""
        if self._is_closed:
            return
        key = (timer.group, timer.kind, timer.member_id)
        running = self._timers.get(key)
        if running is not None:
            running.reset(timer.delay_ms / 1000)
        else:
            self._timers[key] = SessionTimer(self._clock, timer.delay_ms / 1000, self._expired, key)

    def cancel(self, timer: CancelTimer) -> None:
        running = self._timers.pop((timer.group, timer.kind, timer.member_id), None)
        if running is not None:
            running.cancel()

    def close(self) -> None:
        """Timers that are set stay, to be cancelled group by group: there may be very many."""
        self._is_closed = True

    def _expired(self, key: _Key) -> None:
        # Before the call: what expires may set the same timer again.
        del self._timers[key]
        if not self._is_closed:
            self._on_expired(*key)
