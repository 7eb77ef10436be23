"""The fifteen invariants of QU 7.2, checked at each step of the simulation.

Two of them hold by how the simulation is made: 13 (a message leaves when its write is durable) and
the second half of 9; what breaks them breaks another one here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.raft.consequences import Leader
from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import NOTHING, Batch, OffsetAndEpoch
from twisted_broker.raft.messages import Answer, Request, Vote
from twisted_broker.raft.quorum_state import State
from twisted_broker.raft.replica_key import ReplicaKey
from twisted_broker.raft.states import ResignedState
from twisted_broker.raft.voter_history import VoterHistory, Voters
from twisted_broker.raft.voter_set import VoterSet

if TYPE_CHECKING:
    from tests.raft.simulation import Node, Snapshot, World


class Invariants:
    """What was ever seen, by all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[ReplicaKey, int], int] = {}
        self._asked: dict[tuple[int, int, int], Vote] = {}
        self._committed: dict[int, Batch] = {}
        self.committed_end = 0
        self._chain: dict[tuple[int, int], tuple[Batch, int]] = {}
        self.snapshots: dict[OffsetAndEpoch, Snapshot] = {}
        self._epochs: dict[ReplicaKey, int] = {}
        self._saved: dict[ReplicaKey, int] = {}
        self._lost: dict[ReplicaKey, int] = {}

    def lost(self, node: Node) -> None:
        """Its disk is gone; what it acknowledged was on it."""
        newest = max(node.platter.snapshots, default=NOTHING).offset
        self._lost[node.key] = max(node.platter.end, newest)

    def started(self, node: Node) -> None:
        assert node.core is not None
        self._epochs[node.key] = node.core.quorum.epoch
        # what was not durable when it crashed was never told
        election = node.platter.election
        self._saved[node.key] = election.epoch if election else 0

    def stepped(self, node: Node) -> None:
        core = node.core
        assert core is not None
        state, log = core.quorum.state, core.node.log
        # 1: one leader per epoch
        if state.leader_id >= 0:
            known = self._leaders.setdefault(state.epoch, state.leader_id)
            assert known == state.leader_id, f"1: epoch {state.epoch}: {known}, {state.leader_id}"
        # 2: epochs only rise
        assert state.epoch >= self._epochs[node.key], "2: an epoch fell"
        self._epochs[node.key] = state.epoch
        # 10: a log that starts above 0 has a snapshot there
        assert log.end_offset == node.cached.end and log.start_offset == node.cached.start
        if log.start_offset:
            at = [each for each in log.snapshots if each.offset == log.start_offset]
            assert at and log.snapshots[0].offset >= log.start_offset, "10: no snapshot at start"
        # 11: what is applied was committed
        high_watermark = core.quorum.high_watermark
        assert high_watermark is None or high_watermark <= max(self.committed_end, 0), "11"
        if isinstance(state, LeaderState):
            assert state.voters == core.node.history.voters, "12: voters at append"

    def full_check(self, node: Node) -> None:
        """12: the voters in force are those of the last record in the log."""
        assert node.core is not None
        history = VoterHistory(self._world.static)
        if node.cached.start == 0 and self._world.founding:
            history.snapshot(-1, self._world.founding)
        elif node.cached.start:
            first = min(node.cached.snapshots)
            history.snapshot(first.offset - 1, node.cached.snapshots[first].records)
        for batch in node.cached.log:
            history.append(batch.base_offset, batch.control)
        known = node.core.node.history
        assert known.voters == history.voters, "12: not the voters of the log"
        assert known.kraft_version == history.kraft_version, "12: not the log's kraft.version"

    def saved(self, node: Node, state: ElectionState) -> None:
        assert state.epoch >= self._saved.get(node.key, 0), "2: an epoch fell on the disk"
        self._saved[node.key] = state.epoch
        if state.leader_id >= 0:
            known = self._leaders.setdefault(state.epoch, state.leader_id)
            assert known == state.leader_id, f"1: epoch {state.epoch} on the disk"

    # votes

    def sent(self, node: Node, request: Request) -> None:
        if isinstance(request, Vote):
            assert node.core is not None
            if request.pre_vote:
                self._world.reach["pre-vote asked"] += 1
            else:
                self._votes_for(node, request.epoch, node.id)

    def _votes_for(self, node: Node, epoch: int, voted: int) -> None:
        known = self._votes.setdefault((node.key, epoch), voted)
        assert known == voted, f"3: node {node.id} voted twice in epoch {epoch}: {known}, {voted}"

    def asked(self, correlation: tuple[int, int, int], request: Request) -> None:
        if isinstance(request, Vote):
            self._asked[correlation] = request

    def answered(self, node: Node, correlation: object, answer: Answer) -> None:
        """13 is that this is called when the write is durable."""
        request = self._asked.get(correlation) if isinstance(correlation, tuple) else None
        if request is None:
            return
        if request.pre_vote:
            if not answer.granted and answer.error == 0:
                self._world.reach["pre-vote refused"] += 1
        elif answer.granted:
            self._votes_for(node, request.epoch, request.replica.id)
            election = node.platter.election
            assert election is not None and election.epoch >= request.epoch, "13: not durable"

    def handled(
        self, node: Node, request: Request, before: State, voted: ReplicaKey | None
    ) -> None:
        """A pre-vote of an epoch that is known changes nothing."""
        assert node.core is not None
        if isinstance(request, Vote) and request.pre_vote and request.epoch <= before.epoch:
            state = node.core.quorum.state
            assert state.epoch > request.epoch or state.voted == voted, "3: a pre-vote is kept"

    # the log

    def appended(self, node: Node, batch: Batch) -> None:
        assert node.core is not None
        log = node.cached.log
        before = log[-1].epoch if log else max(node.cached.snapshots, default=NOTHING).epoch
        assert batch.epoch >= before, "8: an older epoch behind a newer one"
        # 8: one batch at each place of an epoch, and one before it
        known = self._chain.setdefault((batch.base_offset, batch.epoch), (batch, before))
        assert known == (batch, before), f"8: {known} and {(batch, before)}"
        committed = self._committed.get(batch.base_offset)
        assert committed is None or committed == batch, f"6: {committed} and {batch}"
        for record in batch.control:
            if isinstance(record, Voters):
                self._changed(node, batch, record.voters)

    def _changed(self, node: Node, batch: Batch, voters: VoterSet) -> None:
        """12: voter sets differ by one, and each is committed before the next."""
        assert node.core is not None
        before = self._voters_before(node, batch.base_offset)
        if before is None:
            return
        is_leader = isinstance(node.core.quorum.state, LeaderState)
        assert before[1].shares_majority(voters) or before[0] < 0, f"12: {before} {voters}"
        if before[0] >= 0 and is_leader and batch.control[0] not in voters.nodes:
            first = len(batch.control) == 1
            assert not first or before[0] < self.committed_end, "12: two uncommitted changes"

    def _voters_before(self, node: Node, offset: int) -> tuple[int, VoterSet] | None:
        found: tuple[int, VoterSet] | None = None
        if self._world.founding:
            (voters,) = [each for each in self._world.founding if isinstance(each, Voters)]
            found = (-1, voters.voters)
        for each in node.cached.log:
            if each.base_offset < offset:
                for at, record in enumerate(each.control, each.base_offset):
                    if isinstance(record, Voters):
                        found = (at, record.voters)
        return found if not node.cached.start else None

    def truncated(self, node: Node, offset: int) -> None:
        self._world.reach["truncation"] += 1
        assert offset >= node.high_watermark, "9: truncated below the high watermark"
        assert offset >= node.cached.committed_end, "9: truncated below the committed end"
        kept = [each for each in node.cached.log if each.base_offset < offset]
        assert not kept or kept[-1].last_offset < offset, "9: truncated within a batch"

    def loads(self, node: Node, snapshot: Snapshot) -> None:
        assert node.core is not None
        self._world.reach["snapshot fetched"] += 1
        assert not isinstance(node.core.quorum.state, LeaderState), "11: a leader loads a snapshot"
        assert snapshot.id.offset <= self.committed_end, "6: a snapshot of what is not committed"

    def made(self, node: Node, snapshot: Snapshot) -> None:
        known = self.snapshots.setdefault(snapshot.id, snapshot)
        assert known == snapshot, f"6: two snapshots {snapshot.id}"
        end = 0
        for batch in snapshot.log:
            assert batch.base_offset == end and self._committed[end] == batch
            end = batch.last_offset + 1
        assert end == snapshot.id.offset

    # the high watermark

    def committed(self, node: Node, offset: int) -> None:
        assert node.core is not None
        assert offset >= node.high_watermark, "4: a high watermark fell"
        state = node.core.quorum.state
        if isinstance(state, LeaderState):
            self._majority(node, state, offset)
            if state.epoch == max(self._leaders):
                assert offset >= self.committed_end, "4: the newest leader's fell"
        for batch in node.cached.log:
            if batch.last_offset < offset and batch.last_offset >= node.high_watermark:
                known = self._committed.setdefault(batch.base_offset, batch)
                assert known == batch, f"6: offset {batch.base_offset}: {known} and {batch}"
        self.committed_end = max(self.committed_end, offset)

    def _majority(self, node: Node, state: LeaderState, offset: int) -> None:
        """5: on the platters of a majority of the voters in force."""
        holders = 0
        voters = state.voters
        for key in voters.keys:
            holder = self._world.nodes[key.id]
            end = max(holder.platter.end, max(holder.platter.snapshots, default=NOTHING).offset)
            if key.has_directory and holder.key != key:
                end = self._lost.get(key, 0)
            holders += end >= offset
        assert holders >= voters.majority, f"5: {offset} is on {holders} of {len(voters)}"

    def leads(self, node: Node, leader: Leader) -> None:
        assert node.core is not None
        if leader.id != node.id:
            if isinstance(node.core.quorum.state, ResignedState):
                self._world.reach["resigned"] += 1
            return
        self._world.reach["elected"] += 1
        # 7: whoever leads has all that was ever committed, and so (14) all that was acknowledged
        assert node.cached.end >= self.committed_end, "7: a leader lacks what is committed"
        for batch in node.cached.log:
            known = self._committed.get(batch.base_offset)
            assert known is None or known == batch, f"7: {known} and {batch}"
