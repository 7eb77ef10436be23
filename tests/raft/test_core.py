"""The parts of the quorum's core, one at a time."""

from __future__ import annotations

import pytest

from twisted_broker.raft.consequences import Leader, Outbox, Reply, SaveElection
from twisted_broker.raft.election_state import (
    ElectionState,
    decode_election_state,
    encode_election_state,
)
from twisted_broker.raft.kafka_raft_client import KafkaRaftClient
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.log_view import (
    Batch,
    Diverging,
    LogView,
    OffsetAndEpoch,
    SnapshotInstead,
    Valid,
)
from twisted_broker.raft.messages import Vote
from twisted_broker.raft.node import RaftNode
from twisted_broker.raft.quorum_state import LocalNode, QuorumConfig, QuorumState, State
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.states import (
    NEVER,
    CandidateState,
    EpochElection,
    FollowerState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from twisted_broker.raft.voter_history import KRaftVersion, VoterHistory, Voters
from twisted_broker.raft.voter_set import VoterNode, VoterSet

OWN, OTHER = ReplicaKey(1, b"a" * 16), ReplicaKey(2, b"b" * 16)
PLACE = Address("two", 9093)


def voters(*ids: int) -> VoterSet:
    return VoterSet(
        VoterNode(ReplicaKey(each), (Endpoint("CONTROLLER", "two", 9093),)) for each in ids
    )


# quorum-state


def test_quorum_state_has_kafkas_form_in_both_versions() -> None:
    """QU 1.15: fields in this order; -1 is none."""
    state = ElectionState(7, 1, ReplicaKey(1, bytes(range(16))))
    assert encode_election_state(state, 0, [1, 2]) == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":7,"votedId":1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}'
    )
    text = encode_election_state(state, 1, [])
    assert text == (
        b'{"leaderId":1,"leaderEpoch":7,"votedId":1,'
        b'"votedDirectoryId":"AAECAwQFBgcICQoLDA0ODw","data_version":1}'
    )
    assert decode_election_state(text) == state
    nobody = ElectionState(3)
    for version in (0, 1):
        assert decode_election_state(encode_election_state(nobody, version, [])) == nobody


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"data_version":2}',
        b'{"data_version":1,"votedId":1}',
        b'{"leaderId":1,"leaderEpoch":7,"votedId":1,"votedDirectoryId":"AA","data_version":1}',
    ],
)
def test_a_quorum_state_that_cannot_be_understood(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_election_state(content)


# votes


def state(name: str, voted: ReplicaKey | None = None, leader: int = -1) -> State:
    election = EpochElection(voters(1, 2, 3), 1)
    follower = FollowerState(5, 3, PLACE, voted, 0, 0)
    follower.has_fetched = name == "fetching"
    leads = LeaderState(5, OWN, PLACE, 0, voters(1, 2, 3), (1, 2), 2000, 0)
    found: dict[str, State] = {
        "unattached": UnattachedState(5, leader, voted, 0),
        "prospective": ProspectiveState(5, leader, None, voted, election, 0),
        "candidate": CandidateState(5, OWN, election, 0),
        "resigned": ResignedState(5, 1, (), (), 0),
        "leader": leads,
    }
    return found.get(name, follower)


@pytest.mark.parametrize(
    ("name", "pre_vote", "vote"),
    [
        ("unattached", True, True),
        ("prospective", True, True),
        ("follower", True, False),
        ("fetching", False, False),
        ("candidate", True, False),
        ("resigned", True, False),
        ("leader", False, False),
    ],
)
def test_who_grants_what(name: str, pre_vote: bool, vote: bool) -> None:
    """QU 1.14, row by row; never to a log that is behind."""
    assert state(name).grants(OTHER, True, True) is pre_vote
    assert state(name).grants(OTHER, True, False) is vote
    assert not state(name).grants(OTHER, False, True)
    assert not state(name).grants(OTHER, False, False)


@pytest.mark.parametrize("name", ["unattached", "prospective"])
def test_a_vote_is_given_once_in_an_epoch(name: str) -> None:
    """To the same node and directory again; without a vote, not beside a known leader."""
    assert state(name, voted=OTHER).grants(OTHER, False, False)
    assert not state(name, voted=OTHER).grants(ReplicaKey(2, b"c" * 16), True, False)
    assert not state(name, voted=OTHER).grants(ReplicaKey(3), True, False)
    assert state(name, voted=ReplicaKey(2)).grants(OTHER, True, False)
    assert not state(name, leader=3).grants(OTHER, True, False)


def test_a_vote_stays_with_its_epoch() -> None:
    """QU 9.9: over prospective and back; a new epoch has none."""
    quorum, _ = started(ElectionState(5, -1, OTHER))
    quorum.to_prospective(0)
    assert quorum.voted == OTHER
    quorum.to_unattached(5, 0)
    assert quorum.voted == OTHER
    quorum.to_follower(5, 2, PLACE, 0)
    assert quorum.voted == OTHER
    quorum.to_unattached(6, 0)
    assert quorum.voted is None


# the start


def started(stored: ElectionState | None, log_epoch: int = 0) -> tuple[QuorumState, Outbox]:
    out, history = Outbox(), VoterHistory(voters(1, 2, 3))
    quorum = QuorumState(LocalNode(OWN), QuorumConfig(), history, out, lambda limit: 0)
    log = LogView()
    if log_epoch:
        log.append(Batch(0, 0, log_epoch))
    quorum.start(stored, log, 0)
    return quorum, out


@pytest.mark.parametrize(
    ("stored", "log_epoch", "name", "epoch"),
    [
        (None, 0, "Unattached", 0),
        (ElectionState(4, 2, OTHER), 5, "Unattached", 5),
        (ElectionState(5, 1, OWN), 5, "Resigned", 5),
        (ElectionState(5, -1, OWN), 4, "Candidate", 5),
        (ElectionState(5, 2, OTHER), 5, "Follower", 5),
        (ElectionState(5, 9), 5, "Unattached", 5),
        (ElectionState(5, -1, OTHER), 5, "Unattached", 5),
    ],
)
def test_the_state_after_a_start(
    stored: ElectionState | None, log_epoch: int, name: str, epoch: int
) -> None:
    """QU 1.4: never leader; the vote stays with its epoch; saved once."""
    quorum, out = started(stored, log_epoch)
    assert (quorum.state.name, quorum.epoch) == (name, epoch)
    saved = [each for each in out.take() if isinstance(each, SaveElection)]
    assert len(saved) == 1
    if stored is not None and epoch == stored.epoch and name in ("Unattached", "Follower"):
        assert quorum.state.voted == stored.voted


def test_a_second_leader_of_an_epoch_is_a_contradiction() -> None:
    """QU 2.33."""
    quorum, _ = started(ElectionState(5, 2))
    assert "two leaders" in quorum.follows(3, 5, PLACE, 0)
    assert "which it does not" in quorum.follows(1, 6, PLACE, 0)
    assert quorum.follows(3, 6, PLACE, 0) == "" and quorum.leader_id == 3


def test_a_transition_is_announced_and_saved_in_this_order() -> None:
    quorum, out = started(None)
    out.take()
    quorum.to_follower(3, 2, PLACE, 0)
    first, second = out.take()
    assert isinstance(first, SaveElection) and first.state == ElectionState(3, 2)
    assert second == Leader(2, 3)


# the log


def log() -> LogView:
    """Epoch 1 to offset 3, epoch 4 to 9."""
    found = LogView()
    for base, last, epoch in ((0, 2, 1), (3, 5, 4), (6, 8, 4)):
        found.append(Batch(base, last, epoch))
    return found


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((0, 0), Valid()),
        ((9, 4), Valid()),
        ((6, 4), Valid()),
        ((3, 1), Valid()),
        ((4, 1), Diverging(1, 3)),
        ((12, 4), Diverging(4, 9)),
        ((12, 3), Diverging(1, 3)),
        ((2, 0), Diverging(0, 0)),
        ((10**6, 9), Diverging(4, 9)),
    ],
)
def test_where_a_reader_differs(at: tuple[int, int], expected: object) -> None:
    """QU 3.7: the pair of the last epoch and the end is compared."""
    assert log().validate(*at) == expected


