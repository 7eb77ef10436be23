"""A continuous archive while the brokers are away: what it says, how long it waits, and what it
does not wait for.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from replog_pipeline.errors import REGISTRY_AWAY, PipelineError, RegistryAwayError
from replog_pipeline.jobs.archive.retry import LONGEST_SECONDS, look_again
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.progress import Progress
from replog_pipeline.sources.away import BrokersAwayError, are_away

AWAY, BACK = (
    "archive: the brokers do not answer; going on as soon as they do\n",
    "archive: the brokers are back\n",
)


class Waits(Stopper):
    """Notes the waits without waiting; stops after so many looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks, self.seconds = looks, list[float]()

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) > self.looks


def retried(outcomes: str) -> tuple[list[float], str]:
    """Looks that fail (`-`) or do not (`+`): the waits before each and before the end, and what
    was said.
    """
    turns, said, stopper = iter(outcomes), io.StringIO(), Waits(len(outcomes))

    def look() -> None:
        if next(turns) == "-":
            raise BrokersAwayError("no answer")

    look_again(look, 5.0, stopper, Progress(stream=said))
    return stopper.seconds, said.getvalue()


@pytest.mark.parametrize(
    ("outcomes", "seconds", "said"),
    [
        ("", [5], ""),
        ("++", [5, 5, 5], ""),
        ("+-+", [5, 5, 1, 5], AWAY + BACK),
        ("---+", [5, 1, 2, 4, 5], AWAY + BACK),
        ("-+-", [5, 1, 5, 1], AWAY + BACK + AWAY),
        ("-" * 9, [5, 1, 2, 4, 8, 16, 32, *[LONGEST_SECONDS] * 3], AWAY),
    ],
)
def test_it_says_when_the_waiting_begins_and_ends_and_waits_longer_each_time(
    outcomes: str, seconds: list[float], said: str
) -> None:
    assert retried(outcomes) == (seconds, said)


@pytest.mark.parametrize(
    "error", [PipelineError("the topic was created anew"), ValueError("a bug")]
)
def test_any_other_failure_ends_it(error: Exception) -> None:
    def look() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        look_again(look, 5.0, Waits(3), Progress(quiet=True))


def test_it_says_that_the_schema_registry_is_away() -> None:
    """For the driver, then for a task, whose error Spark made."""
    turns, said = iter("-s+"), io.StringIO()

    def look() -> None:
        turn = next(turns)
        if turn == "-":
            raise RegistryAwayError(f"{REGISTRY_AWAY} (--schema-registry http://h): no")
        if turn == "s":
            raise from_spark(f"errors.PipelineError: {REGISTRY_AWAY} (--schema-registry http://h)")

    look_again(look, 5.0, Waits(3), Progress(stream=said))
    assert said.getvalue() == (
        "archive: the schema registry does not answer; going on as soon as it does\n"
        "archive: the schema registry is back\n"
    )


def from_spark(said: str) -> Exception:
    kind: Callable[[str], Exception] = type(
        "Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"}
    )
    return kind(said)


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (BrokersAwayError("no answer"), True),
        (
            from_spark(
                "Caused by: java.util.concurrent.TimeoutException: Cannot fetch record for "
                "offset 17 in 120000 milliseconds"
            ),
            True,
        ),
        (
            from_spark(
                "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired "
                "before the position could be determined"
            ),
            True,
        ),
        (from_spark("java.lang.IllegalStateException: the offset was changed from 3 to 7"), False),
        (ValueError("org.apache.kafka.common.errors.TimeoutException"), False),
        (PipelineError("topic 'a' is not on the brokers"), False),
    ],
)
def test_only_brokers_that_do_not_answer_are_away(error: Exception, away: bool) -> None:
    assert are_away(error) is away
