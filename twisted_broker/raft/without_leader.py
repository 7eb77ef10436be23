"""Why no voter leads, in one sentence for people. Ring 0.

Owns `why_no_leader`: as one node knows it; another may know of a vote that this one was not told.

Source: QU 5.23. Not here: where it is shown (`status`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.raft.quorum_state import QuorumState
from twisted_broker.raft.states import CandidateState, ProspectiveState, ResignedState


def why_no_leader(quorum: QuorumState) -> str:
    """Empty where one is known."""
    state, epoch = quorum.state, quorum.epoch
    majority = f"a majority is {quorum.voters.majority} of {_nodes(quorum.voters.ids)}"
    if isinstance(state, ResignedState):
        return f"node {state.leader_id} resigned epoch {epoch} and waits for another; {majority}"
    if state.leader_id >= 0 and not isinstance(state, ProspectiveState):
        return ""
    if isinstance(state, ProspectiveState | CandidateState):
        election = state.election
        refused = quorum.voters.ids - {*election.granting, *election.unrecorded}
        what = "would vote for it" if state.pre_vote else "voted for it"
        asks = "asks whether it may stand" if state.pre_vote else "stands"
        after = f" after epoch {epoch}" if state.pre_vote else f" in epoch {epoch}"
        return (
            f"this node {asks} for election{after}: {_nodes(election.granting)} {what}, "
            f"{_nodes(refused)} refused, {_nodes(election.unrecorded)} did not answer; {majority}"
        )
    if state.voted is not None:
        return f"this node voted for node {state.voted.id} in epoch {epoch}; {majority}"
    return f"this node has not voted in epoch {epoch}, and waits to be asked; {majority}"


def _nodes(ids: Iterable[int]) -> str:
    found = sorted(ids)
    if not found:
        return "nobody"
    return f"node {found[0]}" if len(found) == 1 else f"nodes {', '.join(map(str, found))}"
