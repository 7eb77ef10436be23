"""Where operations wait for their condition or their time.

Owns the lists of what waits, by key, and the Deferreds that are fired when it waits no more.

1. An operation completes exactly once: by its condition, by its time, or because its waiter gave up
   (`cancel()`).
2. Try, watch on every key, try again: no event between is lost.
3. `check_and_complete` tries everything under a key first and fires Deferreds afterwards. It is
   called from the event queue, never in the middle of a change, so completing an operation never
   re-enters the code that caused it.
4. Completed operations leave the lists when their number passes `purge_interval`, or when their key
   is looked at.
5. An operation that raises when it is tried after it was watched is logged and completed; the
   others go on. At the first try, before it is watched, the error goes to the caller.

Woken by the effects in `Effects.event_table` (`check_and_complete`), after a metadata delta
(`check_all`, DeleteRecords only), by the timing wheel, and at shutdown (`complete_all`).

Source: RL 4.1, 4.3; Kafka's `DelayedOperationPurgatory`. Not here: the conditions
(`delayed_operations`), time (`timing_wheel`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.replication.purgatory.timing_wheel import Timer, TimingWheel

_logger = Logger(namespace=__name__)


class Operation(Protocol):
    """What can wait. `is_complete` may be called any number of times until it returns True;
    `expire` is called when time is up before that.

    `changed`: the only key under which something happened since the last call; None: not known.
    """

    def is_complete(self, changed: Hashable = None) -> bool: ...

    def expire(self) -> None: ...


class DelayedOperation(Timer):
    """An operation that waits, and the Deferred of its waiter."""

    __slots__ = ("deferred", "operation", "purgatory")

    def __init__(self, purgatory: Purgatory, operation: Operation) -> None:
        super().__init__()
        self.purgatory: Purgatory | None = purgatory
        self.operation: Operation | None = operation
        self.deferred: Deferred[None] = Deferred(self._given_up)

    @property
    def completed(self) -> bool:
        return self.operation is None

    def try_complete(self, changed: Hashable = None) -> bool:
        """True when this call completed it; the caller then fires the Deferred."""
        operation = self.operation
        if operation is None:
            return False
        try:
            if not operation.is_complete(changed):
                return False
        except Exception:
            # Complete all the same: its waiter runs and finds the error, instead of waiting to the
            # end.
            _logger.failure("completing a delayed operation failed")
        self._leave()
        return True

    def expired(self) -> None:
        operation, purgatory = self.operation, self.purgatory
        if operation is None or purgatory is None:
            return
        self._leave()
        purgatory.expired_count += 1
        try:
            operation.expire()
        finally:
            self.fire()

    def fire(self) -> None:
        if not self.deferred.called:  # a waiter that ran before may have cancelled this one
            self.deferred.callback(None)

    def _given_up(self, deferred: Deferred[None]) -> None:
        if self.operation is not None:
            self._leave()

    def _leave(self) -> None:
        purgatory = self.purgatory
        assert purgatory is not None
        self.operation = self.purgatory = None
        purgatory._left(self)


class Purgatory:
    """`name` is for metrics: Produce, Fetch, DeleteRecords, ShareFetch."""

    __slots__ = (
        "_completed",
        "_purge_interval",
        "_watched",
        "_wheel",
        "expired_count",
        "name",
        "waiting",
    )

    def __init__(self, name: str, wheel: TimingWheel, purge_interval: int) -> None:
        self.name = name
        self._wheel = wheel
        self._purge_interval = purge_interval
        self._watched: dict[Hashable, list[DelayedOperation]] = {}
        self._completed = 0
        self.waiting = 0
        self.expired_count = 0

    @property
    def size(self) -> int:
        """PurgatorySize: entries in the lists, completed ones not yet purged among them."""
        return sum(map(len, self._watched.values()))

    def try_complete_else_watch(
        self, operation: Operation, keys: Iterable[Hashable], timeout_ms: int, tried: bool = False
    ) -> Deferred[None] | None:
        """None when it is complete at once, else a Deferred that fires when it is, or when
        `timeout_ms` passed (after `expire()`).

        `tried`: the caller has just made the first try.
        """
        if not tried and operation.is_complete():
            return None
        delayed = DelayedOperation(self, operation)
        self.waiting += 1
        for key in keys:
            self._watched.setdefault(key, []).append(delayed)
        # Once more after it is in the lists: what happened in between would wake nobody.
        if delayed.try_complete():
            return None
        self._wheel.add(delayed, timeout_ms)
        return delayed.deferred

    def also_watch(self, key: Hashable, other: Hashable) -> None:
        """What waits under `key` waits under `other` from now on, too."""
        waiting = [
            delayed for delayed in self._watched.get(key, ()) if delayed.operation is not None
        ]
        if waiting:
            self._watched[key] = waiting  # nobody else looks at this list
            self._watched.setdefault(other, []).extend(waiting)

    def check_and_complete(self, key: Hashable) -> int:
        """Tries all that waits under `key`; returns how many it completed."""
        watching = self._watched.get(key)
        if not watching:
            return 0
        done = [delayed for delayed in watching if delayed.try_complete(key)]
        still = [delayed for delayed in watching if delayed.operation is not None]
        if still:
            self._watched[key] = still
        else:
            self._watched.pop(key, None)
        # Fired last: a waiter may check the same key, or wait again.
        for delayed in done:
            delayed.fire()
        return len(done)

    def check_all(self) -> None:
        """Tries everything that waits."""
        for key in list(self._watched):
            self.check_and_complete(key)

    def watching(self, key: Hashable) -> list[tuple[Operation, int]]:
        """What waits under `key`, oldest first, and in how many ms its time is up."""
        return [
            (delayed.operation, self._wheel.remaining_ms(delayed))
            for delayed in self._watched.get(key, ())
            if delayed.operation is not None
        ]

    def watched(self) -> Iterator[tuple[Hashable, int]]:
        """Each key with something that waits, and in how many ms the time of the oldest is up."""
        for key, watching in self._watched.items():
            for delayed in watching:
                if delayed.operation is not None:
                    yield key, self._wheel.remaining_ms(delayed)
                    break

    def complete_all(self) -> None:
        """Lets everything go as if its time were up (shutdown)."""
        for key in list(self._watched):
            for delayed in self._watched.pop(key, ()):
                delayed.expired()

    def _left(self, delayed: DelayedOperation) -> None:
        self._wheel.cancel(delayed)
        self.waiting -= 1
        self._completed += 1
        # Completed entries stay in the lists of their other keys until then.
        if self._completed > self._purge_interval:
            self._completed = 0
            self._purge()

    def _purge(self) -> None:
        for key, watching in list(self._watched.items()):
            still = [delayed for delayed in watching if delayed.operation is not None]
            if still:
                self._watched[key] = still
            else:
                del self._watched[key]
