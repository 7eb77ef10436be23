"""The checks of a group see what they are there for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.groups import GroupChecker
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.member import Member
from twisted_broker.wire.messages import groups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fixture() -> tuple[Notes, Any, list[str]]:
    """Notes with a checker, what the checker found, and what was counted."""
    notes, counted = Notes(), list[str]()
    line = Line()
    truth = SimpleNamespace(
        names={1: TopicPartition("__consumer_offsets", 0)},
        line=lambda key: line,
        coordinator_of=lambda group: None,
    )
    found: Any = SimpleNamespace(truth=truth, broken="", line=line)
    GroupChecker(found, notes, counted.append)
    return notes, found, counted


def test_an_acknowledged_commit_is_fetched() -> None:
    """What was acknowledged before the fetch was sent, or more."""
    notes, found, counted = fixture()
    notes.committed(T0, 5)
    floor = notes.commit_floor(T0)
    notes.committed(T0, 6)
    notes.committed_seen(T0, 5, floor)
    assert not found.broken and counted == ["offset commit"] * 2
    notes.committed_seen(T0, 5, notes.commit_floor(T0))
    assert "6 was acknowledged" in found.broken


def test_a_generation_has_one_owner_and_none_comes_again() -> None:
    """Two owners, and a generation older than one that was told before the join."""
    notes, found, _ = fixture()
    notes.assigned("a", 2, 0, [T0])
    notes.assigned("b", 2, 0, [T1])
    notes.assigned("b", 1, 0, [T0])
    assert not found.broken
    notes.assigned("b", 2, 0, [T0])
    assert "two owners" in found.broken
    found.broken = ""
    notes.assigned("a", 1, notes.generation_floor(), [T1])
    assert "after 2" in found.broken


@pytest.mark.parametrize(
    ("asked", "then", "is_broken"),
    [(("n1", 4), ("n1", 4), True), (("n2", 5), ("n2", 5), False), (("n1", 4), ("n2", 5), False)],
)
def test_a_deposed_coordinator_remembers_an_older_generation(
    asked: tuple[str, int], then: tuple[str, int], is_broken: bool
) -> None:
    """A follower that comes again with what it said before is answered at once, nothing is written:
    as in Kafka.
    """
    notes, found, _ = fixture()
    notes.assigned("b", 2, 0, [T1])
    runtime: Any = SimpleNamespace(random=None)
    member = Member(runtime, "m0", [], notes, [T0])
    member._coordinator, member._member_id = ("n1", 9092), "a"
    coordinators = iter((asked, then))
    notes.coordinator_of = lambda group: next(coordinators)

    async def answered(request: Any, version: int) -> Any:
        if isinstance(request, groups.JoinGroupRequest):
            return groups.JoinGroupResponse(generation_id=1, leader="b", member_id="a")
        return groups.SyncGroupResponse(assignment=b"0")

    async def unanswered(places: Any) -> None:
        return None

    member._send_to_coordinator = answered
    member._fetch_committed = unanswered
    ensureDeferred(member._join())
    assert ("after 2 was assigned" in found.broken) is is_broken
    assert notes.generation_floor() == 2


def test_an_unclean_election_owes_nothing() -> None:
    notes, found, _ = fixture()
    found.line.resets.append((3, 0))
    notes.committed(T0, 5)
    notes.committed_seen(T0, 0, 5)
    assert not found.broken
