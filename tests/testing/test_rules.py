"""What must always hold (RL 9.1-9.5) is noticed when it does not: rule by rule, without a run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.log.batches import NOW_MS, batch
from tests.testing.test_committed_state import OLD
from tests.testing.test_replica_contents import append, mirror, replica
from twisted_broker.image.entries import TopicImage
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.simulation.checks.clients import ClientChecker, _Finals
from twisted_broker.simulation.checks.committed_state import CommittedState, Violation
from twisted_broker.simulation.checks.end_state import what_is_missing
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.checks.replicas import ReplicaChecker
from twisted_broker.simulation.client_notes import Attempt
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.wire.records import set_offsets_and_epoch

NAME = TopicPartition("t", 0)
ID = b"i" * 16
KEY = (ID, 0)


class Clients:
    """The checks of clients, over a partition of which so much was committed."""

    def __init__(self, committed: int) -> None:
        self.truth = CommittedState(lambda what: None)
        self.truth.keys[NAME] = KEY
        self.truth.line(KEY).top = committed
        sim = SimpleNamespace(now=1.0)
        self.checker: Any = SimpleNamespace(
            truth=self.truth,
            broken="",
            cluster=SimpleNamespace(sim=sim, note=None),
            replicas=SimpleNamespace(leaders={}),
        )
        self.checks = ClientChecker(self.checker, SimpleNamespace(attempts=[], sessions=Counter()))

    @property
    def broken(self) -> str:
        found: str = self.checker.broken
        return found


def acknowledged(base: int, *values: bytes) -> Attempt:
    attempt = Attempt(NAME, list(values), True)
    attempt.fate, attempt.acks, attempt.base_offset, attempt.epoch = Fate.ACKED, -1, base, 3
    return attempt


@pytest.mark.parametrize(("committed", "is_broken"), [(2, False), (1, True), (0, True)])
def test_what_is_acknowledged_is_committed(committed: int, is_broken: bool) -> None:
    """RL 9.1: with acks=-1; and one offset has one value, whoever says so."""
    clients = Clients(committed)
    clients.checks.acked(acknowledged(0, b"a", b"b"))
    assert bool(clients.broken) is is_broken
    clients = Clients(2)
    clients.checks.acked(acknowledged(0, b"a"))
    clients.checks.consumed("c", NAME, 0, 0, 3, 0, [b"a" if is_broken else b"x"])
    assert bool(clients.broken) is not is_broken


def test_who_was_elected_uncleanly_may_not_know_it_yet() -> None:
    """It led before, and was deposed by another unclean election: what it acknowledges until it
    knows of both was committed by an older leader, whatever epoch its producer knows of.
    """
    for waits in (True, False):
        clients = Clients(0)
        line = clients.truth.line(KEY)
        line.unclean_epoch, line.waits_for_leader = 3, waits
        clients.checks.acked(acknowledged(0, b"a"))
        assert bool(clients.broken) is not waits


def following(before: Attempt | None) -> Attempt:
    attempt = Attempt(NAME, [b"b"], True, after=before)
    attempt.fate = Fate.UNKNOWN
    return attempt


@pytest.mark.parametrize(("deleted_upto", "is_broken"), [(1, True), (2, False)])
def test_a_producer_of_whom_all_was_deleted_is_unknown(deleted_upto: int, is_broken: bool) -> None:
    """A leader that was restarted takes any sequence of it, and refuses an earlier one that comes
    behind that (seed 431160), also when that one was acknowledged meanwhile (seed 450888).
    """
    clients = Clients(9)
    clients.truth.line(KEY).deleted_upto = deleted_upto
    first = following(acknowledged(1, b"a"))
    second = acknowledged(8, b"c")
    second.after = first
    clients.checks.out_of_order(first)
    assert bool(clients.broken) is is_broken


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.REFUSED, None])
def test_what_follows_nothing_acknowledged_may_be_out_of_order(fate: Fate | None) -> None:
    """The first batch of a session, and one behind a batch that may be missing."""
    clients = Clients(9)
    before = acknowledged(1, b"a")
    before.fate = fate
    clients.checks.out_of_order(following(before))
    clients.checks.out_of_order(following(None))
    assert not clients.broken


@pytest.mark.parametrize(
    ("kept", "waits", "is_broken"),
    [(1, False, False), (2, False, True), (1, True, False), (2, True, False)],
)
def test_what_an_unclean_election_left_behind_is_followed_by_nothing(
    kept: int, waits: bool, is_broken: bool
) -> None:
    """A deposed leader that did not know it acknowledged a batch behind what is kept (seed
    452797). What is kept is followed as always, whatever else was lost; nothing is known of either
    until the new leader leads.
    """
    clients = Clients(2)
    line = clients.truth.line(KEY)
    line.resets, line.waits_for_leader, line.has_lost = [(4, kept)], waits, True
    clients.checks.out_of_order(following(acknowledged(1, b"a")))
    assert bool(clients.broken) is is_broken


@pytest.mark.parametrize(
    ("given", "is_broken"), [((7, 3), False), ((7, 2), True), ((7, 1), True), ((8, 3), True)]
)
def test_a_fenced_producer_may_be_out_of_order(given: tuple[int, int], is_broken: bool) -> None:
    """A deposed leader saw a batch of the next instance first (seed 802078)."""
    clients = Clients(9)
    attempt = following(acknowledged(1, b"a"))
    attempt.session = (7, 2)
    clients.checks.notes.sessions[given] = 1
    clients.checks.out_of_order(attempt)
    assert bool(clients.broken) is is_broken


@pytest.mark.parametrize(
    ("times", "is_lost", "is_broken"), [(2, True, False), (2, False, True), (1, True, True)]
)
def test_an_epoch_that_was_given_twice_answers_for_another_batch(
    times: int, is_lost: bool, is_broken: bool
) -> None:
    """An unclean election took from `__transaction_state` that the epoch had been given: its next
    holder begins with the same sequences, and is answered what the first one appended (seed
    1076734). Kafka's is, too.
    """
    clients = Clients(9)
    state = (b"s" * 16, 0)
    clients.truth.names[state] = TopicPartition(TRANSACTIONS_TOPIC, 0)
    clients.truth.line(state).has_lost = is_lost
    for value in (b"a", b"b"):
        attempt = acknowledged(1, value)
        attempt.session = (7, 2)
        clients.checks.notes.sessions[7, 2] = times
        clients.checks.acked(attempt)
    assert bool(clients.broken) is is_broken


@pytest.mark.parametrize(
    ("asked", "is_broken"),
    [((4, 2), False), ((2, 4), True), ((4, 4), True), ((2, 3), True), ((-1, -1), True)],
)
def test_a_deposed_leader_lacks_what_a_later_one_acknowledged(
    asked: tuple[int, int], is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2 leads in epoch 4; one that was paused meanwhile answered (seed 952451)."""
    clients = Clients(9)
    leads = SimpleNamespace(leader=2, leader_epoch=4)
    monkeypatch.setitem(clients.truth.keys, NAME, KEY)
    monkeypatch.setattr(clients.truth, "registration", lambda key: leads)
    attempt = following(acknowledged(1, b"a"))
    attempt.asked = asked
    clients.checks.out_of_order(attempt)
    assert bool(clients.broken) is is_broken


