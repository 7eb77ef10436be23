"""Turns of the reactor that took too long, and what ran in them.

Owns `ReactorWatch`, one for a process. A turn is what runs from one poll of the reactor to the
next: all timers that are due, the callbacks from worker threads, the events of all sockets that
were ready. Nobody else is served meanwhile.

1. A turn costs two readings of a clock, a request one store (`what`, see `interfaces.Marks`), an
   event of a socket or a timer a comparison. Everything else happens for slow turns, and once in
   `_SAMPLE_SECONDS` of work.
2. What ran is the longest piece that was timed (an event of a connection, a timer, a callback from
   a thread), by the last mark that was set in it; else the last mark of the turn.
3. One line for a slow turn; of more than `LINES_A_MINUTE` a line for all others of that minute.
4. Of a turn's time two parts are counted: what the processor worked, and how long the thread waited
   for a processor that others had. A busy machine is not our fault, a disk is. Both counts are the
   thread's and are not read in every turn, so the short turns since the last reading are taken off
   in full: the true value is at least what the line says, and at most `_SAMPLE_SECONDS` more.
5. Until `started`, only a turn of `STARTING_SECONDS` is slow: modules are loaded then.

Ring 2. Source: our own; Kafka has a thread for each of these. Not here: work in slices
(`turns.py`), what others conclude from a process that did not run (`stall_tolerance.py`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
from collections.abc import Callable
from itertools import accumulate
from time import perf_counter, thread_time
from typing import Any

from twisted.logger import Logger

from twisted_broker.interfaces import IClock, IDelayedCall, Marks, TurnNumbers

BUCKETS_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LINES_A_MINUTE = 10
STARTING_SECONDS, STARTING = 1.0, "the start: "
_MINUTE = 60.0
_SAMPLE_SECONDS = 0.005
_PIECE_SHARE = 5

_logger = Logger(namespace="replog.reactor")


class ReactorWatch(Marks):
    """`slow_ms`: what a turn may take, 0 for no watch at all; `seconds` and `usage` are its clocks.

    `turns` and `busy` (seconds) are of all turns, `slow_turns`, `slow_seconds` and `buckets` of the
    slow ones; `longest` in seconds, and `longest_what`.
    """

    __slots__ = (
        "_is_installed",
        "_is_starting",
        "_lines",
        "_minute_began",
        "_piece",
        "_piece_turn",
        "_piece_what",
        "_step",
        "_unsaid",
        "_unsaid_longest",
        "_used",
        "_wanted",
        "began",
        "buckets",
        "busy",
        "longest",
        "longest_what",
        "notable",
        "sample_at",
        "seconds",
        "slow",
        "slow_seconds",
        "slow_turns",
        "turns",
        "usage",
    )

    def __init__(
        self,
        slow_ms: int,
        seconds: Callable[[], float] = perf_counter,
        usage: Callable[[], tuple[float, float, int]] | None = None,
    ) -> None:
        super().__init__()
        self._wanted = slow_ms / 1000
        self.slow = max(self._wanted, STARTING_SECONDS)
        self._is_installed, self._is_starting = False, True
        self.notable = self._wanted / _PIECE_SHARE if slow_ms else float("inf")
        self.seconds = seconds
        self.usage = usage or ThreadUsage()
        self.began = self.busy = self.slow_seconds = self.longest = 0.0
        self.turns = self.slow_turns = 0
        self.longest_what = ""
        self.buckets = [0] * (len(BUCKETS_SECONDS) + 1)
        self._piece, self._piece_what, self._piece_turn = 0.0, "", -1
        self._step = min(_SAMPLE_SECONDS, self._wanted)
        self._used, self.sample_at = (0.0, 0.0, 0), self._step
        self._lines, self._minute_began = 0, 0.0
        self._unsaid, self._unsaid_longest = 0, 0.0

    def install(self, reactor: Any) -> bool:
        """Watches its turns from now on; False where it has no poller to watch (select, kqueue,
        asyncio).
        """
        poller = getattr(reactor, "_poller", None)
        if not self._wanted or poller is None:
            return False
        reactor._poller = _WatchedPoller(poller, self)
        self._is_installed = True
        return True

    def started(self) -> None:
        """From the next turn on, every turn that takes `slow_ms` or more counts as slow."""
        self._is_starting, self.sample_at = False, 0.0

    def numbers(self) -> TurnNumbers | None:
        """None where nothing is watched: 0 turns would be a false count."""
        if not self._is_installed:
            return None
        below = accumulate(self.buckets)
        return TurnNumbers(
            self.turns,
            self.busy,
            self.longest,
            self.slow_turns,
            self.slow_seconds,
            list(zip(BUCKETS_SECONDS, below, strict=False)),
        )

    # pieces of a turn
    def piece(self, seconds: float) -> None:
        """Call when a piece took `notable` seconds or more; it is the one marked last."""
        if self._piece_turn != self.turns:
            self._piece_turn, self._piece = self.turns, 0.0
        if seconds > self._piece:
            self._piece, self._piece_what = seconds, name_of(self.what)

    def run(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        """Runs a piece: a timer's call, or one that came from a thread."""
        self.what = call
        began = self.seconds()
        try:
            call(*arguments, **more)
        finally:
            took = self.seconds() - began
            if took >= self.notable:
                self.piece(took)

    # turns
    def turn_ended(self, took: float) -> None:
        """Called after the turn in which `busy` reached `sample_at`."""
        used, before = self.usage(), self.busy - took - self.sample_at + self._step
        worked, waited, collected = (now - then for now, then in zip(used, self._used, strict=True))
        if took >= self.slow and self.turns > 1:  # the first one is the start of the reactor
            self._note_slow(
                took,
                min(max(0.0, worked - before), took),
                min(max(0.0, waited - before), took),
                int(collected),
            )
        if not self._is_starting:
            self.slow = self._wanted
        self._used, self.sample_at = used, self.busy + self._step
        if self._unsaid and self.seconds() - self._minute_began > _MINUTE:
            self._log_rest()

    def _note_slow(self, took: float, worked: float, waited: float, collected: int) -> None:
        what = self._piece_what if self._piece_turn == self.turns - 1 else name_of(self.what)
        if self.slow > self._wanted:
            what = f"{STARTING}{what}"
        self.slow_turns += 1
        self.slow_seconds += took
        self.buckets[sum(took > bound for bound in BUCKETS_SECONDS)] += 1
        if took > self.longest:
            self.longest, self.longest_what = took, what
        now = self.seconds()
        if now - self._minute_began > _MINUTE:
            if self._unsaid:
                self._log_rest()
            self._lines, self._minute_began = 0, now
        self._lines += 1
        if self._lines > LINES_A_MINUTE:
            self._unsaid += 1
            self._unsaid_longest = max(self._unsaid_longest, took)
            return
        _logger.warn(
            "the reactor was busy for {took} ms with {what} (processor {worked} ms, waited for it "
            "{waited} ms{collected})",
            took=round(took * 1000),
            what=what,
            worked=round(worked * 1000),
            waited=round(waited * 1000),
            collected=f", {collected} full collections" if collected else "",
        )

    def _log_rest(self) -> None:
        _logger.warn(
            "in the minute since, the reactor was busy for more than {slow} ms another {count} "
            "times, for at most {longest} ms",
            slow=round(self.slow * 1000),
            count=self._unsaid,
            longest=round(self._unsaid_longest * 1000),
        )
        self._unsaid, self._unsaid_longest = 0, 0.0


