"""What people are told while no voter leads: who voted for whom, who lacks what."""

from __future__ import annotations

from tests.raft.test_core import OTHER, started
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.replica_key import Address
from twisted_broker.raft.states import CandidateState, ProspectiveState
from twisted_broker.raft.without_leader import why_no_leader


def test_each_state_without_a_leader_is_one_sentence() -> None:
    """From the start to an election, and to the leader that comes out of it."""
    quorum, _ = started(ElectionState(5))
    assert why_no_leader(quorum) == (
        "this node has not voted in epoch 5, and waits to be asked; "
        "a majority is 2 of nodes 1, 2, 3"
    )
    quorum.grant_vote(OTHER, 0)
    assert why_no_leader(quorum).startswith("this node voted for node 2 in epoch 5; ")
    quorum.to_prospective(0)
    state = quorum.state
    assert isinstance(state, ProspectiveState)
    state.election.record(2, False)
    assert why_no_leader(quorum).startswith(
        "this node asks whether it may stand for election after epoch 5: node 1 would vote for it, "
        "node 2 refused, node 3 did not answer; "
    )
    state.election.record(3, True)
    quorum.to_candidate(0)
    assert isinstance(quorum.state, CandidateState)
    assert why_no_leader(quorum).startswith(
        "this node stands for election in epoch 6: node 1 voted for it, nobody refused, "
        "nodes 2, 3 did not answer; "
    )
    quorum.to_follower(7, 3, Address("three", 9093), 0)
    assert why_no_leader(quorum) == ""
