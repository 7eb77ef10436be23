"""What a step says where no line can move, as in a log file."""

from __future__ import annotations

import io
import re
from threading import Event, active_count

from replog_pipeline.progress import Progress, watch

PATIENCE_SECONDS = 30
SOON = 0.005


class Log(io.StringIO):
    """A log file; `moved` is set by its second line."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = Event()

    def flush(self) -> None:
        if self.getvalue().count("\n") >= 2:
            self.moved.set()


class NoJava:
    """Spark's tracker when its JVM is gone."""

    def __init__(self) -> None:
        self.asked = 0

    def getStageInfo(self, stage: int) -> None:
        """Never asked."""

    def getActiveStageIds(self) -> list[int]:
        self.asked += 1
        raise RuntimeError("An error occurred while calling o1.getActiveStageIds")


def test_who_counts_tasks_ends_without_a_word_when_java_is_gone() -> None:
    tracker = NoJava()
    watch(tracker, lambda said: None, Event())
    assert tracker.asked == 1


def test_a_long_step_says_again_and_again_how_far_it_is() -> None:
    log = Log()
    with Progress(stream=log, line_seconds=SOON).step("counted") as update:
        update("3 of 8 tasks")
        assert log.moved.wait(PATIENCE_SECONDS)
    *lines, last = log.getvalue().splitlines()
    assert re.fullmatch(r"counted: \d+ s so far, 3 of 8 tasks", lines[-1])
    assert re.fullmatch(r"counted: \d+\.\d s", last)


def test_nothing_is_said_after_the_step() -> None:
    log = Log()
    before = active_count()
    with Progress(stream=log, line_seconds=SOON).step("one"):
        assert log.moved.wait(PATIENCE_SECONDS)
    assert active_count() == before and log.getvalue().endswith(" s\n")


def test_a_short_step_is_one_line() -> None:
    log = io.StringIO()
    with Progress(stream=log).step("short"):
        pass
    assert re.fullmatch(r"short: \d+\.\d s\n", log.getvalue())


def test_a_step_without_lines_and_a_silent_one() -> None:
    for progress, lines in ((Progress(stream=Log(), line_seconds=None), 1), (Progress(True), 0)):
        log = progress.stream = Log()
        with progress.step("step") as update:
            update("1 of 2 tasks")
        assert log.getvalue().count("\n") == lines
