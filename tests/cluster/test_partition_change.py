"""Leaders, ISR and eligible leader replicas: the record that each change of the cluster makes."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.cluster.election import Candidates, Elected, Election, elect
from twisted_broker.cluster.metadata_events import events
from twisted_broker.cluster.partition_change import PartitionRules, change_partition
from twisted_broker.image.entries import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    PartitionRegistration,
)
from twisted_broker.image.metadata_delta import MetadataDelta, PartitionDelta
from twisted_broker.image.metadata_image import EMPTY

TOPIC = b"t" * 16
DIRECTORIES = (b"d" * 16,) * 3


def partition(
    isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = (), last: tuple[int, ...] = ()
) -> PartitionRegistration:
    return PartitionRegistration(
        (1, 2, 3), DIRECTORIES, isr, (), (), elr, last, leader, RECOVERED, 5, 9
    )


def rules(
    live: Collection[int], *, elr: bool = True, min_isr: int = 2, unclean: bool = False
) -> PartitionRules:
    return PartitionRules(lambda broker: broker in live, elr, min_isr, unclean)


def after(state: PartitionRegistration, change: object) -> PartitionRegistration:
    assert change is not None
    return state.changed(change)


def test_the_next_replica_in_the_isr_leads_when_the_leader_goes() -> None:
    """RL 8.3: first unfenced assigned replica in the ISR; the leader epoch grows."""
    state = partition((1, 3, 2), 1)
    changed = after(state, change_partition(state, TOPIC, 0, rules({2, 3}), isr=[3, 2]))
    assert (changed.leader, changed.isr, changed.leader_epoch, changed.partition_epoch) == (
        2,
        (3, 2),
        6,
        10,
    )


def test_a_follower_that_goes_changes_the_partition_epoch_only() -> None:
    """RL 8.3: an ISR change raises only the partition epoch."""
    state = partition((1, 2, 3), 1)
    changed = after(state, change_partition(state, TOPIC, 0, rules({1, 2}), isr=[1, 2]))
    assert (changed.leader, changed.leader_epoch, changed.partition_epoch, changed.elr) == (
        1,
        5,
        10,
        (),
    )


def test_below_the_minimum_isr_who_leaves_stays_eligible() -> None:
    """RL 8.3, KIP-966: members that leave while the ISR is below the minimum could still lead
    without loss.
    """
    state = partition((1, 2), 1)
    changed = after(state, change_partition(state, TOPIC, 0, rules({1}), isr=[1]))
    assert (changed.isr, changed.elr, changed.leader) == ((1,), (2,), 1)
    back = after(changed, change_partition(changed, TOPIC, 0, rules({1, 2}), isr=[1, 2]))
    assert (back.isr, back.elr) == ((1, 2), ())


@pytest.mark.parametrize("node", [0, 1])
def test_the_last_member_may_leave_with_elr_and_is_remembered(node: int) -> None:
    """KIP-966: the ISR becomes empty, nobody leads, the last leader is the last known one, until
    there is a leader again; exactly as Kafka 4.3.1 records it.
    """
    state = partition((node,), node)._replace(replicas=(node, 2, 3))
    change = change_partition(state, TOPIC, 0, rules(()), isr=[])
    assert change is not None
    assert (change.isr, change.leader, change.eligible_leader_replicas, change.last_known_elr) == (
        [],
        NO_LEADER,
        [node],
        [node],
    )
    gone = after(state, change)
    back = after(gone, change_partition(gone, TOPIC, 0, rules({node})))
    assert (back.leader, back.last_known_elr) == (node, ())


def test_without_elr_the_last_member_stays_in_the_isr() -> None:
    """RL 8.3: no leader, but the ISR remembers who had everything."""
    state = partition((1,), 1)
    changed = after(state, change_partition(state, TOPIC, 0, rules((), elr=False), isr=[]))
    assert (changed.isr, changed.leader, changed.elr, changed.last_known_elr) == (
        (1,),
        NO_LEADER,
        (),
        (),
    )


def test_an_eligible_replica_leads_alone_and_cleanly() -> None:
    """RL 8.3, KIP-966: out of an empty ISR, from the ELR: the new leader is the ISR, nothing is
    recovering, the last known leader is forgotten.
    """
    state = partition((), NO_LEADER, elr=(2, 3), last=(2,))
    changed = after(state, change_partition(state, TOPIC, 0, rules({3})))
    assert (changed.leader, changed.isr, changed.elr) == (3, (3,), (2,))
    assert (changed.last_known_elr, changed.leader_recovery_state) == ((), RECOVERED)


def test_an_unclean_stop_costs_eligibility_and_the_last_known_leader_comes_back_recovering() -> (
    None
):
    """RL 8.2, KIP-966: a lone replica that may have lost data leads again, but it is recorded."""
    state = partition((1,), 1)
    gone = after(state, change_partition(state, TOPIC, 0, rules(()), isr=[], unclean_shutdown=(1,)))
    assert (gone.isr, gone.elr, gone.last_known_elr, gone.leader) == ((), (), (1,), NO_LEADER)
    back = after(gone, change_partition(gone, TOPIC, 0, rules({1})))
    assert (back.isr, back.leader, back.leader_recovery_state, back.last_known_elr) == (
        (1,),
        1,
        RECOVERING,
        (),
    )
    for more in ({}, {1: PartitionDelta("t", TOPIC, 1, gone, back)}):
        changes = {0: PartitionDelta("t", TOPIC, 0, gone, back)} | more
        delta = MetadataDelta(EMPTY, EMPTY)
        delta.partitions.update({(TOPIC, number): each for number, each in changes.items()})
        ((_, line),) = events(delta)
        count = line.get("last_known_leaders", line.get("last_known_leader"))
        assert count == line["unclean"] == len(changes)


def test_an_unclean_election_needs_the_setting_and_is_recorded() -> None:
    """RL 8.3: any unfenced one when `unclean.leader.election.enable`, recorded as recovering,
    alone in the ISR.
    """
    state = partition((), NO_LEADER, elr=(1,), last=(1,))
    assert change_partition(state, TOPIC, 0, rules({3})) is None
    changed = after(state, change_partition(state, TOPIC, 0, rules({3}, unclean=True)))
    assert (changed.leader, changed.isr, changed.elr, changed.leader_recovery_state) == (
        3,
        (3,),
        (),
        RECOVERING,
    )


def test_recovery_ends_by_the_leaders_word() -> None:
    """RL 2.5: the leader reports RECOVERED with an ISR change; that alone is a change."""
    state = partition((1,), 1)._replace(leader_recovery_state=RECOVERING)
    changed = after(
        state, change_partition(state, TOPIC, 0, rules({1}), isr=[1], recovery_state=RECOVERED)
    )
    assert changed.leader_recovery_state == RECOVERED and changed.leader_epoch == 5


def test_nothing_changed_is_no_record() -> None:
    """Invariant 4."""
    state = partition((1, 2), 1)
    assert change_partition(state, TOPIC, 0, rules({1, 2}), isr=[1, 2]) is None


def test_the_preferred_leader_is_taken_only_when_it_may() -> None:
    """RL 8.3: preferred leaders return; one outside the ISR does not, and the next in the ISR
    keeps the partition alive.
    """
    known = Candidates((1, 2, 3), (2, 1), (), (), 2)
    assert elect(known, lambda broker: True, Election.PREFERRED) == Elected(1, False)
    assert elect(known, lambda broker: True, Election.ONLINE) == Elected(2, False)
    assert elect(known, lambda broker: broker != 1, Election.PREFERRED) == Elected(2, False)
    assert elect(known, lambda broker: broker == 3, Election.PREFERRED) == Elected(NO_LEADER, False)
    assert elect(
        known._replace(isr=(2, 1, 3)), lambda broker: broker == 3, Election.PREFERRED
    ) == Elected(3, False)


BROKERS = st.sets(st.integers(1, 3))


@given(
    BROKERS, BROKERS, BROKERS, st.sampled_from([-1, 1, 2, 3]), st.booleans(), st.booleans(), BROKERS
)
def test_whatever_happens_the_outcome_is_sound(
    isr: set[int],
    live: set[int],
    wanted: set[int],
    leader: int,
    elr: bool,
    unclean: bool,
    warnings_for: set[int],
) -> None:
    """RL 9.3: the leader is in its ISR, or there is none; nobody is in ISR and ELR; nobody
    doubtful is eligible; epochs only grow.
    """
    state = partition(tuple(sorted(isr)), leader if leader in isr else -1)
    change = change_partition(
        state,
        TOPIC,
        0,
        rules(live, elr=elr, unclean=unclean),
        isr=sorted(wanted & isr),
        unclean_shutdown=warnings_for,
    )
    changed = state if change is None else state.changed(change)
    assert changed.leader == NO_LEADER or changed.leader in changed.isr
    assert changed.leader == NO_LEADER or changed.leader in live
    assert not set(changed.isr) & set(changed.elr)
    assert not set(changed.elr) & warnings_for
    assert (
        changed.leader_epoch >= state.leader_epoch
        and changed.partition_epoch >= state.partition_epoch
    )
    if changed.leader != state.leader:
        assert changed.leader_epoch > state.leader_epoch
    if not unclean and changed.leader_recovery_state == RECOVERED and changed.leader != NO_LEADER:
        assert changed.leader in isr


@pytest.mark.parametrize("elr", [True, False])
def test_a_directory_is_recorded_without_touching_the_rest(elr: bool) -> None:
    """KIP-858: where a replica lies is told by itself."""
    state = partition((1, 2), 1)
    places = (b"x" * 16, *DIRECTORIES[1:])
    changed = after(
        state, change_partition(state, TOPIC, 0, rules({1, 2}, elr=elr), directories=places)
    )
    assert (
        changed._replace(directories=DIRECTORIES, partition_epoch=9) == state
        and changed.directories == places
    )
