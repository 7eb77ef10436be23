"""Long work in slices: generators run side by side, a few milliseconds in each turn of the reactor.
Ring 1.

Owns `Slices`. A generator yields after every piece of work, which it keeps well below a millisecond
or two.

1. One turn ends with the piece after which `SECONDS_PER_TURN` have passed by the clock, at the
   latest after `PIECES_PER_TURN` pieces: a simulated clock stands still within a turn.
2. All that runs takes turns piece by piece, so none waits for another's end.
3. A generator that yields a Deferred goes on when that has fired, whatever it fired with.
4. What one raises ends that one alone, with its traceback in the log.

Source: our own; Apache Kafka has a thread for each of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import IClock, IDelayedCall

SECONDS_PER_TURN = 0.004
PIECES_PER_TURN = 64
Steps = Iterator["Deferred[Any] | None"]
_log = Logger()


class Slices:
    """The long work of one coordinator."""

    __slots__ = ("_call", "_clock", "_is_stopped", "_queue")

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._queue: deque[Steps] = deque()
        self._call: IDelayedCall | None = None
        self._is_stopped = False

    def start(self, steps: Steps) -> None:
        """Runs the first piece now, so that small work is done on return; the others follow in
        turns of their own.
        """
        self._run(steps)
        self._wake()

    def stop(self) -> None:
        """What runs is given up where it is, and nothing more is taken beyond its first piece."""
        self._is_stopped = True
        self._queue.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _wake(self) -> None:
        if self._queue and self._call is None and not self._is_stopped:
            self._call = self._clock.callLater(0, self._turn)

    def _turn(self) -> None:
        self._call = None
        until = self._clock.seconds() + SECONDS_PER_TURN
        for _ in range(PIECES_PER_TURN):
            if not self._queue:
                break
            self._run(self._queue.popleft())
            if self._clock.seconds() >= until:
                break
        self._wake()

    def _run(self, steps: Steps) -> None:
        try:
            waits_for = next(steps)
        except StopIteration:
            return
        except Exception:
            _log.failure("a piece of the coordinator's work failed; the rest of it is given up")
            return
        if waits_for is None or waits_for.called:
            self._queue.append(steps)
        else:
            waits_for.addBoth(self._go_on, steps)

    def _go_on(self, result: Any, steps: Steps) -> Any:
        if not self._is_stopped:
            self._queue.append(steps)
            self._wake()
        return result