class _WatchedPoller:
    """Stands in for the reactor's epoll or poll object: a turn lies between two of its polls."""

    def __init__(self, poller: Any, watch: ReactorWatch) -> None:
        self._poller = poller
        wait, seconds = poller.poll, watch.seconds
        if _is_poll(poller):
            own = wait

            def wait(timeout: float, maxevents: int) -> Any:
                return own(timeout)

        def poll(timeout: float = -1, maxevents: int = -1) -> Any:
            took = seconds() - watch.began
            watch.turns += 1
            watch.busy = busy = watch.busy + took
            if busy >= watch.sample_at:
                watch.turn_ended(took)
            try:
                return wait(timeout, maxevents)
            finally:
                watch.what = None
                watch.began = seconds()

        self.poll = poll  # a closure: a method's lookups were half of its cost
        watch.began = seconds()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


def _is_poll(poller: Any) -> bool:
    """Whether it is poll's object, which takes no number of events as epoll's does."""
    return hasattr(select, "poll") and isinstance(poller, type(select.poll()))


class WatchedClock:
    """The reactor as a clock whose timers are pieces of a turn."""

    __slots__ = ("_later", "_run", "seconds")

    def __init__(self, clock: IClock, watch: ReactorWatch) -> None:
        self.seconds = clock.seconds
        self._later, self._run = clock.callLater, watch.run

    def callLater(
        self, delay: float, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> IDelayedCall:
        return self._later(delay, self._run, call, *args, **kwargs)


class ThreadUsage:
    """(seconds that this thread worked, seconds that it was ready to and had no processor, full
    collections of garbage in this process).

    The second is 0 where the system does not report it (Linux does).
    """

    __slots__ = ("_descriptor",)

    def __init__(self) -> None:
        self._descriptor = -2

    def __call__(self) -> tuple[float, float, int]:
        worked, collected = thread_time(), gc.get_stats()[2]["collections"]
        if self._descriptor == -2:
            # Not before the first call: `twistd` may have forked since this was made.
            self._descriptor = -1
            with contextlib.suppress(OSError):
                self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError, ValueError, IndexError):
                waited = int(os.pread(self._descriptor, 64, 0).split()[1]) / 1e9
                return worked, waited, collected
        return worked, 0.0, collected


def name_of(what: Any) -> str:
    """How the line names what was marked: the API and its version, the task, else the function."""
    route = getattr(what, "route", None)
    if route is not None:
        return f"{route.name} v{what.version}"
    while (inner := getattr(what, "f", None) or getattr(what, "func", None)) is not None:
        what = inner  # of a LoopingCall, of a partial
    owner = getattr(what, "__self__", None)
    label = getattr(owner, "name", None)
    if isinstance(label, str):
        return label
    if what is None:
        return "something unmarked"
    return what if isinstance(what, str) else str(getattr(what, "__qualname__", repr(what)))
