"""A line a minute from a continuous archive: it is at work, or waits, and where it is.

It comes from a thread of its own, so also during a long batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.progress import Progress

SECONDS = 60.0


@contextmanager
def heartbeat(figures: Figures, progress: Progress, seconds: float = SECONDS) -> Iterator[None]:
    """A line every `seconds` while the block runs."""
    enough = Event()

    def beat() -> None:
        while not enough.wait(seconds):
            progress.say(f"archive: {figures}")

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