def test_a_reader_from_before_the_start_gets_the_newest_snapshot() -> None:
    """QU 3.7; 9.19: never the bootstrap snapshot."""
    found = log()
    found.add_snapshot(OffsetAndEpoch(3, 1))
    found.add_snapshot(OffsetAndEpoch(6, 4))
    found.move_start(OffsetAndEpoch(3, 1))
    newest = SnapshotInstead(OffsetAndEpoch(6, 4))
    for at in ((0, 0), (2, 1), (3, 0), (9, 0)):
        assert found.validate(*at) == newest
    assert found.validate(3, 1) == Valid() == found.validate(9, 4)
    found.truncate_to_snapshot(OffsetAndEpoch(20, 6))
    assert found.end == OffsetAndEpoch(20, 6) and found.validate(20, 6) == Valid()
    bootstrap = LogView(snapshots=[OffsetAndEpoch(0, 0)])
    assert bootstrap.validate(0, 0) == Valid()


def test_a_snapshot_below_the_start_of_the_log_counts_no_more() -> None:
    """Of two, a crash came before the older one's file was removed: who is at the newer one goes on
    by the log (a seed found that it was given that snapshot again, for ever).
    """
    both = [OffsetAndEpoch(246, 6), OffsetAndEpoch(250, 7)]
    found = LogView(250, 275, [OffsetAndEpoch(250, 7), OffsetAndEpoch(265, 8)], both)
    assert found.validate(250, 7) == found.validate(257, 7) == Valid()
    assert found.validate(250, 6) == found.validate(246, 6) == SnapshotInstead(both[1])


