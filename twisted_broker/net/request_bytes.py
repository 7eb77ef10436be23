"""The bytes of long requests in memory at a time, over all connections of a broker.

Owns `RequestBytes`: what is held, who waits for room, and who must make it.

1. A long request (`Booking`) takes memory as its bytes arrive, never for a length that it only
   announces. While `limit` is held, no new one begins and none grows, but one that has begun may go
   on beyond the limit: so at most one frame exceeds it, and the requests never wait for each other.
   It keeps this right until it is released, or less than the limit is held. It is released with its
   answer, or when it is in the logs and waits for replicas: its bytes are held no more
   (`PendingResponse.appended`).
2. Short frames and those that come in one piece never wait and cost nothing: heartbeats, follower
   fetches, and what completes a waiting produce.
3. Room is given in the order in which it was asked for, and is booked at once. A connection that
   ends meanwhile is forgotten: its place would keep it, and all that it has read, in memory.
4. Nobody waits long for bytes that do not come. When a request has waited for `PATIENCE_SECONDS`,
   those end that made the least progress, until there is room for all that have waited so long.
   Progress is the share of its length that came in the last second in which it was read from.
   Spared are those that are read from and need less than `ENOUGH_SECONDS` at their pace, those that
   wait themselves while the memory is in motion (an eighth of it is answered in a second), and all
   while more than half of it is of requests that are here: these end by themselves. A check that
   runs late ends nothing: this process was stopped, and has not read yet what was sent meanwhile.
5. Connections that have yet to authenticate take nothing of this: their long frames, each bounded
   by `sasl.server.max.receive.size`, have a `STRANGERS_LIMIT` of their own, under the same rules.

Source: Kafka's `SimpleMemoryPool` (`queued.max.request.bytes`), which books what is announced;
`KafkaRequestHandler`, which releases it. Not
here: connections that are idle (`net/connection_limits.py`).
"""

from __future__ import annotations

from typing import Protocol

from twisted_broker.interfaces import IClock

STRANGERS_LIMIT = 32 << 20
PATIENCE_SECONDS, ENOUGH_SECONDS = 1.0, 10.0


class Owner(Protocol):
    """The connection of a request under way."""

    def bytes_arrived(self) -> int | None:
        """Of the request that is under way; None while it is not read from through no fault of its
        client.
        """
        ...

    def room_given(self) -> None:
        """What it waits for is booked."""
        ...

    def too_slow(self) -> None:
        """Others wait for its memory: ends it, and its booking."""
        ...


class Booking:
    """The memory of one long request of `size` bytes, from its first bytes until it is released:
    `held` bytes. `wanted`: what it waits for.
    """

    __slots__ = ("_asked_at", "_before", "_owner", "_pace", "_pool", "held", "size", "wanted")

    def __init__(self, pool: RequestBytes, size: int, owner: Owner) -> None:
        self._pool, self._owner = pool, owner
        self.size = size
        self.held = self.wanted = 0
        self._before: int | None = None
        """what had arrived at the last look; None: since then it was not read from all the time"""
        self._pace: float | None = None
        self._asked_at = 0.0
        pool._arriving[self] = None

    def take(self, more: int) -> bool:
        """Books `more` bytes; else the owner's `room_given` is called when they are booked."""
        pool = self._pool
        if pool._has_room(self):
            self.held += more
            pool.used += more
            if 0 < pool.limit <= 2 * pool.used and not pool._is_watching:
                pool._watch()
            return True
        self.wanted = more
        pool._wait(self)
        return False

    def arrived(self) -> None:
        """All of it is here: it is served."""
        self._pool._arriving.pop(self, None)

    def progress(self) -> float:
        """The share of it that came in a second; at first all that came."""
        return self.held / self.size if self._pace is None else self._pace

    def release(self) -> None:
        """It is answered, or gone."""
        held, self.held = self.held, 0
        self._pool._release(self, held)

    def _is_slow(self) -> bool:
        """A second is over; whether it was read from all the time, and little came."""
        arrived, before = self._owner.bytes_arrived(), self._before
        if self in self._pool.waiting or arrived is None:
            self._before = None
            return False
        self._before = arrived
        if before is None:
            return False
        self._pace = (arrived - before) / self.size
        return self._pace * ENOUGH_SECONDS < PATIENCE_SECONDS


