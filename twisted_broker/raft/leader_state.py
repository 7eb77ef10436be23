"""The leader's knowledge of the other nodes: their ends, and when it heard them.

1. The high watermark is the end that a majority of the voters in force has, and it moves only past
   the first record of this epoch: an entry of an earlier one is never committed by counting it
   alone.
2. It never falls. Of the leader itself the durable end counts, and only while it is a voter.
3. Without word of a majority for a time and a half of the fetch timeout it must resign.

Source: Kafka's `LeaderState`; QU 3.2 to 3.5, 3.8 to 3.11. Bounded: of observers the last
`MOST_OBSERVERS` heard are known. Not here: what it writes (`elections.py`, `voter_changes.py`).
"""

from __future__ import annotations

from twisted_broker.raft.replica_key import Address, ReplicaKey
from twisted_broker.raft.states import NEVER
from twisted_broker.raft.voter_set import VoterNode, VoterSet

MOST_OBSERVERS = 1000
FORGET_OBSERVER_MS = 300_000
CHECK_QUORUM_FACTOR = 1.5


class ReplicaState:
    """`end_offset` -1: it has not fetched yet; times -1: never."""

    __slots__ = ("caught_up_ms", "end_offset", "end_then", "fetch_ms", "key")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset = self.end_then = -1
        self.fetch_ms = self.caught_up_ms = -1.0


class LeaderState:
    """`start_offset`: of the first record of its epoch."""

    name = "Leader"

    def __init__(
        self,
        epoch: int,
        own: ReplicaKey,
        address: Address | None,
        start_offset: int,
        voters: VoterSet,
        granting: tuple[int, ...],
        fetch_timeout_ms: float,
        now_ms: float,
    ) -> None:
        self.epoch, self.own, self.leader_id = epoch, own, own.id
        self.voted: ReplicaKey | None = own
        self.leader_address = address
        self.start_offset, self.granting = start_offset, granting
        self.high_watermark: int | None = None
        self.voters = voters
        self.is_voter, self._is_alone = voters.is_voter(own), voters.is_only_voter(own)
        self.is_resigning = False
        self.updated: dict[int, VoterNode] = {}
        """kraft.version 0: what voters said with UpdateRaftVoter"""
        self._replicas: dict[int, ReplicaState] = {key.id: ReplicaState(key) for key in voters.keys}
        self._observers: dict[ReplicaKey, ReplicaState] = {}
        self._fetch_timeout_ms = fetch_timeout_ms
        self._heard: set[int] = set()
        self._check_ms = now_ms + fetch_timeout_ms * CHECK_QUORUM_FACTOR
        self.begin_ms = now_ms  # when BeginQuorumEpoch is due to who was not heard
        self._own_end = -1

    def grants(self, candidate: ReplicaKey, is_up_to_date: bool, pre_vote: bool) -> bool:
        return False

    def set_voters(self, voters: VoterSet) -> None:
        """Those in force from now on. A newcomer keeps its known end."""
        if self._is_alone:
            self._check_ms = NEVER  # it heard nobody, and need not have
        old, self.voters = self._replicas, voters
        self.is_voter, self._is_alone = voters.is_voter(self.own), voters.is_only_voter(self.own)
        self.begin_ms = 0.0  # who comes in is told of its leader
        self._replicas = {}
        for key in voters.keys:
            known = old.pop(key.id, None)
            if known is None or not (known.key == key or not known.key.has_directory):
                known = self._observers.pop(key, None) or ReplicaState(key)
            known.key = key
            self._replicas[key.id] = known
        for left in old.values():
            self._heard.discard(left.key.id)
            if left.key.id != self.own.id:
                self._observers[left.key] = left

    # the high watermark

    def set_own_end(self, durable_end: int) -> bool:
        """The leader's own log is durable up to here. Whether the high watermark moved."""
        self._own_end = durable_end
        return self.move_high_watermark()

    def move_high_watermark(self) -> bool:
        ends = sorted((self._end_of(each) for each in self._replicas.values()), reverse=True)
        if not ends:
            return False
        offset = ends[len(ends) // 2]
        if offset <= self.start_offset or offset <= (self.high_watermark or -1):
            return False
        self.high_watermark = offset
        return True

    def _end_of(self, replica: ReplicaState) -> int:
        is_own = replica.key.id == self.own.id and self.is_voter
        return self._own_end if is_own else replica.end_offset

    # what others do

    def fetched(self, key: ReplicaKey, offset: int, log_end: int, now_ms: float) -> bool:
        """A replica's log ends at `offset`, as its fetch says. Whether the high watermark moved."""
        replica = self._replica(key)
        if offset >= log_end:
            replica.caught_up_ms = now_ms
        elif replica.end_then >= 0 and offset >= replica.end_then:
            replica.caught_up_ms = replica.fetch_ms
        replica.end_offset, replica.end_then, replica.fetch_ms = offset, log_end, now_ms
        self.heard(key, now_ms)
        return self.voters.is_voter(key) and self.move_high_watermark()

    def _replica(self, key: ReplicaKey) -> ReplicaState:
        if self.voters.is_voter(key):
            return self._replicas[key.id]
        found = self._observers.pop(key, None) or ReplicaState(key)
        self._observers[key] = found  # the last heard comes last
        if len(self._observers) > MOST_OBSERVERS:
            del self._observers[next(iter(self._observers))]
        return found

    def heard(self, key: ReplicaKey, now_ms: float) -> None:
        """A voter has sent Fetch, FetchSnapshot or UpdateRaftVoter."""
        if not self.voters.is_voter(key) or key.id == self.own.id:
            return
        self._heard.add(key.id)
        if len(self._heard) >= self.voters.majority - self.is_voter:
            self._heard.clear()
            self._check_ms = now_ms + self._fetch_timeout_ms * CHECK_QUORUM_FACTOR

    def begin_check(self, now_ms: float) -> None:
        """From now on it must hear a majority, where it was the only voter before."""
        if self._check_ms == NEVER:
            self._check_ms = now_ms + self._fetch_timeout_ms * CHECK_QUORUM_FACTOR

    def last_fetch_ms(self, voter_id: int) -> float:
        return self._replicas[voter_id].fetch_ms

    def observer(self, key: ReplicaKey) -> ReplicaState | None:
        return self._observers.get(key)

    @property
    def check_deadline_ms(self) -> float:
        """When it resigns without word of a majority. Alone it never does."""
        return NEVER if self._is_alone else self._check_ms

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, those whose logs go farthest first."""
        others = [each for each in self._replicas.values() if each.key.id != self.own.id]
        return tuple(
            each.key for each in sorted(others, key=lambda each: each.end_offset, reverse=True)
        )

    def described(self, now_ms: float) -> tuple[list[ReplicaState], list[ReplicaState]]:
        """Voters and observers, for DescribeQuorum. Observers not heard for long are forgotten."""
        for key, seen in list(self._observers.items()):
            if now_ms - seen.fetch_ms > FORGET_OBSERVER_MS:
                del self._observers[key]
        return list(self._replicas.values()), list(self._observers.values())
