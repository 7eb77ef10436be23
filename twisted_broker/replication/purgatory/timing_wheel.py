"""Timers by the hundred thousand, at constant cost each.

Owns the wheel on which everything waits that has a time limit in the replica layer: one clock call
for all of them.

1. Adding and cancelling a timer is O(1): timers are links of a circular list per slot, and a bit
   per slot says that it is not empty.
2. A timer is never early; it is late by less than a tick (1 ms) plus what the clock is late.
3. A timer fires at most once; one that was cancelled never fires. Timers of one millisecond fire in
   the order of their adding.
4. When the clock itself is late by `DEADLINE_STALL_MS` or more (this process was stopped, or its
   disk was slow), timers fire one turn of the reactor later. What has arrived meanwhile is read
   first: it may be the follower's fetch that completes a produce.
5. At most one call is pending on the clock: at the earliest slot in use, or earlier when that
   slot's timers were cancelled since.

Levels hold 64 slots of 64**level ms each; a slot of a higher level is dealt out to lower ones when
its time comes, so a timer moves at most five times in its life. Source: RL 4.1, 4.2; Varghese and
Lauck's hierarchical wheel. Not here: what a timer means (`purgatory`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from twisted.logger import Logger

from twisted_broker.interfaces import IClock, IDelayedCall
from twisted_broker.stall_tolerance import DEADLINE_STALL_MS
from twisted_broker.subclassed import mypyc_attr

_logger = Logger(namespace=__name__)
# 64 slots: which of them are in use is one int of 64 bits.
_BITS = 6
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
# 64^6 ms are two years: farther than any timeout that a client may send.
_LEVELS = 6
_FULL = (1 << _SLOTS) - 1
_FARTHEST_MS = (1 << (_BITS * _LEVELS)) - 1
# Seconds are floats: 0.1 s must not come out as 100.00000001 ms, rounded up to 101.
_ROUNDING_MS = 1e-4


@mypyc_attr(allow_interpreted_subclasses=True)
class Timer:
    """A link of a slot's circle.

    `expired()` is what it does when its time comes; it may add and cancel timers.
    """

    __slots__ = ("_next", "_previous", "deadline_ms")
    deadline_ms: int
    _next: Timer | None
    _previous: Timer | None

    def __init__(self) -> None:
        self.deadline_ms = -1
        self._next = None
        self._previous = None

    @property
    def pending(self) -> bool:
        """Whether it waits in a wheel."""
        return self._next is not None

    def expired(self) -> None:
        raise NotImplementedError


class _Slot(Timer):
    """The fixed link of a circle. `mask`: its bit among those of its level that are in use."""

    __slots__ = ("level", "mask")

    def __init__(self, level: int, index: int) -> None:
        super().__init__()
        self.level = level
        self.mask = 1 << index
        self._next = self._previous = self


class TimingWheel:
    """All timers of one broker, driven by one `callLater` of its clock."""

    __slots__ = (
        "_call",
        "_call_at_ms",
        "_clock",
        "_elapsed_ms",
        "_levels",
        "_occupied",
        "_origin",
        "_reading",
        "size",
    )

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._origin = clock.seconds()
        self._elapsed_ms = 0
        self._levels = [
            [_Slot(level, index) for index in range(_SLOTS)] for level in range(_LEVELS)
        ]
        self._occupied = [0] * _LEVELS
        self._call: IDelayedCall | None = None
        self._call_at_ms = -1
        self._reading = False
        self.size = 0

    def add(self, timer: Timer, delay_ms: int) -> None:
        """`timer.expired()` is called once, `delay_ms` from now (>= 0) or soon after, unless it
        is cancelled before.
        """
        assert timer._next is None, "a timer is added once"
        now_ms = (self._clock.seconds() - self._origin) * 1000
        # Never into the slot that is being emptied.
        deadline_ms = max(ceil(now_ms - _ROUNDING_MS) + delay_ms, self._elapsed_ms + 1)
        timer.deadline_ms = min(deadline_ms, self._elapsed_ms + _FARTHEST_MS)
        self._insert(timer)
        self.size += 1
        if self._call is None or timer.deadline_ms < self._call_at_ms:
            self._wake_at(timer.deadline_ms, now_ms)

    def cancel(self, timer: Timer) -> None:
        """Takes it out; nothing happens when it is not in."""
        following, previous = timer._next, timer._previous
        if following is None or previous is None:
            return
        timer._next = timer._previous = None
        previous._next = following
        following._previous = previous
        self.size -= 1
        if following is previous and isinstance(following, _Slot):
            self._occupied[following.level] &= ~following.mask

    def remaining_ms(self, timer: Timer) -> int:
        """Until its time comes; 0 when it is due."""
        return max(0, ceil(timer.deadline_ms - (self._clock.seconds() - self._origin) * 1000))

    def stop(self) -> None:
        """Cancels its call on the clock; what waits is never fired."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _insert(self, timer: Timer) -> None:
        deadline_ms = timer.deadline_ms
        level = (
            min((self._elapsed_ms ^ deadline_ms | _MASK).bit_length() - 1, _LEVELS * _BITS - 1)
            // _BITS
        )
        slot = self._levels[level][(deadline_ms >> level * _BITS) & _MASK]
        last = slot._previous
        assert last is not None
        timer._previous, timer._next = last, slot
        last._next = slot._previous = timer
        self._occupied[level] |= slot.mask

    def _earliest(self) -> tuple[int, _Slot] | None:
        """The start of the earliest slot in use, and the slot: lower levels always come before
        higher ones.
        """
        for level, occupied in enumerate(self._occupied):
            if not occupied:
                continue
            shift = level * _BITS
            current = (self._elapsed_ms >> shift) & _MASK
            turned = ((occupied >> current) | (occupied << (_SLOTS - current))) & _FULL
            distance = (turned & -turned).bit_length() - 1
            start_ms = ((self._elapsed_ms >> shift) + distance) << shift
            return start_ms, self._levels[level][(current + distance) & _MASK]
        return None

    def _wake_at(self, at_ms: int, now_ms: float) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call_at_ms = at_ms
        self._call = self._clock.callLater(max(0.0, (at_ms - now_ms) / 1000), self._turn)

    def _turn(self) -> None:
        """Runs what is due, earliest first, then sleeps until the next slot in use."""
        self._call = None
        self._run_due()

    def _run_due(self) -> None:
        now_ms = (self._clock.seconds() - self._origin) * 1000
        # This process was stopped: sockets are read once before anything expires, so that what had
        # come in time counts.
        self._reading = not self._reading and now_ms - self._call_at_ms >= DEADLINE_STALL_MS
        if self._reading:
            self._call = self._clock.callLater(0, self._turn)
            return
        due_ms = floor(now_ms + _ROUNDING_MS)
        found = self._earliest()
        while found is not None and found[0] <= due_ms:
            self._elapsed_ms = max(self._elapsed_ms, found[0])
            self._empty(found[1])
            found = self._earliest()
        self._elapsed_ms = max(self._elapsed_ms, due_ms)
        found = self._earliest()
        # A timer that fired may have added one and set the call already.
        if found is not None and (self._call is None or found[0] < self._call_at_ms):
            self._wake_at(found[0], now_ms)

    def _empty(self, slot: _Slot) -> None:
        """Fires the timers of a slot whose time has come, and deals the others out to lower
        levels.
        """
        timers = []
        timer = slot._next
        while timer is not slot:
            assert timer is not None
            timers.append(timer)
            timer = timer._next
        slot._next = slot._previous = slot
        self._occupied[slot.level] &= ~slot.mask
        for timer in timers:
            timer._next = timer._previous = None
            if timer.deadline_ms > self._elapsed_ms:
                self._insert(timer)
        self._fire([timer for timer in timers if timer.deadline_ms <= self._elapsed_ms])

    def _fire(self, due: list[Timer]) -> None:
        # Linked into a circle of their own, so that one that fires can still cancel another.
        circle = _Slot(0, 0)
        circle.mask = 0
        for timer in due:
            last = circle._previous
            assert last is not None
            timer._previous, timer._next = last, circle
            last._next = circle._previous = timer
        while (first := circle._next) is not circle:
            assert first is not None
            self.cancel(first)
            self._call_expired(first.expired)
        circle._next = circle._previous = None  # a circle of one is a cycle, too

    def _call_expired(self, expired: Callable[[], None]) -> None:
        try:
            expired()
        except Exception:
            _logger.failure("a timer failed")
