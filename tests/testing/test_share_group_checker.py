"""The checks of a share group see what they are there for."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from twisted_broker.interfaces import TopicPartition
from twisted_broker.share.share_session import SessionKey, ShareSessionCache
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.checks.share_groups import SHARE_GROUP, Asked, ShareGroupChecker
from twisted_broker.simulation.share_member import ACCEPT, RELEASE, RENEW, Chunk

PLACE, KEY = TopicPartition("t", 0), (bytes(16), 0)
HOST = ("n1", 9092)


def held(leader_epoch: int = 3) -> Any:
    return SimpleNamespace(leader_epoch=leader_epoch, share=SimpleNamespace(start_offset=0))


class Checked:
    """A checker of one partition, led by n1, with locks of a second; members with open sessions."""

    def __init__(self) -> None:
        self.line, self.sessions = Line(), ShareSessionCache(10)
        self.line.top = 100
        self.partitions: Any = {(SHARE_GROUP, *KEY): held()}
        server = SimpleNamespace(
            share_partitions=SimpleNamespace(held=self.partitions, sessions=self.sessions)
        )
        self.sim = SimpleNamespace(now=1.0)
        self.leader = SimpleNamespace(leader=1, leader_epoch=3)
        truth = SimpleNamespace(
            keys={PLACE: KEY},
            line_of=lambda name: self.line,
            is_complete=lambda *topics: True,
            registration=lambda key: self.leader,
        )
        node = SimpleNamespace(broker=SimpleNamespace(broker_server=server))
        self.found: Any = SimpleNamespace(
            truth=truth, cluster=SimpleNamespace(sim=self.sim, nodes={"n1": node}), broken=""
        )
        self.counted: list[str] = []
        self.checker = ShareGroupChecker(
            self.found, lambda kind, times=1: self.counted.extend([kind] * times), 1000, 3
        )
        for member in "ab":
            self.sessions.open(SessionKey(SHARE_GROUP, member), [], member)

    def asks(self, member: str) -> Asked:
        return self.checker.asks(member, HOST, [PLACE])

    def gets(self, member: str, offset: int, count: int = 1, asked: Asked | None = None) -> str:
        asked = self.asks(member) if asked is None else asked
        self.sim.now += 0.1
        self.checker.delivered(asked, PLACE, [offset], count, {offset})
        self.sim.now += 0.1
        return str(self.found.broken)

    def says(self, member: str, offset: int, kind: int) -> str:
        self.checker.sent(member, {PLACE: [Chunk(offset, offset, kind)]})
        asked = self.asks(member)
        self.sim.now += 0.1
        self.checker.acknowledged(asked, PLACE, offset, offset, kind)
        self.sim.now += 0.1
        return str(self.found.broken)


@pytest.fixture
def checked() -> Checked:
    return Checked()


def test_two_under_one_live_lock(checked: Checked) -> None:
    assert not checked.gets("a", 5)
    assert "delivered to b under the lock of a" in checked.gets("b", 5, 2)


@pytest.mark.parametrize(
    "ended", ["time", "release", "session", "leader", "crash", "before the answer"]
)
def test_a_lock_that_may_have_ended_is_none(checked: Checked, ended: str) -> None:
    early = checked.asks("b")
    checked.gets("a", 5)
    if ended == "time":
        checked.sim.now += 1.0
    elif ended == "release":
        checked.says("a", 5, RELEASE)
    elif ended == "session":
        checked.sessions.remove(SessionKey(SHARE_GROUP, "a"))
    elif ended == "leader":
        checked.partitions[(SHARE_GROUP, *KEY)] = held(4)
    elif ended == "crash":
        checked.checker.gone("a")
    asked = early if ended == "before the answer" else None
    assert not checked.gets("b", 5, 2, asked)


def test_a_renewed_lock_is_longer(checked: Checked) -> None:
    checked.gets("a", 5)
    checked.sim.now += 0.5
    checked.says("a", 5, RENEW)
    checked.sim.now += 0.5
    assert "under the lock of a" in checked.gets("b", 5, 2)


def test_another_acknowledges_it(checked: Checked) -> None:
    checked.gets("a", 5)
    assert checked.checker.held_by_others("b", PLACE, Random(1)) == 5
    assert "b acknowledged 5 under the lock of a" in checked.says("b", 5, ACCEPT)


def test_what_was_accepted_comes_again(checked: Checked) -> None:
    """From whoever leads; who led before may not know."""
    checked.gets("a", 5)
    assert not checked.says("a", 5, ACCEPT)
    checked.leader.leader_epoch = 4
    assert not checked.gets("b", 5, 2)
    del checked.partitions[(SHARE_GROUP, *KEY)]
    asked = checked.asks("b")
    checked.partitions[(SHARE_GROUP, *KEY)] = held(4)
    assert "was accepted" in checked.gets("b", 5, 1, asked)


@pytest.mark.parametrize("count", [0, 4])
def test_a_delivery_beyond_the_limit(checked: Checked, count: int) -> None:
    assert "the limit is 3" in checked.gets("a", 5, count)


def test_a_delivery_count_that_does_not_rise(checked: Checked) -> None:
    checked.gets("a", 5, 2)
    assert "delivery 2 of 5 after 2" in checked.gets("a", 5, 2)


def test_a_start_offset_that_goes_back(checked: Checked) -> None:
    share = checked.partitions[(SHARE_GROUP, *KEY)].share
    share.start_offset = 7
    checked.asks("a")
    share.start_offset = 6
    checked.asks("a")
    assert "start offset goes from 7 back" in checked.found.broken


def test_an_unclean_election_excuses_it(checked: Checked) -> None:
    checked.line.resets.append((4, 5))
    checked.gets("a", 5)
    assert not checked.gets("b", 5, 2)