def test_what_the_leader_of_an_unclean_election_acknowledged_is_followed() -> None:
    clients = Clients(2)
    line = clients.truth.line(KEY)
    line.resets, line.has_lost = [(3, 1)], True
    clients.checks.out_of_order(following(acknowledged(1, b"a")))
    assert "out of order" in clients.broken


def finals(*values: bytes, start: int = 0) -> Any:
    """What the leader's log holds at the end: one value at each offset, the first ones below its
    log start.
    """
    found: Any = SimpleNamespace(
        values={NAME: dict(enumerate(values))}, starts={NAME: start}, places={}, twice={}
    )
    _Finals._find_places(found)
    return found


@pytest.mark.parametrize(
    ("is_answered", "then", "by_now", "is_broken"),
    [
        (True, 1, 1, False),
        (True, 0, 1, True),
        (True, 0, 0, True),
        (False, 0, 1, False),
        (False, 0, 0, True),
    ],
)
def test_a_batch_is_there_once_but_where_its_first_copy_was_deleted(
    is_answered: bool, then: int, by_now: int, is_broken: bool
) -> None:
    """A replica that began with that log start was elected and knew no producer, in Kafka too: the
    batch that came again was appended. The leader at the end holds the first one, below its log
    start (the rule of consumers' histories has it since seed 972067).
    """
    clients = Clients(3)
    clients.truth.line(KEY).deleted_upto = by_now
    attempt = acknowledged(2, b"a")
    attempt.deleted_upto = then
    if not is_answered:
        attempt.fate, attempt.base_offset = Fate.UNKNOWN, -1
    clients.checks._attempt_at_the_end(attempt, finals(b"a", b"b", b"a", start=by_now))
    assert ("is there twice" in clients.broken) is is_broken


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize(
    ("deleted_upto", "start", "is_broken"), [(0, 0, True), (1, 0, False), (1, 1, False)]
)
def test_what_was_deleted_is_owed_by_no_leader(
    acks: int, deleted_upto: int, start: int, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 9.1: a replica that was away may hold other records there, and lead with its own log
    start: a loss of power took the newer one.
    """
    clients = Clients(3)
    clients.truth.line(KEY).deleted_upto = deleted_upto
    leads = SimpleNamespace(leader=1, leader_epoch=3)
    monkeypatch.setattr(clients.truth, "registration", lambda key: leads)
    attempt = acknowledged(0, b"a")
    attempt.acks, attempt.was_answered = acks, True
    attempt.fate = Fate.ACKED if acks == -1 else Fate.UNKNOWN
    clients.checks._attempt_at_the_end(attempt, finals(b"x", b"b", start=start))
    assert bool(clients.broken) is is_broken
    # After an unclean election new records may be written below that.
    clients = Clients(3)
    line = clients.truth.line(KEY)
    line.deleted_upto, line.resets = deleted_upto, [(2, 0)]
    monkeypatch.setattr(clients.truth, "registration", lambda key: leads)
    clients.checks._attempt_at_the_end(attempt, finals(b"x", b"b", start=start))
    assert bool(clients.broken) is (start == 0)


@pytest.mark.parametrize("leads_by_then", [True, False])
def test_a_leader_that_did_not_know_of_its_last_election_truncates(
    leads_by_then: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 9.1, acks=1: it led in epoch 1, another one in 2, it again in 3, which the producer knew
    first. It follows in between, and what it took last is gone.
    """
    clients = Clients(0)
    clients.checker.replicas.leaders[KEY, 1] = ("n1", 1)
    if leads_by_then:
        clients.checker.replicas.leaders[KEY, 3] = ("n1", 1)
    leads = SimpleNamespace(leader=1, leader_epoch=3)
    monkeypatch.setattr(clients.truth, "registration", lambda key: leads)
    attempt = acknowledged(0, b"a")
    attempt.acks, attempt.was_answered, attempt.fate = 1, True, Fate.UNKNOWN
    clients.checks.acked(attempt)
    clients.checks._attempt_at_the_end(attempt, finals(b"x"))
    assert ("by a leader that leads on" in clients.broken) is leads_by_then


def test_a_mark_that_was_seen_does_not_go_back() -> None:
    """RL 9.2: not under the same leader; the end that ListOffsets gave not under a later one
    either.
    """
    clients = Clients(9)
    clients.checks.mark_seen("c", NAME, 3, 7)
    clients.checks.mark_seen("c", NAME, 4, 5)
    assert not clients.broken
    clients.checks.mark_seen("c", NAME, 4, 4)
    assert "saw the mark 4" in clients.broken
    clients = Clients(9)
    clients.checks.mark_seen("c end", NAME, 3, 7)
    clients.checks.mark_seen("c end", NAME, 4, 5)
    assert "ends at 5, after it saw 7" in clients.broken


@pytest.mark.parametrize(
    ("base", "last", "is_broken"), [(2, 3, False), (3, 3, True), (1, 2, True), (2, 9, True)]
)
def test_a_consumer_sees_committed_records_without_a_gap(
    base: int, last: int, is_broken: bool
) -> None:
    """RL 9.4: the next record, neither a later one nor an earlier one again, and none that is
    not committed.
    """
    clients = Clients(5)
    clients.checks.consumed("c", NAME, 0, 1, 3, 0, [b"a", b"b"])
    assert not clients.broken
    clients.checks.consumed("c", NAME, base, last, 3, 0, [])
    assert bool(clients.broken) is is_broken


@pytest.mark.parametrize(
    "changes",
    [
        {"leader": 2, "isr": (1, 3)},
        {"leader_epoch": -1},
        {"partition_epoch": 3},
        {"isr": (1, 3, 4)},
        {"elr": (1,)},
    ],
)
def test_epochs_grow_and_the_leader_is_in_its_isr(changes: dict[str, Any]) -> None:
    """RL 9.3: in what the controller decides; no leader is no fault."""
    truth = CommittedState(lambda what: None)
    later = OLD._replace(partition_epoch=4)
    truth._check_partition(KEY, NAME, OLD, later)
    truth._check_partition(KEY, NAME, OLD, later._replace(leader=-1, leader_epoch=1))
    with pytest.raises(Violation):
        truth._check_partition(KEY, NAME, OLD, later._replace(**changes))


def leading(epoch: int, isr: tuple[int, ...], leader: int) -> Any:
    """What a checker has seen of a replica that begins to lead."""
    log, disk = replica(b"a")
    partition = SimpleNamespace(
        leader_epoch=epoch,
        leader_id=leader,
        isr_state=SimpleNamespace(isr=isr),
        min_isr=1,
    )
    return SimpleNamespace(
        partition=partition,
        key=KEY,
        log=log,
        mirror=mirror(log, disk),
        leads=False,
        leader_epoch=-1,
        high_watermark=0,
    )


def test_one_leader_leads_in_an_epoch() -> None:
    """RL 9.3: another machine, or the same one after a restart, leads in another epoch; and it
    is in its own ISR.
    """
    checker = ReplicaChecker(CommittedState(lambda what: None), SimpleNamespace())
    one, two = (SimpleNamespace(name=name, incarnation=1) for name in ("n1", "n2"))
    again = SimpleNamespace(name="n1", incarnation=2)
    look: Any = checker._leader_changed
    look(one, leading(3, (1, 2), 1), "n1")
    look(one, leading(3, (1,), 1), "n1")
    look(two, leading(4, (2,), 2), "n2")
    for other in (two, again):
        with pytest.raises(Violation, match="leads it in the same epoch"):
            look(other, leading(3, (1, 2), 2), other.name)
    with pytest.raises(Violation, match="not in its ISR"):
        look(two, leading(5, (1,), 2), "n2")


def test_what_a_deposed_leader_committed_counts_once_it_is_elected_uncleanly() -> None:
    """Its high watermark does not move then, and is exposed all the same: retention may delete all
    of it.
    """
    truth = CommittedState(lambda what: None)
    checker = ReplicaChecker(truth, SimpleNamespace(check_weak=lambda *facts: None))
    line = truth.line(KEY)
    truth.deletions[truth.names.setdefault(KEY, NAME)] = 1
    sim = SimpleNamespace(now=1.0)
    node: Any = SimpleNamespace(name="n1", incarnation=1, disk=None, world=SimpleNamespace(sim=sim))
    seen = leading(2, (1,), 1)
    seen.log_start, seen.isr_state, seen.min_isr = 0, seen.partition.isr_state, 1
    seen.log.set_high_watermark(1)
    line.unclean_epoch, line.waits_for_leader = 3, True  # of another one
    checker.state_changed(node, seen, leads=True)
    assert (line.top, seen.high_watermark) == (0, 1)
    seen.partition.leader_epoch = line.unclean_epoch = 4  # its own
    checker.state_changed(node, seen, leads=True)
    assert line.top == 1
    seen.log.increment_log_start_offset(1)
    checker.state_changed(node, seen, leads=True)
    assert line.deleted_upto == 1


@pytest.mark.parametrize(
    ("values", "is_complete"), [((b"a", b"b"), True), ((b"a",), False), ((b"x", b"b"), False)]
)
def test_what_a_deposed_leader_commits_for_itself_is_lost(
    values: tuple[bytes, ...], is_complete: bool
) -> None:
    """Although the one that was elected uncleanly took nothing. Transactions, groups' offsets and
    compacted records that it acknowledges are owed to nobody, nor is what it cleans for them.
    """
    truth = CommittedState(lambda what: None)
    checker = ReplicaChecker(truth, SimpleNamespace())
    line = truth.line(KEY)
    line.extend(mirror(*replica(*values)), len(values))
    line.unclean_epoch = 3
    line.reset(mirror(*replica(*values)), 3)
    assert line.is_complete
    log, disk = replica(b"a", b"b")
    seen = leading(2, (1,), 1)
    seen.log, seen.mirror, seen.leads, seen.leader_epoch = log, mirror(log, disk), True, 2
    log.set_high_watermark(2)
    node: Any = SimpleNamespace(name="n1", incarnation=1)
    checker._leader_changed(node, seen, "n1")
    assert line.is_complete is is_complete


@pytest.mark.parametrize(
    ("has_lost", "cleaned_upto", "is_broken"),
    [(True, 2, False), (True, 1, True), (False, 2, True)],
)
def test_who_was_in_the_isr_may_lead(has_lost: bool, cleaned_upto: int, is_broken: bool) -> None:
    """What was cleaned before an unclean election may be there no more: a member without it, that
    StrongIsr lets pass, is elected.
    """
    truth = CommittedState(lambda what: None)
    checker = ReplicaChecker(truth, SimpleNamespace())
    registration = OLD._replace(replicas=(1, 2), isr=(1, 2), removing=(), leader=1, leader_epoch=4)
    topic = TopicImage("t", ID, {0: registration})
    truth.look(MetadataImage(offset=1, topics_by_id={ID: topic}, topics_by_name={"t": topic}))
    line = truth.line(KEY)
    line.extend(mirror(*replica(b"a", b"b")), 2)
    line.has_lost, line.cleaned_upto = has_lost, cleaned_upto
    seen = leading(4, (1, 2), 1)  # it ends at 1
    try:
        checker._new_leader(seen, line, "n1")
    except Violation as violation:
        assert is_broken and "leads without all that was committed up to 2" in str(violation)
    else:
        assert not is_broken


def after_an_unclean_election(top: int) -> tuple[ReplicaChecker, Line]:
    """In epoch 3, of a partition of which so much was committed, and one record deleted."""
    truth = CommittedState(lambda what: None)
    truth.deletions[truth.names.setdefault(KEY, NAME)] = 1
    line = truth.line(KEY)
    line.top, line.unclean_epoch = top, 3
    return ReplicaChecker(truth, SimpleNamespace()), line


def test_the_log_start_is_not_above_what_was_committed() -> None:
    """RL 9.2. One that leads on in an epoch before an unclean election commits for itself, and
    retention deletes that (simulation, seed 1122461); nothing that others have is excused by it.
    """
    checker, line = after_an_unclean_election(top=0)
    node: Any = SimpleNamespace(name="n1")
    for epoch, is_broken in ((2, False), (3, True)):
        seen = with_log_start(1, epoch)
        node.name = f"n{epoch}"
        if is_broken:
            with pytest.raises(Violation, match="the log start is 1, only 0 was committed"):
                checker._log_start_moved(node, seen, "n1")
        else:
            checker._log_start_moved(node, seen, "n1")
            assert seen.log_start == 1 and not line.deleted_upto


def with_log_start(start: int, epoch: int) -> Any:
    """A replica that deleted all below `start`."""
    seen = leading(epoch, (1,), 1)
    seen.log.set_high_watermark(1)
    seen.log.increment_log_start_offset(start)
    seen.log_start, seen.isr_state = 0, None
    return seen


def test_what_a_deposed_leader_deleted_for_itself_is_there_after_a_restart() -> None:
    """It knows of the unclean election then, and was not told to truncate yet. Another machine has
    no such excuse, nor has the same one further up.
    """
    checker, line = after_an_unclean_election(top=0)
    one, two = (SimpleNamespace(name=name) for name in ("n1", "n2"))
    look: Any = checker._log_start_moved
    look(one, with_log_start(1, 2), "n1")
    look(one, with_log_start(1, 3), "n1")
    assert not line.deleted_upto
    with pytest.raises(Violation, match="the log start is 1, only 0 was committed"):
        look(two, with_log_start(1, 3), "n2")
    checker._own_starts[one.name, KEY] = 0
    with pytest.raises(Violation, match="the log start is 1, only 0 was committed"):
        look(one, with_log_start(1, 3), "n1")


def test_what_a_deposed_leader_deleted_counts_once_it_follows() -> None:
    """All of it was committed before: it stays so when this replica leads again."""
    checker, line = after_an_unclean_election(top=1)
    node: Any = SimpleNamespace(name="n1")
    seen = with_log_start(1, 2)
    checker.state_changed(node, seen, leads=False)
    assert seen.log_start == 1 and not line.deleted_upto
    seen.partition.leader_epoch = 3
    checker.state_changed(node, seen, leads=False)
    assert line.deleted_upto == 1


def ended(
    *replicas: tuple[Log, SimDisk], isr: tuple[int, ...] = (1, 2), cleaned_upto: int = 0
) -> str:
    """What is missing at the end of a run with replicas on n1, the leader, and n2."""
    truth = CommittedState(lambda what: None)
    registration = OLD._replace(replicas=(1, 2), isr=isr, removing=(), leader=1)
    topic = TopicImage("t", ID, {0: registration})
    truth.look(MetadataImage(offset=1, topics_by_id={ID: topic}, topics_by_name={"t": topic}))
    truth.line(KEY).cleaned_upto = cleaned_upto
    seen = {
        f"n{number}": {
            NAME: SimpleNamespace(
                leads=number == 1,
                high_watermark=log.log_end_offset,
                log=log,
                mirror=mirror(log, disk),
            )
        }
        for number, (log, disk) in enumerate(replicas, 1)
    }
    checker: Any = SimpleNamespace(
        truth=truth,
        members=SimpleNamespace(seen=seen),
        cluster=SimpleNamespace(nodes={}),
    )
    return what_is_missing(checker)


def test_replicas_that_differ_at_the_end_are_found() -> None:
    """RL 9.5: every replica is in the ISR, and the bytes are equal."""
    assert ended(replica(b"a", b"b"), replica(b"a", b"b")) == ""
    assert "the replicas differ" in ended(replica(b"a", b"b"), replica(b"a", b"x"))
    shorter = replica(b"a")
    assert "they end at [2, 1]" in ended(replica(b"a", b"b"), shorter)
    assert "they end at [1, 2]" in ended(shorter, replica(b"a", b"b"))
    append(shorter[0], b"b")
    assert ended(replica(b"a", b"b"), shorter) == ""
    assert "isr=(1,)" in ended(replica(b"a"), replica(b"a"), isr=(1,))


def cut_to(end: int) -> tuple[Log, SimDisk]:
    """The one batch that a cleaner left lay behind `end`, and an unclean election took it."""
    log, disk = replica()
    left = bytearray(batch(b"newer"))
    set_offsets_and_epoch(left, end + 5, 0)
    log.append_as_follower(bytes(left), 0, NOW_MS)
    log.truncate_to(end, NOW_MS)
    return log, disk


def test_a_log_ends_where_it_was_cut_although_its_cleaner_left_nothing_there() -> None:
    """RL 9.5: a leader, or a follower, without a batch below the cut ends there, here as in Kafka
    (seed 1034478). Above what any cleaner saw, or at another offset, it is a difference.
    """
    for end, cleaned_upto, is_equal in ((2, 3, True), (2, 2, True), (2, 1, False), (1, 3, False)):
        other = replica(b"a", b"b")
        followed = ended(other, cut_to(end), cleaned_upto=cleaned_upto)
        led = ended(cut_to(end), other, cleaned_upto=cleaned_upto)
        assert (followed == "", led == "") == (is_equal, is_equal), (followed, led)
    # Who copies such a leader is given nothing, and is in the ISR, here as in Kafka.
    assert ended(cut_to(2), replica(), cleaned_upto=3) == ""
    assert "they end at [2, 0]" in ended(replica(b"a", b"b"), replica(), cleaned_upto=3)
    assert "they end at [2, 1]" in ended(replica(b"a", b"b"), cut_to(1), cleaned_upto=3)
    assert "high watermark 2, log end 0" in ended(cut_to(2), replica(b"a", b"b"), cleaned_upto=1)
