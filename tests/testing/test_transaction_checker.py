"""The checks of transactions see what they are there for."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.api.group_api import broker, image, topic
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.committed_state import CommittedState
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.checks.transactions import TransactionChecker
from twisted_broker.simulation.transaction_notes import Outcome, Transaction, TransactionNotes

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
KEY, STATE = (b"i" * 16, 0), (b"s" * 16, 0)


class World:
    """A checker of two partitions and of `__transaction_state`, all of it whole."""

    def __init__(self) -> None:
        self.known = TransactionNotes()
        self.lines = {KEY: Line(), STATE: Line()}
        truth: Any = SimpleNamespace(
            names={STATE: TopicPartition("__transaction_state", 0)},
            keys={T0: KEY, T1: KEY},
            line=self.lines.__getitem__,
            line_of=lambda name: self.lines[KEY],
            registration=lambda key: object(),
        )
        truth.is_complete = partial(CommittedState.is_complete, truth)
        truth.coordinator_of = partial(CommittedState.coordinator_of, truth)
        self.found: Any = SimpleNamespace(truth=truth, broken="")
        self.checks = TransactionChecker(self.found, self.known, lambda *facts: None)

    def transaction(self, outcome: Outcome, *values: bytes) -> Transaction:
        """With a record in each partition."""
        made = self.known.begin("x", "xa")
        made.outcome = outcome
        for place, value in zip((T0, T1), values, strict=False):
            self.known.by_value[value] = made
            made.records.append((place, 5, [value]))
        return made

    def at_the_end(self, **committed: int) -> str:
        self.checks.at_the_end(committed)
        found: str = self.found.broken
        return found


def test_read_committed_shows_nothing_that_may_not_be_committed() -> None:
    """RL 9.4: read_committed shows no record of a transaction for which no commit was sent; nor
    one at two offsets.
    """
    world = World()
    made = world.transaction(Outcome.NOT_SENT, b"a", b"b")
    made.outcome = Outcome.SENT
    world.known.delivered("r", T0, 5, b"a")
    world.known.delivered("r", T0, 5, b"a")
    world.known.delivered("r", T1, 7, b"of no transaction")
    assert not world.found.broken
    world.known.delivered("r", T0, 6, b"a")
    assert "at 6 and at 5" in world.found.broken
    world.found.broken, made.outcome = "", Outcome.NOT_SENT
    world.known.delivered("r", T1, 5, b"b")
    assert "was shown b'b' at 5" in world.found.broken


@pytest.mark.parametrize(
    ("outcome", "shown", "says"),
    [
        (Outcome.COMMITTED, 2, ""),
        (Outcome.COMMITTED, 1, "is not whole"),
        (Outcome.COMMITTED, 0, "is not whole"),
        (Outcome.SENT, 2, ""),
        (Outcome.SENT, 1, "is torn"),
        (Outcome.SENT, 0, ""),
        (Outcome.ABORTED, 0, ""),
        (Outcome.ABORTED, 1, "shows a at 5"),
    ],
)
def test_a_transaction_is_there_as_a_whole_or_not_at_all(
    outcome: Outcome, shown: int, says: str
) -> None:
    """RL 9.4: no part of one, in several partitions; as its producer was answered."""
    world = World()
    made = world.transaction(Outcome.SENT, b"a", b"b")
    for place, value in [(T0, b"a"), (T1, b"b")][:shown]:
        world.known.delivered("r", place, 5, value)
    made.outcome = outcome
    assert says in world.at_the_end() and bool(world.found.broken) is bool(says)


@pytest.mark.parametrize("lost", [KEY, STATE])
def test_nothing_is_owed_where_an_unclean_election_took_something(lost: Any) -> None:
    """Of the partition, or of the coordinator's; who was elected uncleanly and had all took
    nothing.
    """
    world = World()
    world.transaction(Outcome.COMMITTED, b"a")
    world.lines[lost].resets.append((3, 0))
    world.lines[lost].has_lost = True
    assert not world.at_the_end()
    world.lines[lost].has_lost = False
    assert "is not whole" in world.at_the_end()


@pytest.mark.parametrize(
    ("outcome", "last", "says"),
    [
        (Outcome.COMMITTED, 0, ""),
        (Outcome.COMMITTED, 3, ""),
        (Outcome.COMMITTED, -1, "there is no offset 0"),
        (Outcome.SENT, 0, "is torn"),
        (Outcome.SENT, -1, ""),
        (Outcome.SENT, 3, ""),
        (Outcome.ABORTED, 0, "shows offset 0"),
        (Outcome.ABORTED, 3, ""),
    ],
)
def test_an_offset_belongs_to_its_transaction(outcome: Outcome, last: int, says: str) -> None:
    """Its record is shown where the producer was answered so; a later offset hides it."""
    world = World()
    made = world.transaction(Outcome.SENT, b"a")
    made.offset = 0
    if outcome is Outcome.COMMITTED:
        world.known.delivered("r", T0, 5, b"a")
    made.outcome = outcome
    assert says in world.at_the_end(x=last) and bool(world.found.broken) is bool(says)


def test_committed_offsets_and_the_last_stable_offset_do_not_go_back() -> None:
    world = World()
    world.known.stable_seen("r", T0, 3, 5, 9)
    world.known.stable_seen("r", T0, 4, 4, 9)
    world.transaction(Outcome.COMMITTED).offset = 0
    world.transaction(Outcome.NOT_SENT).offset = 1
    world.known.offset_seen("x", 0, world.known.offset_floor("x"))
    assert not world.found.broken
    world.known.offset_seen("x", -1, world.known.offset_floor("x"))
    assert "-1 is committed, 0 was acknowledged" in world.found.broken
    world.found.broken = ""
    world.known.offset_seen("x", 1, 0)
    assert "offset 1 is of transaction 1" in world.found.broken
    for stable, mark in ((3, 9), (10, 9)):
        world.found.broken = ""
        world.known.stable_seen("r", T0, 4, stable, mark)
        assert f"saw the last stable offset {stable}" in world.found.broken


def test_who_coordinates_a_group() -> None:
    """An answer of another one, or of an earlier epoch, owes nothing of what was acknowledged."""
    world = World()
    truth = world.found.truth
    truth.image = None
    assert world.known.coordinator_of("g") is None
    truth.image = image(topic("__consumer_offsets", b"o" * 16, leader=2), brokers=(broker(1),))
    assert world.known.coordinator_of("g") is None
    truth.image = image(
        topic("__consumer_offsets", b"o" * 16, leader=2), brokers=(broker(1), broker(2))
    )
    assert world.known.coordinator_of("g") == ("host-2", 0)
