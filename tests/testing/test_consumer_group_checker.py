"""The checks of a consumer group see what they are there for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.consumer_groups import ConsumerGroupChecker, Floor
from twisted_broker.simulation.checks.replica_contents import Line

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Checked:
    """A checker, and a member's heartbeat from its sending to its answer."""

    def __init__(self, session_seconds: float | None = None) -> None:
        self.line, self.counted = Line(), list[str]()
        truth = SimpleNamespace(
            names={1: TopicPartition("__consumer_offsets", 0)}, line=lambda key: self.line
        )
        self.sim = SimpleNamespace(now=0.0)
        cluster = SimpleNamespace(sim=self.sim)
        self.found: Any = SimpleNamespace(truth=truth, cluster=cluster, broken="")
        self.checker = ConsumerGroupChecker(self.found, self.counted.append, session_seconds)

    def beat(
        self, member: str, epoch: int, *given: TopicPartition, listed: Any = (), joins: bool = False
    ) -> str:
        floor = self.checker.epoch_floor("" if joins else member)
        lost = self.checker.sent(member, frozenset(listed))
        self.checker.answered(member, epoch, floor, frozenset(given), lost)
        return str(self.found.broken)


@pytest.fixture
def checked() -> Checked:
    return Checked()


def test_a_partition_that_was_given_up_goes_to_another(checked: Checked) -> None:
    checked.beat("a", 2, T0, T1, joins=True)
    checked.beat("b", 3, joins=True)
    checked.beat("a", 2, T0, listed=(T0, T1))
    checked.beat("a", 3, T0, listed=(T0,))
    assert not checked.beat("b", 3, T1) and not checked.beat("a", 3, T0, listed=(T0,))
    assert checked.counted == ["partition given to a member"] * 3


def test_two_owners_at_one_epoch(checked: Checked) -> None:
    checked.beat("a", 2, T0, joins=True)
    assert "two owners at epoch 2" in checked.beat("b", 2, T0, joins=True)


def test_what_a_member_still_has_is_given_to_another(checked: Checked) -> None:
    checked.beat("a", 2, T0, joins=True)
    assert not checked.beat("b", 3, T0, joins=True)
    assert "while a had it" in checked.beat("a", 2, listed=(T0,))


def test_a_member_that_was_fenced_had_nothing_any_more(checked: Checked) -> None:
    checked.beat("a", 2, T0, joins=True)
    checked.beat("b", 3, T0, joins=True)
    checked.checker.fenced("a")
    assert not checked.beat("a", 4, joins=True)
    assert "partition of a lost member given away" in checked.counted


def test_an_older_answer_that_comes_later_takes_nothing(checked: Checked) -> None:
    lost = checked.checker.sent("a", frozenset())
    checked.beat("b", 3, T0, joins=True)
    checked.checker.answered("a", 2, Floor(0.0, {}), frozenset({T0}), lost)
    assert not checked.beat("b", 3, T0, listed=(T0,))


def test_an_epoch_that_goes_back(checked: Checked) -> None:
    """A member's own; and for one that joins the newest that anybody was told."""
    checked.beat("a", 3, joins=True)
    assert "told epoch 2 after 3" in checked.beat("b", 2, joins=True)
    other = Checked()
    other.beat("a", 3, joins=True)
    assert "told epoch 2 after 3" in other.beat("a", 2)


def test_an_empty_group_that_another_replaced_begins_anew() -> None:
    """Once nobody is surely in it any more; who was in it then has nothing."""
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, T1, joins=True)
    checked.sim.now = 1.9
    checked.beat("a", 7, T0, T1, listed=(T0, T1))
    checked.sim.now = 4.0
    assert not checked.beat("b", 1, T0, T1, joins=True)
    assert "while a had it" in checked.beat("a", 7, listed=(T0,))


def test_whoever_is_there_though_its_session_should_be_over_has_what_it_had() -> None:
    """Its coordinator was away."""
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, T1, joins=True)
    checked.sim.now = 4.0
    checked.beat("b", 8, joins=True)
    assert not checked.beat("a", 8, T0, T1, listed=(T0, T1))
    assert not checked.beat("b", 9, T0)
    assert "while a had it" in checked.beat("a", 9, listed=(T0,))


def test_one_that_joins_again_may_find_another_group() -> None:
    """It was removed, and the group was empty; until then its epoch does not go back."""
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, joins=True)
    assert "is told epoch 6 after 7" in checked.beat("a", 6)
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, joins=True)
    checked.sim.now = 4.0
    assert not checked.beat("a", 2, joins=True)


def test_one_that_left_is_not_in_the_group() -> None:
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, joins=True)
    checked.checker.fenced("a")
    assert not checked.beat("b", 1, T0, joins=True) and not checked.beat("c", 7, T1, joins=True)


def test_an_epoch_goes_back_while_one_is_surely_there() -> None:
    checked = Checked(session_seconds=2.0)
    checked.beat("a", 7, T0, joins=True)
    checked.sim.now = 1.9
    assert "told epoch 1 after 7" in checked.beat("b", 1, joins=True)
