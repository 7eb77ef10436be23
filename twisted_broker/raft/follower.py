"""A follower and an observer: fetching the log and snapshots from the leader, or finding it.

1. A Fetch names the end of the own log and leaves when that is durable: it is the
   acknowledgement.
2. At most one fetch is under way. It goes to the leader; while that does not answer, to a
   bootstrap address.
3. A snapshot that is being fetched or read is dropped with the state that began it.

Source: Kafka's `KafkaRaftClient` (follower), KIP-595, KIP-630, KIP-853; QU 2.30, 2.35, 3.12 to
3.14, 3.20, 3.24, 4.13. Not here: what an answer of another epoch means
(`kafka_raft_client.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.raft.consequences import (
    AppendSnapshot,
    DropSnapshot,
    FinishSnapshot,
    StartSnapshot,
)
from twisted_broker.raft.log_view import OffsetAndEpoch
from twisted_broker.raft.messages import (
    AddRaftVoter,
    Answer,
    Fetch,
    Fetched,
    FetchSnapshot,
    RemoveRaftVoter,
    Request,
    SnapshotPiece,
    UpdateRaftVoter,
)
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.states import NEVER, FollowerState, SnapshotDownload, UnattachedState
from twisted_broker.raft.voter_history import ControlRecord
from twisted_broker.wire.errors import ErrorCode

_FIRST_BOOTSTRAP = -2


class Follower:
    """The follower's side of fetching."""

    def __init__(self, node: RaftNode) -> None:
        self._node, self._quorum = node, node.quorum

    def poll_unattached(self, state: UnattachedState, now_ms: float) -> float:
        if self._quorum.is_voter and now_ms >= state.deadline_ms:
            self._quorum.to_prospective(now_ms)
            return now_ms
        self._fetch_from_bootstrap(now_ms)
        return state.deadline_ms

    def poll(self, state: FollowerState, now_ms: float) -> float:
        node, requests = self._node, self._node.requests
        is_voter = self._quorum.is_voter
        if now_ms >= state.deadline_ms and is_voter:
            self._quorum.to_prospective(now_ms)
            return now_ms
        if now_ms >= state.deadline_ms:
            # A voter whose record did not come here may need this vote: it is not refused for a
            # leader that is gone.
            state.has_fetched = False
        update = self._due_update(state, now_ms)
        leader = state.leader_id
        requests.give_up(leader, now_ms)
        if now_ms >= state.deadline_ms or requests.is_backing_off(leader, now_ms):
            self._fetch_from_bootstrap(now_ms)
        elif update is not None and requests.is_ready(leader, now_ms):
            requests.send(leader, state.leader_address, update, now_ms)
            state.update_deadline_ms = now_ms + node.config.fetch_timeout_ms
        elif (
            update is None
            and requests.is_ready(leader, now_ms)
            and not requests.is_fetching(now_ms)
        ):
            download = state.download
            if download is None:
                requests.send(leader, state.leader_address, self._fetch(), now_ms)
            elif not download.is_whole:
                wanted = FetchSnapshot(
                    node.local.key,
                    state.epoch,
                    download.id,
                    download.position,
                    node.config.fetch_snapshot_max_bytes,
                )
                requests.send(leader, state.leader_address, wanted, now_ms)
        deadline = state.deadline_ms if now_ms < state.deadline_ms else NEVER
        return min(deadline, state.update_deadline_ms if update is None else NEVER)

    def _fetch(self) -> Fetch:
        node = self._node
        config, known = node.config, self._quorum.high_watermark
        return Fetch(
            node.local.key,
            self._quorum.epoch,
            node.log.end,
            config.fetch_max_bytes,
            config.fetch_max_wait_ms,
            -1 if known is None else known,
        )

    def _fetch_from_bootstrap(self, now_ms: float) -> None:
        requests = self._node.requests
        if requests.is_fetching(now_ms):
            return
        places = [
            (_FIRST_BOOTSTRAP - row, address)
            for row, address in enumerate(self._node.bootstrap)
            if address != self._node.local.address
        ]
        if not places:
            return
        first = self._node.random_ms(len(places))
        for node_id, address in places[first:] + places[:first]:
            if requests.is_ready(node_id, now_ms):
                requests.send(node_id, address, self._fetch(), now_ms)
                return

    # answers

    def fetched(self, found: Fetched, now_ms: float) -> None:
        """The leader's, of this epoch, without error."""
        node, state = self._node, self._quorum.state
        if not isinstance(state, FollowerState):
            return
        if found.diverging is not None:
            epoch, end_offset = found.diverging
            known = node.log.end_of_epoch(epoch)
            # Behind the epoch that both have, or the largest lower one.
            end = min(known.offset, end_offset) if known.epoch == epoch else known.offset
            node.truncate(max(end, node.log.start_offset))
        elif found.snapshot is not None:
            self._begin_download(state, found.snapshot)
        else:
            for batch in found.batches:
                if batch.epoch > state.epoch:
                    break  # of a leader that lost; the next fetch asks for the rest
                if batch.base_offset != node.log.end_offset:
                    node.stop(
                        f"the leader sent a batch of offset {batch.base_offset} where "
                        f"{node.log.end_offset} comes next"
                    )
                    return
                node.append(batch)
            node.follower_high_watermark(found.high_watermark)
        self._answered(state, now_ms)

    def _answered(self, state: FollowerState, now_ms: float) -> None:
        state.has_fetched = True
        state.deadline_ms = now_ms + self._node.config.fetch_timeout_ms

    def _begin_download(self, state: FollowerState, snapshot: OffsetAndEpoch) -> None:
        node = self._node
        if snapshot.offset < (self._quorum.high_watermark or 0):
            node.stop(f"the leader offers a snapshot of the past: {snapshot}")
            return
        state.download = SnapshotDownload(snapshot)
        if snapshot in node.log.snapshots:
            state.download.is_whole = True
            node.out.add(FinishSnapshot(snapshot))
        else:
            node.out.add(StartSnapshot(snapshot))

    def piece(self, error: ErrorCode, piece: SnapshotPiece | None, now_ms: float) -> None:
        """A piece of the snapshot that is fetched. With an error that snapshot is gone."""
        node, state = self._node, self._quorum.state
        if not isinstance(state, FollowerState) or state.download is None:
            return
        download = state.download
        is_next = (
            piece is not None and piece.id == download.id and piece.position == download.position
        )
        if error is not ErrorCode.NONE or piece is None or not is_next:
            state.download = None
            node.out.add(DropSnapshot(download.id))
            return
        node.out.add(AppendSnapshot(download.id, piece.content))
        download.position += len(piece.content)
        if download.position >= piece.size:
            download.is_whole = True
            node.out.add(FinishSnapshot(download.id))
        self._answered(state, now_ms)

    def snapshot_received(
        self, snapshot: OffsetAndEpoch, records: Sequence[ControlRecord], now_ms: float
    ) -> None:
        """It is durable. Of a download that was dropped meanwhile it is not used."""
        state = self._quorum.state
        download = state.download if isinstance(state, FollowerState) else None
        if download is None or download.id != snapshot or not isinstance(state, FollowerState):
            return
        state.download = None
        self._node.truncate_to_snapshot(snapshot, records)
        self._answered(state, now_ms)

    # membership

    def _due_update(self, state: FollowerState, now_ms: float) -> Request | None:
        """The voter's own facts, for a new leader; or those of an observer that wants to vote."""
        if now_ms < state.update_deadline_ms:
            return None
        request = self._update(state)
        if request is None:
            state.update_deadline_ms = now_ms + self._node.config.fetch_timeout_ms
        return request

    def _update(self, state: FollowerState) -> Request | None:
        local, history = self._node.local, self._node.history
        own = local.as_voter
        if self._quorum.is_voter:
            is_known = (
                state.has_updated_leader
                if history.kraft_version == 0
                else history.voters.get(local.id) == own
            )
            return None if is_known else UpdateRaftVoter(state.epoch, own)
        if not self._node.config.auto_join or history.kraft_version == 0:
            return None
        same_id = history.voters.get(local.id)
        if same_id is not None:
            return RemoveRaftVoter(same_id.key)
        return AddRaftVoter(own, ack_when_committed=False)

    def updated(self, answer: Answer) -> None:
        """An answer to such a request."""
        state = self._quorum.state
        if isinstance(state, FollowerState) and answer.error in (
            ErrorCode.NONE,
            ErrorCode.UNSUPPORTED_VERSION,
        ):
            state.has_updated_leader = True
