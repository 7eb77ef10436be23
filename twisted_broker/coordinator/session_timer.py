"""A session's timer that counts only silence which this process could have heard.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `SessionTimer`, an `IDelayedCall`.

1. When it is due, what has arrived is read first: a reactor runs its timers before it looks at its
   sockets, so after a stall a heartbeat may lie there unread. The session ends one turn later.
2. A timer that comes due `SILENCE_STALL_SECONDS` late or more shows that this process was stopped
   (SIGSTOP, a machine suspended, a slow disk). Its client may have closed its connection meanwhile
   and be reconnecting: once, `RECONNECT_SECONDS` more are granted.
3. It fires at most `RECONNECT_SECONDS` plus the clock's own lateness after its time. Setting it
   again begins all over.

Source: our own. Kafka does neither: after a SIGSTOP its reaper races its network threads, and a
consumer may lose its place in the group because its broker was stopped. A whole session more (what
Kafka grants when another broker loads a group) would cost others more than it gives: Java's clients
come back under the member id they had, within a second; librdkafka's drop that id when they heard
nothing for a session and join under a new one, and the group would wait for the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from twisted_broker.interfaces import IClock, IDelayedCall
from twisted_broker.stall_tolerance import SILENCE_STALL_SECONDS

# A stop that closed connections: their clients need a moment to connect and to send.
RECONNECT_SECONDS = 2.0


class _Stage(Enum):
    WAITING = "waiting"
    RECONNECTING = "reconnecting"
    READING = "reading"


class SessionTimer:
    """`call(*args)` in `seconds` from now, as `IClock.callLater` does it, but see the card."""

    __slots__ = ("_args", "_call", "_clock", "_due", "_stage", "_timer")

    def __init__(
        self, clock: IClock, seconds: float, call: Callable[..., None], *args: Any
    ) -> None:
        self._clock, self._call, self._args = clock, call, args
        self._timer: IDelayedCall = clock.callLater(seconds, self._is_due)
        self._begin(seconds)

    def _begin(self, seconds: float) -> None:
        self._stage = _Stage.WAITING
        self._due = self._clock.seconds() + seconds

    def cancel(self) -> None:
        self._timer.cancel()

    def active(self) -> bool:
        return self._timer.active()

    def reset(self, seconds_from_now: float) -> None:
        self._timer.reset(seconds_from_now)
        self._begin(seconds_from_now)

    def _is_due(self) -> None:
        was_stalled = self._clock.seconds() - self._due >= SILENCE_STALL_SECONDS
        if self._stage is _Stage.WAITING and was_stalled:
            self._enter(_Stage.RECONNECTING, RECONNECT_SECONDS)
        elif self._stage is not _Stage.READING:
            self._enter(_Stage.READING, 0)
        else:
            self._call(*self._args)

    def _enter(self, stage: _Stage, seconds: float) -> None:
        self._stage = stage
        self._timer = self._clock.callLater(seconds, self._is_due)
