"""A job's progress on standard error: a moving line on a terminal; elsewhere, as in a log file, a
line every few seconds of a step and one at its end; nothing with `--quiet`.

Standard output belongs to the result alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Update = Callable[[str], None]
"""Adds a word on how far the step is."""

LOOK_SECONDS = 0.5
LINE_SECONDS = 5.0


class Progress:
    """One per command. Steps follow one another; they do not nest.

    `line_seconds`: between two lines of a step where no line moves; None: only the one at its end.
    """

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        line_seconds: float | None = LINE_SECONDS,
    ) -> None:
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.line_seconds = line_seconds

    def say(self, line: str) -> None:
        """One line that stays."""
        if not self.quiet:
            print(line, file=self.stream, flush=True)

    @contextmanager
    def step(self, what: str, spark: SparkSession | None = None) -> Iterator[Update]:
        """Names a step while it runs and the seconds it took; with `spark` also the tasks that
        are done, as Spark counts them.
        """
        began = time.monotonic()
        with self._moving(what) as update, counting_tasks(spark, update):
            yield update
        self.say(f"{what}: {time.monotonic() - began:.1f} s")

    @contextmanager
    def _moving(self, what: str) -> Iterator[Update]:
        if self.quiet or (self.line_seconds is None and not self.stream.isatty()):
            yield lambda detail: None
            return
        if not self.stream.isatty():
            with self._in_lines(what, self.line_seconds or LINE_SECONDS) as update:
                yield update
            return
        from rich.console import Console

        with Console(file=self.stream).status(what) as status:
            yield lambda detail: status.update(f"{what}  {detail}")

    @contextmanager
    def _in_lines(self, what: str, seconds: float) -> Iterator[Update]:
        """A thread says every so many seconds how far the step is."""
        began, newest, enough = time.monotonic(), [""], Event()

        def beat() -> None:
            while not enough.wait(seconds):
                detail = f", {newest[0]}" if newest[0] else ""
                self.say(f"{what}: {time.monotonic() - began:.0f} s so far{detail}")

        thread = Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield lambda detail: newest.__setitem__(0, detail)
        finally:
            enough.set()
            thread.join()


@contextmanager
def counting_tasks(spark: SparkSession | None, update: Update) -> Iterator[None]:
    """While the block runs, a thread tells `update` how many tasks of the active stages are
    done.
    """
    if spark is None:
        yield
        return
    enough = Event()
    thread = Thread(
        target=watch, args=(spark.sparkContext.statusTracker(), update, enough), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def watch(tracker: Any, update: Update, enough: Event) -> None:
    while not enough.wait(LOOK_SECONDS):
        try:
            stages = [
                stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage
            ]
        except Exception:  # Spark's Java is gone: the step's own error says so
            return
        if stages:
            update(
                f"{sum(stage.numCompletedTasks for stage in stages)} of "
                f"{sum(stage.numTasks for stage in stages)} tasks"
            )
