"""Reassignments: how replicas change hands, as tables and as a model under random histories."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twisted_broker.cluster.election import Election
from twisted_broker.cluster.partition_change import PartitionRules, change_partition
from twisted_broker.cluster.reassignment import (
    Assignment,
    completed,
    reassigned,
    replication_factor,
    reverted,
)
from twisted_broker.image.entries import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    PartitionRegistration,
)

TOPIC = b"t" * 16


def directory(broker: int) -> bytes:
    return bytes([broker]) * 16


def partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    removing: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas,
        tuple(map(directory, replicas)),
        isr,
        removing,
        adding,
        (),
        (),
        leader,
        RECOVERED,
        5,
        9,
    )


def rules(
    live: set[int], *, elr: bool = True, min_isr: int = 1, unclean: bool = False
) -> PartitionRules:
    return PartitionRules(lambda broker: broker in live, elr, min_isr, unclean, directory)


@pytest.mark.parametrize(
    ("replicas", "target", "wanted"),
    [
        ((1, 2, 3), [4, 2, 3], Assignment((4, 2, 3, 1), (1,), (4,))),
        ((1, 2, 3), [3, 2, 1], Assignment((3, 2, 1))),
        ((1, 2, 3), [1], Assignment((1, 2, 3), (2, 3))),
        ((1,), [1, 3, 2], Assignment((1, 3, 2), (), (2, 3))),
        ((1, 2), [3, 4], Assignment((3, 4, 1, 2), (1, 2), (3, 4))),
    ],
)
def test_replicas_are_merged_target_first(
    replicas: tuple[int, ...], target: list[int], wanted: Assignment
) -> None:
    """KIP-455: while a reassignment lasts the replicas are the target, then those to be removed."""
    assert reassigned(partition(replicas, replicas, replicas[0]), target) == wanted


@pytest.mark.parametrize(
    ("assignment", "isr", "wanted"),
    [
        (Assignment((1, 2)), [1, 2], None),
        (Assignment((4, 2, 3, 1), (1,), (4,)), [1, 2, 3], None),
        (Assignment((4, 2, 3, 1), (1,), (4,)), [2, 4, 1, 3], (Assignment((4, 2, 3)), [2, 4, 3])),
        (Assignment((4, 2, 3, 1), (1,), (4,)), [4, 2], None),
        (Assignment((1, 2, 3), (2, 3)), [2, 3], None),
        (Assignment((1, 2, 3), (2, 3)), [1], (Assignment((1,)), [1])),
        (Assignment((1, 2, 3), (), (3,)), [3, 1, 2], (Assignment((1, 2, 3)), [3, 1, 2])),
        (Assignment((1, 2), (1, 2)), [1, 2], None),
    ],
)
def test_it_ends_when_the_whole_target_is_in_sync(
    assignment: Assignment, isr: list[int], wanted: object
) -> None:
    """KIP-455: those to be removed leave replicas and ISR when every replica of the target is in
    the ISR; never to nobody.
    """
    assert completed(assignment, isr) == wanted


def test_a_cancelled_one_keeps_who_was_there() -> None:
    """KIP-455: who was being added goes, who was to be removed stays; an ISR of newcomers only
    leaves nobody in sync.
    """
    moving = partition((4, 2, 3, 1), (4, 2), 2, (1,), (4,))
    assert reverted(moving) == (Assignment((2, 3, 1)), (2,))
    assert reverted(moving._replace(isr=(4,), leader=4)).isr == ()
    assert replication_factor(moving) == 3


def test_a_new_wish_replaces_the_old_one() -> None:
    """KIP-455: reassigned while moving; a replica that was to go and is wanted again goes
    nowhere.
    """
    moving = partition((4, 2, 3, 1), (1, 2, 3), 1, (1,), (4,))
    assert reassigned(moving, [5, 2, 3]) == Assignment((5, 2, 3, 1, 4), (1, 4), (5,))
    assert reassigned(moving, [1, 2, 3, 4]) == Assignment((1, 2, 3, 4), (), (4,))
    back = reassigned(moving, [1, 2, 3])
    assert completed(back, moving.isr) == (Assignment((1, 2, 3)), [1, 2, 3])


def test_a_removed_leader_hands_over_and_the_epoch_grows() -> None:
    """RL 8.3: when the reassignment ends the leader that is removed is replaced by the first of
    the target.
    """
    moving = partition((3, 4, 1, 2), (1, 2, 3), 1, (1, 2), (3, 4))
    change = change_partition(moving, TOPIC, 0, rules({1, 2, 3, 4}), isr=[1, 2, 3, 4])
    assert change is not None
    ended = moving.changed(change)
    assert (ended.replicas, ended.isr, ended.leader, ended.leader_epoch, ended.partition_epoch) == (
        (3, 4),
        (3, 4),
        3,
        6,
        10,
    )
    assert (ended.removing, ended.adding, ended.directories) == (
        (),
        (),
        (directory(3), directory(4)),
    )


def test_a_removed_follower_raises_the_leader_epoch_too() -> None:
    """RL 8.3: the leader epoch grows when a reassignment drops a replica, so that its fetches
    are fenced; not when one is only added.
    """
    grown = partition((1, 2, 3), (1, 2, 3), 1)
    dropped = change_partition(
        grown, TOPIC, 0, rules({1, 2, 3}), assignment=reassigned(grown, [1, 2])
    )
    assert dropped is not None and (
        dropped.leader,
        dropped.replicas,
        dropped.isr,
        dropped.removing_replicas,
    ) == (1, [1, 2], [1, 2], None)
    small = partition((1, 2), (1, 2), 1)
    added = change_partition(
        small, TOPIC, 0, rules({1, 2, 3}), assignment=reassigned(small, [1, 2, 3])
    )
    assert added is not None and small.changed(added).leader_epoch == 5
    assert (added.replicas, added.adding_replicas, added.isr) == ([1, 2, 3], [3], None)
    assert added.directories == [directory(1), directory(2), directory(3)]


def test_another_order_is_done_at_once_and_moves_no_leader() -> None:
    """KIP-455: a permutation changes the preferred leader only; the leader stays until it is
    asked to go.
    """
    state = partition((1, 2, 3), (1, 2, 3), 1)
    change = change_partition(
        state, TOPIC, 0, rules({1, 2, 3}), assignment=reassigned(state, [3, 2, 1])
    )
    assert change is not None and (change.replicas, change.leader, change.adding_replicas) == (
        [3, 2, 1],
        -2,
        None,
    )


class Partitions(RuleBasedStateMachine):
    """One partition on brokers 1 to 5 that live and die, under ISR changes, elections and
    reassignments, each as the controller decides it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = partition((1, 2, 3), (1, 2, 3), 1)
        self.live = {1, 2, 3, 4, 5}
        self.elr = self.unclean = False
        self.min_isr = 1
        self.before = self.state
        self.asked: list[int] = []

    def now(self) -> PartitionRules:
        return rules(self.live, elr=self.elr, min_isr=self.min_isr, unclean=self.unclean)

    def take(self, change: object, asked: Sequence[int] = ()) -> None:
        self.before, self.asked = self.state, list(asked)
        if change is not None:
            self.state = self.state.changed(change)

    @precondition(lambda self: self.before is self.state and self.state.partition_epoch == 9)
    @rule(elr=st.booleans(), min_isr=st.integers(1, 3))
    def begin(self, elr: bool, min_isr: int) -> None:
        self.elr, self.min_isr = elr, min_isr

    @rule(unclean=st.booleans())
    def allow_unclean(self, unclean: bool) -> None:
        self.unclean = unclean

    @rule(broker=st.integers(1, 5), lost=st.booleans())
    def leave(self, broker: int, lost: bool) -> None:
        self.live.discard(broker)
        isr = [member for member in self.state.isr if member != broker]
        self.take(
            change_partition(
                self.state,
                TOPIC,
                0,
                self.now(),
                isr=isr,
                unclean_shutdown=(broker,) if lost else (),
            )
        )

    @rule(broker=st.integers(1, 5))
    def come(self, broker: int) -> None:
        self.live.add(broker)
        if self.state.leader == NO_LEADER:
            self.take(change_partition(self.state, TOPIC, 0, self.now()))

    @precondition(lambda self: self.state.leader in self.live)
    @rule(wanted=st.sets(st.integers(1, 5)))
    def leader_asks(self, wanted: set[int]) -> None:
        isr = [
            replica
            for replica in self.state.replicas
            if replica == self.state.leader or (replica in wanted and replica in self.live)
        ]
        self.take(
            change_partition(self.state, TOPIC, 0, self.now(), isr=isr, recovery_state=RECOVERED),
            isr,
        )

    @rule(election=st.sampled_from([Election.PREFERRED, Election.UNCLEAN]))
    def elect(self, election: Election) -> None:
        if election is Election.PREFERRED or self.state.leader == NO_LEADER:
            self.take(change_partition(self.state, TOPIC, 0, self.now(), election=election))

    @rule(order=st.permutations(range(1, 6)), count=st.integers(1, 4))
    def reassign(self, order: list[int], count: int) -> None:
        wanted = reassigned(self.state, order[:count])
        self.take(
            change_partition(
                self.state, TOPIC, 0, self.now(), assignment=wanted, election=Election.ONLINE
            )
        )

    @rule()
    def cancel(self) -> None:
        if Assignment.of(self.state).in_progress:
            assignment, isr = reverted(self.state)
            change = change_partition(
                self.state, TOPIC, 0, self.now(), isr=isr, assignment=assignment
            )
            assert change is not None
            if isr or (self.unclean and self.state.changed(change).leader != NO_LEADER):
                self.take(change)

    @invariant()
    def sound(self) -> None:
        """RL 9.3, 8.3."""
        state, before = self.state, self.before
        assert state.replicas and len(set(state.replicas)) == len(state.replicas) == len(
            state.directories
        )
        assert set(state.isr) <= set(state.replicas) and set(state.elr) <= set(state.replicas)
        assert not set(state.isr) & set(state.elr)
        assert set(state.removing) | set(state.adding) <= set(state.replicas)
        assert not state.removing or set(state.replicas) - set(state.removing)
        assert state.leader == NO_LEADER or state.leader in state.isr
        assert state.isr or self.elr
        if state is before:
            return
        assert (
            state.partition_epoch == before.partition_epoch + 1
            and state.leader_epoch >= before.leader_epoch
        )
        if state.leader != before.leader or not set(before.replicas) <= set(state.replicas):
            assert state.leader_epoch == before.leader_epoch + 1
        if state.leader not in (NO_LEADER, before.leader) and state.leader not in (
            *before.isr,
            *before.elr,
            *self.asked,
        ):
            assert state.leader_recovery_state == RECOVERING and state.isr == (state.leader,)
        for replica in set(before.replicas) & set(state.replicas):
            assert state.directory_of(replica) == before.directory_of(replica)
        if Assignment.of(state).in_progress:
            assert not set(Assignment.of(state).target) <= set(state.isr), "it should have ended"


TestPartitions = Partitions.TestCase
TestPartitions.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
