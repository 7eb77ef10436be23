"""Faults put into the core, one at a time; the simulation must find each (QU 7.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twisted_broker.raft.consequences import Outbox, Reply
from twisted_broker.raft.elections import Elections
from twisted_broker.raft.follower import Follower
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import LogView
from twisted_broker.raft.messages import Fetch
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.quorum_state import QuorumState
from twisted_broker.raft.request_manager import RequestManager
from twisted_broker.raft.states import (
    FollowerState,
    ProspectiveState,
    UnattachedState,
)
from twisted_broker.raft.voter_history import VoterHistory

Patch = pytest.MonkeyPatch


def answer_before_the_disk(patch: Patch) -> None:
    """A vote leaves before it is durable."""
    patch.setattr(Outbox, "reply", lambda self, to, answer: self.add(Reply(to, answer, 0)))


def vote_is_given_twice(patch: Patch) -> None:
    """To anybody whose log goes far enough."""
    for state in (UnattachedState, ProspectiveState):
        patch.setattr(state, "grants", lambda self, key, is_up_to_date, pre_vote: is_up_to_date)


def vote_for_a_shorter_log(patch: Patch) -> None:
    """The offset counts before the epoch."""
    real = Elections.vote

    def votes(self: Any, request: Any, now_ms: float) -> Any:
        log = self._node.log
        end = request.end._replace(epoch=max(request.end.epoch, log.last_epoch))
        if end.epoch < request.epoch + request.pre_vote:
            request = request._replace(end=end)
        return real(self, request, now_ms)

    patch.setattr(Elections, "vote", votes)


def older_epoch_is_committed(patch: Patch) -> None:
    """The high watermark moves over entries of an earlier epoch alone."""

    def moves(self: LeaderState) -> bool:
        ends = sorted((self._end_of(each) for each in self._replicas.values()), reverse=True)
        offset = ends[len(ends) // 2] if ends else -1
        if offset < 0 or offset <= (self.high_watermark or -1):
            return False
        self.high_watermark = offset
        return True

    patch.setattr(LeaderState, "move_high_watermark", moves)


def half_is_a_majority(patch: Patch) -> None:
    """Of an even number of voters."""

    def moves(self: LeaderState) -> bool:
        ends = sorted((self._end_of(each) for each in self._replicas.values()), reverse=True)
        offset = ends[(len(ends) - 1) // 2] if ends else -1
        if offset <= self.start_offset or offset <= (self.high_watermark or -1):
            return False
        self.high_watermark = offset
        return True

    patch.setattr(LeaderState, "move_high_watermark", moves)


def fetch_before_sync(patch: Patch) -> None:
    """A follower acknowledges what it has not synced."""
    real = RequestManager.send

    def sends(self: Any, node: int, address: Any, request: Any, *rest: Any) -> None:
        out, known = self._out, self._out.log_seq
        if isinstance(request, Fetch):
            out.log_seq = 0
        real(self, node, address, request, *rest)
        out.log_seq = known

    patch.setattr(RequestManager, "send", sends)


def leader_counts_unsynced(patch: Patch) -> None:
    """Its own log end, instead of the durable one."""
    real = RaftNode.append

    def appends(self: RaftNode, batch: Any) -> None:
        real(self, batch)
        state = self.quorum.state
        if isinstance(state, LeaderState):
            self.leader_moved(state.set_own_end(self.log.end_offset))

    patch.setattr(RaftNode, "append", appends)


def truncates_too_far(patch: Patch) -> None:
    """To the start of the diverging epoch."""
    real = LogView.end_of_epoch

    def end(self: LogView, epoch: int) -> Any:
        found = real(self, epoch)
        return found if not epoch else real(self, epoch - 1)

    patch.setattr(LogView, "end_of_epoch", end)


def does_not_truncate(patch: Patch) -> None:
    """A follower that differs goes on behind its own end."""
    patch.setattr(RaftNode, "truncate", lambda self, offset: None)


def pre_vote_of_a_follower_that_fetches(patch: Patch) -> None:
    """A voter that cannot hear the leader raises the epoch."""
    patch.setattr(
        FollowerState,
        "grants",
        lambda self, key, is_up_to_date, pre_vote: pre_vote and is_up_to_date,
    )


def pre_vote_is_kept(patch: Patch) -> None:
    """As if it were a vote."""
    real = Elections.vote

    def votes(self: Any, request: Any, now_ms: float) -> Any:
        answer = real(self, request, now_ms)
        state = self._quorum.state
        if answer.granted and isinstance(state, UnattachedState | ProspectiveState):
            self._quorum.grant_vote(request.replica, now_ms)
        return answer

    patch.setattr(Elections, "vote", votes)


def candidate_keeps_its_epoch(patch: Patch) -> None:
    real = QuorumState.to_candidate

    def stays(self: QuorumState, now_ms: float) -> None:
        self.state.epoch -= 1
        real(self, now_ms)

    patch.setattr(QuorumState, "to_candidate", stays)


def restarted_leader_leads_on(patch: Patch) -> None:
    """It forgets that it led this epoch."""
    real = QuorumState.start

    def starts(self: QuorumState, stored: Any, log: Any, now_ms: float) -> None:
        if stored is not None and stored.leader_id == self.local.id:
            stored = stored._replace(leader_id=-1, voted=None, epoch=stored.epoch - 1)
        real(self, stored, log, now_ms)

    patch.setattr(QuorumState, "start", starts)


def voters_at_commit(patch: Patch) -> None:
    """The leader takes new voters later than it appends them."""
    patch.setattr(LeaderState, "set_voters", lambda self, voters: None)


def voters_outlive_truncation(patch: Patch) -> None:
    patch.setattr(VoterHistory, "truncate", lambda self, end_offset: None)


def snapshot_without_voters(patch: Patch) -> None:
    real = VoterHistory.snapshot

    def loses(self: VoterHistory, last_offset: int, records: Any) -> None:
        real(self, last_offset, records if last_offset < 0 else ())

    patch.setattr(VoterHistory, "snapshot", loses)


def snapshot_of_a_dropped_download(patch: Patch) -> None:
    """It is loaded whatever this node is by now."""

    def received(self: Any, snapshot: Any, records: Any, now_ms: float) -> None:
        self._node.truncate_to_snapshot(snapshot, records)

    patch.setattr(Follower, "snapshot_received", received)


def two_changes_at_once(patch: Patch) -> None:
    from twisted_broker.raft.voter_changes import VoterChanges

    real = VoterChanges._refused

    def allows(self: Any, state: Any, needs_version: bool = True) -> Any:
        refused = real(self, state, needs_version)
        if refused is not None and "not committed" in refused.message:
            return None
        return refused

    patch.setattr(VoterChanges, "_refused", allows)


Mutation = Callable[[Patch], None]
