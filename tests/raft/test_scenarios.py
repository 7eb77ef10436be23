"""What a quorum does in the stories that matter, without random faults."""

from __future__ import annotations

import pytest

from tests.raft import mutations
from tests.raft.scenarios import Quorum
from twisted_broker.raft.messages import AddRaftVoter, Answer, RemoveRaftVoter
from twisted_broker.wire.errors import ErrorCode


def test_the_only_voter_leads_at_once() -> None:
    """QU 1.5: no timer is waited for."""
    quorum = Quorum(1, count=1)
    assert quorum.world.now_ms <= 50 and quorum.epoch(1) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_dies_is_replaced_and_comes_back_as_a_follower(seed: int) -> None:
    quorum = Quorum(seed)
    old = quorum.leader
    end = quorum.proposes(3)
    quorum.rests(300)
    old.crash()
    new = quorum.wait_for_leader(others_than=[old.id])
    assert new.core is not None and (new.core.quorum.high_watermark or 0) > end
    old.start()
    quorum.rests(3000)
    assert quorum.leader is new and quorum.epoch(old.id) == quorum.epoch(new.id)
    assert old.high_watermark == new.high_watermark


def test_a_leader_that_stops_in_order_hands_over_without_a_time_out() -> None:
    """QU 2.10, 5.21: the voter whose log goes farthest begins at once."""
    quorum = Quorum(1)
    old, before = quorum.leader, quorum.world.now_ms
    assert old.core is not None
    old.carry_out(old.core.stop(old.now(), 5000))
    new = quorum.wait_for_leader(others_than=[old.id])
    assert quorum.world.now_ms - before < 500 and new is not old
    assert quorum.world.reach["stopped in order"] == 1


def flapping(seed: int) -> None:
    """A voter that hears nobody but is heard."""
    quorum = Quorum(seed)
    leader = quorum.leader
    epoch = quorum.epoch(leader.id)
    deaf = next(each for each in quorum.world.nodes if each != leader.id)
    quorum.world.cut |= {(each, deaf) for each in quorum.world.nodes if each != deaf}
    quorum.rests(20_000)
    quorum.world.cut.clear()
    quorum.rests(3000)
    assert quorum.leader is leader and quorum.epoch(deaf) == epoch


@pytest.mark.parametrize("seed", range(3))
def test_a_voter_that_hears_nobody_raises_no_epoch(seed: int) -> None:
    """QU 3.23, KIP-996."""
    flapping(seed)


def test_without_refused_pre_votes_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    mutations.pre_vote_of_a_follower_that_fetches(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(3):
            flapping(seed)


def test_a_leader_without_a_majority_resigns() -> None:
    """QU 3.10: within a time and a half of the fetch timeout."""
    quorum = Quorum(1)
    leader = quorum.leader
    quorum.cut(*((leader.id, each) for each in quorum.world.nodes if each != leader.id))
    quorum.rests(3500)
    assert leader not in quorum.world.leaders()


def test_the_partition_of_kip_996_keeps_its_leader() -> None:
    """0-2, 1-3, 2-3-4 of five: the voter that a majority hears stays."""
    quorum = Quorum(3, count=5)
    leader = quorum.leader
    others = [each for each in quorum.world.nodes if each != leader.id]
    quorum.cut((others[0], others[1]), (others[0], others[3]), (others[1], others[2]))
    epoch = quorum.epoch(leader.id)
    quorum.cut((leader.id, others[0]))
    quorum.rests(15_000)
    assert quorum.leader is leader and quorum.epoch(leader.id) == epoch


def asks(quorum: Quorum, request: AddRaftVoter | RemoveRaftVoter) -> Answer:
    answers: list[Answer] = []
    node = quorum.leader
    assert node.core is not None
    node.carry_out(node.core.request(answers.append, request, node.now()))
    quorum.rests(3000)
    (answer,) = answers
    return answer


def test_from_one_voter_to_three_and_back() -> None:
    """QU 4.15: one after the other, each committed by the new set."""
    quorum = Quorum(5, count=1, observers=2)
    quorum.rests(2000)
    for node_id in (2, 3):
        voter = quorum.world.voter(quorum.world.nodes[node_id].key)
        assert asks(quorum, AddRaftVoter(voter)).error is ErrorCode.NONE
    duplicate = quorum.world.voter(quorum.world.nodes[3].key)
    assert asks(quorum, AddRaftVoter(duplicate)).error is ErrorCode.DUPLICATE_VOTER
    quorum.world.nodes[1].crash()
    leader = quorum.wait_for_leader(others_than=[1])
    quorum.world.nodes[1].start()
    other = next(each for each in (2, 3) if each != leader.id)
    for node_id in (1, other):
        gone = RemoveRaftVoter(quorum.world.nodes[node_id].key)
        assert asks(quorum, gone).error is ErrorCode.NONE
    last = RemoveRaftVoter(leader.key)
    assert asks(quorum, last).error is ErrorCode.VOTER_NOT_FOUND
    assert leader.core is not None and len(leader.core.quorum.voters) == 1


def test_a_leader_removes_itself_and_hands_over() -> None:
    """QU 2.38, 9.13: it leads until that is committed, without counting itself."""
    quorum = Quorum(2)
    old = quorum.leader
    answer = asks(quorum, RemoveRaftVoter(old.key))
    assert answer.error is ErrorCode.NONE
    new = quorum.wait_for_leader(others_than=[old.id])
    assert new.core is not None and old.id not in new.core.quorum.voters.ids
    assert old.core is not None and old.core.quorum.leader_id == new.id


def test_a_static_quorum_refuses_changes_until_its_upgrade() -> None:
    """QU 2.24, 4.4: kraft.version 1 needs an UpdateRaftVoter of every voter."""
    quorum = Quorum(2, kraft_version=0)
    leader = quorum.leader
    assert leader.core is not None
    gone = RemoveRaftVoter(leader.key)
    assert asks(quorum, gone).error is ErrorCode.UNSUPPORTED_VERSION
    quorum.rests(5000)
    answer, found = leader.core.upgrade_kraft_version(1, False, leader.now())
    leader.carry_out(found)
    assert answer.error is ErrorCode.NONE
    quorum.rests(1000)
    keys = {node.key for node in quorum.world.nodes.values()}
    for node in quorum.world.nodes.values():
        assert node.core is not None and set(node.core.quorum.voters.keys) == keys
    answer, _ = leader.core.upgrade_kraft_version(0, False, leader.now())
    assert answer.error is ErrorCode.INVALID_UPDATE_VERSION


def test_a_replaced_disk_joins_by_itself() -> None:
    """QU 4.13: the old key is removed, the new one added."""
    quorum = Quorum(4)
    quorum.proposes()
    quorum.rests(500)
    lost = next(node for node in quorum.world.nodes.values() if node is not quorum.leader)
    lost.auto_join = True
    lost.lose_disk(2)
    lost.start()
    quorum.rests(15_000)
    core = quorum.leader.core
    assert core is not None and lost.key in core.quorum.voters.keys


def test_a_voter_that_lags_behind_the_log_gets_a_snapshot() -> None:
    quorum = Quorum(6)
    behind = next(node for node in quorum.world.nodes.values() if node is not quorum.leader)
    behind.crash()
    for _ in range(30):
        quorum.proposes()
        quorum.rests(60)
        quorum.leader.snapshot()
    assert quorum.leader.cached.start > 0
    behind.start()
    quorum.rests(3000)
    assert quorum.world.reach["snapshot fetched"] == 1
    assert behind.high_watermark == quorum.leader.high_watermark
    quorum.world.check.full_check(behind)