def test_voters_count_from_their_append_and_not_after_a_truncation() -> None:
    """QU 3.13, 4.3, 9.12."""
    history = VoterHistory(voters(1))
    history.append(4, [KRaftVersion(1), Voters(voters(1, 2))])
    assert (history.voters, history.kraft_version) == (voters(1, 2), 1)
    history.append(7, [Voters(voters(1, 2, 3))])
    assert history.voters_at(6) == voters(1, 2) and history.voters_offset == 7
    history.truncate(7)
    assert history.voters == voters(1, 2)
    history.truncate(4)
    assert (history.voters, history.kraft_version) == (voters(1), 0)


def test_the_durable_end_falls_with_a_truncation() -> None:
    """QU 1.17: a leader must not count what it cut off, and wrote anew, as synced."""
    history = VoterHistory(voters(1, 2, 3))
    node = RaftNode(LocalNode(OWN), QuorumConfig(), history, LogView(), (), lambda limit: 0, 0)
    node.append(Batch(0, 4, 1))
    node.append(Batch(5, 9, 1))
    node.persisted(2)
    assert node.durable_end == 10
    node.truncate(5)
    assert node.durable_end == 5
    node.append(Batch(5, 7, 2))
    node.persisted(3)
    assert node.durable_end == 5, "that was the truncation"
    node.persisted(4)
    assert node.durable_end == 8


def test_the_high_watermark_is_what_a_majority_has_of_this_epoch() -> None:
    """QU 3.2 to 3.5."""
    leads = LeaderState(5, OWN, PLACE, 10, voters(1, 2, 3, 4), (1, 2, 3), 2000, 0)
    assert not leads.set_own_end(20)
    assert not leads.fetched(ReplicaKey(2), 20, 20, 1)
    assert not leads.fetched(ReplicaKey(3), 10, 20, 1), "the epoch's own first record is not there"
    assert leads.fetched(ReplicaKey(3), 12, 20, 1) and leads.high_watermark == 12
    leads.set_voters(voters(1, 2, 3, 4, 5))
    assert not leads.move_high_watermark() and leads.high_watermark == 12
    leads.set_voters(voters(2, 3))
    leads.set_own_end(30)
    assert not leads.fetched(ReplicaKey(2), 25, 30, 2), "a removed leader does not count itself"
    assert leads.fetched(ReplicaKey(3), 22, 30, 2) and leads.high_watermark == 22


def test_the_only_voter_goes_on_leading_with_a_second_one() -> None:
    """It heard nobody for long, and need not have: the time for that begins with the second one."""
    alone = VoterSet([VoterNode(OWN, (Endpoint("CONTROLLER", "one", 9093),))])
    leader = LeaderState(5, OWN, PLACE, 0, alone, (1,), 2000, 0)
    leader.begin_check(0)
    assert leader.check_deadline_ms == NEVER
    leader.set_voters(alone.with_voter(VoterNode(OTHER)))
    leader.begin_check(60_000)
    assert leader.check_deadline_ms == 63_000


def test_an_observer_without_a_leader_grants_a_pre_vote() -> None:
    """It may be a voter by a record that only the others have, and needed for their majority."""
    local = LocalNode(ReplicaKey(4, b"d" * 16))
    stored = ElectionState(4, 1)
    history = VoterHistory(voters(1, 2))
    node = RaftNode(local, QuorumConfig(), history, LogView(), (), lambda limit: 0, 0)
    core = KafkaRaftClient(node, stored, 0)
    state = core.quorum.state
    assert isinstance(state, FollowerState)
    state.has_fetched = True
    asked = Vote(OTHER, 4, OffsetAndEpoch(9, 4), True, local.key)

    def granted(now_ms: float) -> bool:
        core.tick(now_ms)
        (answer,) = [e for e in core.request("a", asked, now_ms) if isinstance(e, Reply)]
        return answer.answer.granted

    assert not granted(1000)
    assert granted(2000)
