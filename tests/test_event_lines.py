"""What `event_lines.py` promises: the form, and the bound in a storm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger, formatEvent

from twisted_broker.event_lines import MOST_BUDGETS, MOST_LINES, MOST_OF_ONE, EventLines, some
from twisted_broker.interfaces import TopicPartition


class Book:
    """Lines, and the clock that they go by."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.clock = Clock()
        logger = Logger(namespace="test", observer=self.events.append)
        self.lines = EventLines(logger, self.clock, broker=1)

    @property
    def texts(self) -> list[str]:
        return [formatEvent(event) for event in self.events]


@pytest.fixture
def book() -> Iterator[Book]:
    made = Book()
    yield made
    made.lines.stop()
    assert not made.clock.getDelayedCalls()


def test_the_form(book: Book) -> None:
    """`key=value`, dots in keys, quotes where a value would not be one word; the parts are fields
    of the event, too.
    """
    book.lines.add(
        "ISR shrunk",
        partition=TopicPartition("t", 0),
        isr=[1, 2],
        leader_epoch=7,
        unclean=False,
        group='a "b"\n{c}',
        name="",
    )
    assert book.texts == [
        "ISR shrunk broker=1 partition=t-0 isr=1,2 leader.epoch=7 unclean=false "
        'group="a \\"b\\"\\n{c}" name=""'
    ]
    assert book.events[0]["leader_epoch"] == 7 and book.events[0]["partition"] == "t-0"
    book.lines.add("long", text="x" * 5000)
    assert len(book.texts[1]) < 400


def test_a_storm_is_a_few_lines_and_one_that_counts_the_rest(book: Book) -> None:
    """Of each kind for itself; the next minute has its own lines."""
    for number in range(1000):
        book.lines.add("made", number=number)
    book.lines.add("other")
    assert len(book.texts) == MOST_LINES + 1
    book.clock.advance(60)
    assert book.texts[-1] == f"made, more in that minute: broker=1 count={1000 - MOST_LINES}"
    book.lines.add("made", number=1000)
    assert book.texts[-1] == "made broker=1 number=1000"
    book.clock.advance(3600)
    assert len(book.texts) == MOST_LINES + 3


def test_a_stop_writes_what_was_counted(book: Book) -> None:
    """Once."""
    for _ in range(MOST_LINES + 5):
        book.lines.add("made")
    book.lines.stop()
    book.lines.stop()
    assert [text for text in book.texts if "more" in text] == [
        "made, more in that minute: broker=1 count=5"
    ]


def test_minutes_pass_without_a_timer(book: Book) -> None:
    """A few lines a minute, hour after hour, are all written."""
    for _ in range(100):
        for _ in range(5):
            book.lines.add("made")
        book.clock.advance(61)
    assert len(book.texts) == 500 and not book.clock.getDelayedCalls()


def test_names() -> None:
    """The first ones and how many more."""
    assert some(["a", "b"]) == "a,b" and some(range(10)) == "0,1,2,+7"


def test_a_storm_of_errors_is_counted_at_its_level(book: Book) -> None:
    """A directory with a thousand partitions fails: its lines stay errors, the summary too."""
    for number in range(1000):
        book.lines.error("partition is offline", partition=number)
    book.lines.warn("partition is offline", partition=0)
    book.clock.advance(60)
    levels = [event["log_level"].name for event in book.events]
    assert levels == ["error"] * MOST_LINES + ["warn", "error"]
    assert book.texts[-1].startswith("partition is offline, more in that minute: broker=1 count=")


def counted(most: int, *by: str) -> Book:
    """Lines that are counted by these parts."""
    book = Book()
    logger = Logger(namespace="test", observer=book.events.append)
    book.lines = EventLines(logger, book.clock, by=by, most=most, broker=1)
    return book


def test_one_does_not_hide_another() -> None:
    """Each has lines of its own, and what was counted says whose it is."""
    book = counted(MOST_LINES, "principal")
    for number in range(MOST_LINES + 10):
        book.lines.warn("denied", principal="User:alice", number=number)
    book.lines.warn("denied", principal="User:CN=bob,O=b", number=0)
    assert book.texts[-1] == 'denied broker=1 principal="User:CN=bob,O=b" number=0'
    for _ in range(MOST_LINES):
        book.lines.warn("denied", principal="User:CN=bob,O=b")
    book.clock.advance(60)
    assert book.texts[-2:] == [
        "denied, more in that minute: broker=1 principal=User:alice count=10",
        'denied, more in that minute: broker=1 principal="User:CN=bob,O=b" count=1',
    ]


def test_there_are_few_budgets() -> None:
    """What is beyond shares one, and few lines count the rest; no line is lost from the counts."""
    book = counted(2, "principal")
    for _ in range(3):
        for number in range(1000):
            book.lines.add("denied", principal=f"User:{number}")
    assert len(book.texts) == 2 * MOST_BUDGETS
    assert len(next(iter(book.lines._counts.values()))) == MOST_BUDGETS
    book.clock.advance(60)
    counted_lines = book.texts[2 * MOST_BUDGETS :]
    assert len(counted_lines) == 21
    beyond = 3 * (1001 - MOST_BUDGETS) - 2
    assert counted_lines[0].endswith(f" principal=others count={beyond}")
    assert counted_lines[-1].endswith(f" count={MOST_BUDGETS - 20} others={MOST_BUDGETS - 20}")
    total = sum(int(each.split("count=")[1].split()[0]) for each in counted_lines)
    assert total == 3000 - 2 * MOST_BUDGETS


def test_one_source_takes_few_of_the_budgets() -> None:
    """A client that names a new user each time does not hide what others do."""
    book = counted(3, "client", "reason")
    for number in range(1000):
        book.lines.warn("failed", client="10.0.0.1", reason=f"user{number}")
    assert len(book.texts) == MOST_OF_ONE - 1 + 3
    book.lines.warn("failed", client="10.0.0.2", reason="bob")
    assert book.texts[-1] == "failed broker=1 client=10.0.0.2 reason=bob"
    book.clock.advance(60)
    beyond = 1000 - (MOST_OF_ONE - 1) - 3
    assert book.texts[-1].endswith(f" client=10.0.0.1 reason=others count={beyond}")
