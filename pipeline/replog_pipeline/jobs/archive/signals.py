"""SIGTERM and Ctrl-C: noted at once; the archive ends between two batches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType


class Stopper:
    """Not told yet."""

    def __init__(self) -> None:
        self._told = Event()

    def is_set(self) -> bool:
        return self._told.is_set()

    def request_stop(self, signal_number: int = 0, frame: FrameType | None = None) -> None:
        self._told.set()

    def wait(self, seconds: float) -> bool:
        """Until told, at most `seconds`; whether it was."""
        return self._told.wait(seconds)


@contextmanager
def on_signals() -> Iterator[Stopper]:
    """A stopper that SIGTERM and SIGINT tell while the block runs; main thread only.

    A second SIGINT is Python's own.
    """
    stopper = Stopper()
    before = {
        number: signal.signal(number, stopper.request_stop)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopper
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
