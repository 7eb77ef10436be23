"""Long work in turns of the reactor: the one place that decides what a turn may take. Ring 1.

Owns `Turns`, one for a broker: its long requests wait for `next_turn`, its background work is
started with `start`.

1. One turn is scheduled at a time, however much waits: everybody else is served between two.
2. A turn is one slice of one request, or pieces of background work. The two alternate while both
   wait; requests take turns one by one, background work piece by piece, so none waits for another's
   end.
3. A request counts its elements (each costs some ten microseconds), and looks at the clock after
   every `LOOK_ELEMENTS`: its slice ends when `SECONDS_PER_TURN` have passed, at the latest after
   `SLICE_ELEMENTS`. Small requests, which are nearly all, pay a subtraction for each element and
   never wait.
4. Background work is a generator that yields after every piece, which it keeps well below a
   millisecond or two. Its turn ends with the piece after which `SECONDS_PER_TURN` have passed by
   the clock, at the latest after `PIECES_PER_TURN`: a simulated clock stands still within a turn.
5. A generator that yields a Deferred goes on when that has fired, whatever it fired with. What one
   raises ends that one alone, with its traceback in the log.

Source: our own; Apache Kafka has threads for each of these. Not here: what a request does in a
slice (`api/context.py`), the work itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import IClock, IDelayedCall, Marks
from twisted_broker.subclassed import mypyc_attr

SLICE_ELEMENTS, LOOK_ELEMENTS = 400, 100
SECONDS_PER_TURN = 0.004
PIECES_PER_TURN = 64
Steps = Iterator["Deferred[Any] | None"]
T = TypeVar("T")
_logger = Logger(namespace=__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns:
    """The long work of one broker."""

    __slots__ = (
        "_background",
        "_call",
        "_clock",
        "_is_background_next",
        "_is_stopped",
        "_marks",
        "_requests",
    )

    def __init__(self, clock: IClock, marks: Marks | None = None) -> None:
        self._clock = clock
        self._marks = marks or Marks()
        self._requests: deque[Deferred[None]] = deque()
        self._background: deque[Steps] = deque()
        self._is_background_next = True
        self._call: IDelayedCall | None = None
        self._is_stopped = False

    # requests
    def next_turn(self) -> Deferred[None]:
        """Fires in a later turn of the reactor, when it is the caller's."""
        waiter: Deferred[None] = Deferred()
        self._requests.append(waiter)
        self._schedule()
        return waiter

    async def whole(self, work: Generator[None, None, T]) -> T:
        """What `work` returns; others are served where it pauses, so each step is a few
        milliseconds.
        """
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self.next_turn()

    # background work
    def start(self, steps: Steps) -> None:
        """Runs the first piece now, so that small work is done on return; the others follow in
        turns of their own.
        """
        self._run(steps)
        self._schedule()

    def stop_background(self) -> None:
        """Background work ends where it is, and what is started later after its first piece."""
        self._is_stopped = True
        self._background.clear()
        if self._call is not None and not self._requests:
            self._call.cancel()
            self._call = None

    # turns
    def _schedule(self) -> None:
        if self._call is None and (self._requests or (self._background and not self._is_stopped)):
            self._call = self._clock.callLater(0, self._turn)

    def _turn(self) -> None:
        self._call = None
        has_background = bool(self._background) and not self._is_stopped
        if has_background and (self._is_background_next or not self._requests):
            self._is_background_next = False
            self._run_pieces()
            self._schedule()
            return
        self._is_background_next = True
        if not self._requests:
            return  # the work that it was scheduled for is done, or stopped
        # Scheduled before the waiter runs: it goes on at once and may ask for another turn.
        waiter = self._requests.popleft()
        self._schedule()
        if not waiter.called:  # else its client is gone
            waiter.callback(None)

    def _run_pieces(self) -> None:
        until = self._clock.seconds() + SECONDS_PER_TURN
        for _ in range(PIECES_PER_TURN):
            if not self._background:
                break
            self._run(self._background.popleft())
            if self._clock.seconds() >= until:
                break

    def _run(self, steps: Steps) -> None:
        self._marks.what = steps
        try:
            waits_for = next(steps)
        except StopIteration:
            return
        except Exception:
            _logger.failure("a piece of background work failed; the rest of it is not done")
            return
        if waits_for is None or waits_for.called:
            self._background.append(steps)
        else:
            waits_for.addBoth(self._resume, steps)

    def _resume(self, result: Any, steps: Steps) -> Any:
        if not self._is_stopped:
            self._background.append(steps)
            self._schedule()
        return result