class RequestBytes:
    """`limit` in bytes; 0 or less: none. `strangers`: of those that have yet to authenticate."""

    __slots__ = (
        "_arriving",
        "_check_due",
        "_clock",
        "_exceeding",
        "_is_watching",
        "_moved",
        "limit",
        "strangers",
        "used",
        "waiting",
    )

    def __init__(self, limit: int, clock: IClock, strangers_limit: int = STRANGERS_LIMIT) -> None:
        self.limit = limit
        self.used = 0
        self.waiting: dict[Booking, None] = {}
        self.strangers = RequestBytes(strangers_limit, clock, 0) if strangers_limit else self
        self._clock = clock
        self._arriving: dict[Booking, None] = {}
        self._exceeding: Booking | None = None
        self._is_watching = False
        self._check_due = 0.0
        self._moved = 0
        """bytes of requests that were answered since the last look"""

    def _has_room(self, booking: Booking) -> bool:
        if not 0 < self.limit <= self.used or booking is self._exceeding:
            return True
        # The memory of one that has begun is only free again when all of it has come.
        if booking.held and self._exceeding is None:
            self._exceeding = booking
            return True
        return False

    def _wait(self, booking: Booking) -> None:
        self.waiting[booking] = None
        booking._asked_at = self._clock.seconds()
        if not self._is_watching:
            self._watch()

    def _release(self, booking: Booking, held: int) -> None:
        if booking in self._arriving:
            del self._arriving[booking]
            self.waiting.pop(booking, None)
        else:
            self._moved += held
        self.used -= held
        if booking is self._exceeding or self.used < self.limit:
            self._exceeding = None
        while self.waiting and (following := self._next_with_room()) is not None:
            del self.waiting[following]
            self.used += following.wanted
            following.held += following.wanted
            following.wanted, following._before = 0, None
            following._owner.room_given()

    def _next_with_room(self) -> Booking | None:
        first = next(iter(self.waiting))
        if self._has_room(first):
            return first
        return next(filter(self._has_room, self.waiting), None) if self._exceeding is None else None

    def _watch(self) -> None:
        """From where half of it is held: the pace of each is known when others wait."""
        self._is_watching = True
        self._moved = 0
        for booking in self._arriving:
            booking._before, booking._pace = None, None
            booking._is_slow()
        self._look_later()

    def _look_later(self) -> None:
        self._check_due = self._clock.seconds() + PATIENCE_SECONDS
        self._clock.callLater(PATIENCE_SECONDS, self._look)

    def _look(self) -> None:
        now = self._clock.seconds()
        slow = [each for each in self._arriving if each._is_slow()]
        if self.waiting and now - self._check_due < PATIENCE_SECONDS:
            self._make_room(slow, now - PATIENCE_SECONDS)
        self._moved = 0
        self._is_watching = bool(self.waiting) or self.limit <= 2 * self.used
        if self._is_watching:
            self._look_later()

    def _make_room(self, slow: list[Booking], since: float) -> None:
        """For all that have waited since then."""
        late = [each for each in self.waiting if each._asked_at <= since]
        if not late or 2 * sum(each.held for each in self._arriving) < self.limit:
            return
        if 8 * self._moved < self.limit:
            slow += [each for each in late if each.held]
        missing = self.used + sum(each.wanted for each in late) - self.limit
        for booking in sorted(slow, key=Booking.progress):
            if missing < 0:
                return
            missing -= booking.held + booking.wanted
            booking._owner.too_slow()
